/* SPDX-License-Identifier: Apache-2.0 */
/* Device, managed and pinned host memory. */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "driver_calls_impl.h"

#define PITCH_ALIGN 512ull
#define PAGE 4096ull

/* Carries out an allocation of address space of the device; the bytes are accounted. */
static CUresult take_device(uint64_t size, bool low, uint64_t *address)
{
	struct fake_context *context = NULL;
	CUresult result = context_current(&context);
	struct allocation one = { .size = size, .origin = FROM_DEVICE, .kind = KIND_DEVICE,
				  .low = low };

	if (result)
		return result;
	if (!size)
		return CUDA_ERROR_INVALID_VALUE;
	one.device = context->device;
	one.context = context;
	pthread_mutex_lock(&fake_lock);
	result = CUDA_ERROR_OUT_OF_MEMORY;
	if (account_add(KIND_DEVICE, one.device, size)) {
		one.address = arena_take(one.device, size, low, &one.range);
		if (one.address && allocation_insert(one))
			result = CUDA_SUCCESS;
		else
			account_remove(KIND_DEVICE, one.device, size);
	}
	pthread_mutex_unlock(&fake_lock);
	*address = result ? 0 : one.address;
	return result;
}

/* Memory that the host can touch: a mapping of its own; pages come when they are touched. */
static CUresult take_mapping(uint64_t size, enum origin origin, enum kind kind, uint64_t *address)
{
	struct fake_context *context = NULL;
	CUresult result = context_current(&context);
	struct allocation one = { .size = size, .origin = origin, .kind = kind };
	void *base;

	if (result)
		return result;
	if (!size)
		return CUDA_ERROR_INVALID_VALUE;
	one.device = context->device;
	one.context = context;
	one.range = (size + PAGE - 1) & ~(PAGE - 1);
	if (one.range < size)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_lock(&fake_lock);
	result = CUDA_ERROR_OUT_OF_MEMORY;
	if (account_add(kind, one.device, size)) {
		base = mmap(NULL, one.range, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		one.address = (uint64_t)base;
		if (base != MAP_FAILED && allocation_insert(one))
			result = CUDA_SUCCESS;
		else
			account_remove(kind, one.device, size);
	}
	pthread_mutex_unlock(&fake_lock);
	*address = result ? 0 : one.address;
	return result;
}

/* Frees what `allowed` (a mask of origins) says this call may free. */
static CUresult give(uint64_t address, unsigned int allowed)
{
	CUresult result = context_to_free();
	struct allocation *one;

	if (result || !address)
		return result;
	pthread_mutex_lock(&fake_lock);
	one = allocation_find(address);
	if (one && (allowed >> one->origin & 1))
		allocation_remove(one);
	else
		result = CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_unlock(&fake_lock);
	return result;
}

/* The 32-bit calls work in contexts of their own time only. */
static CUresult need_first_interface(void)
{
	struct fake_context *context = NULL;
	CUresult result = context_current(&context);

	return result ? result : context->first_interface ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult drv_mem_alloc(CUdeviceptr *address, size_t size)
{
	uint64_t taken = 0;
	CUresult result = address ? take_device(size, false, &taken) : CUDA_ERROR_INVALID_VALUE;

	if (address)
		*address = taken;
	return result;
}

CUresult drv_mem_alloc_v1(CUdeviceptr_v1 *address, unsigned int size)
{
	CUresult result = need_first_interface();
	uint64_t taken = 0;

	if (!result)
		result = address ? take_device(size, true, &taken) : CUDA_ERROR_INVALID_VALUE;
	if (address)
		*address = taken;
	return result;
}

CUresult drv_mem_free_v1(CUdeviceptr_v1 address)
{
	CUresult result = need_first_interface();

	return result ? result : drv_mem_free(address);
}

static CUresult take_pitch(uint64_t *address, uint64_t *pitch, uint64_t width, uint64_t height,
			   unsigned int element, bool low)
{
	uint64_t row = (width + PITCH_ALIGN - 1) & ~(PITCH_ALIGN - 1), size;

	if (!width || !height || (element != 4 && element != 8 && element != 16))
		return CUDA_ERROR_INVALID_VALUE;
	if (row < width || __builtin_mul_overflow(row, height, &size))
		return CUDA_ERROR_OUT_OF_MEMORY;
	*pitch = row;
	return take_device(size, low, address);
}

CUresult drv_mem_alloc_pitch(CUdeviceptr *address, size_t *pitch, size_t width, size_t height,
			     unsigned int element)
{
	uint64_t taken = 0, row = 0;
	CUresult result;

	if (!address || !pitch)
		return CUDA_ERROR_INVALID_VALUE;
	result = take_pitch(&taken, &row, width, height, element, false);
	*address = taken;
	*pitch = result ? 0 : row;
	return result;
}

CUresult drv_mem_alloc_pitch_v1(CUdeviceptr_v1 *address, unsigned int *pitch, unsigned int width,
				unsigned int height, unsigned int element)
{
	uint64_t taken = 0, row = 0;
	CUresult result = need_first_interface();

	if (result)
		return result;
	if (!address || !pitch)
		return CUDA_ERROR_INVALID_VALUE;
	result = take_pitch(&taken, &row, width, height, element, true);
	*address = taken;
	*pitch = result ? 0 : row;
	return result;
}

CUresult drv_mem_alloc_managed(CUdeviceptr *address, size_t size, unsigned int flags)
{
	uint64_t taken = 0;
	CUresult result = address && (flags == 1 || flags == 2)
				  ? take_mapping(size, FROM_MANAGED, KIND_MANAGED, &taken)
				  : CUDA_ERROR_INVALID_VALUE;
	if (address)
		*address = taken;
	return result;
}

CUresult drv_mem_free(CUdeviceptr address)
{
	return give(address, 1u << FROM_DEVICE | 1u << FROM_POOL | 1u << FROM_MANAGED |
				     1u << FROM_EXTERNAL | 1u << FROM_POOL_IMPORT);
}

CUresult drv_host_alloc(void **address, size_t size, unsigned int flags)
{
	uint64_t taken = 0;
	struct fake_context *context = NULL;
	CUresult result = context_current(&context);

	if (!result && (!address || flags > 7))
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result && size)	/* nothing asked for, nothing given */
		result = take_mapping(size, FROM_HOST_ALLOC, KIND_PINNED_HOST, &taken);
	if (address)
		*address = (void *)taken;
	return result;
}

CUresult drv_host_free(void *address)
{
	return give((uint64_t)address, 1u << FROM_HOST_ALLOC);
}

CUresult drv_host_register(void *address, size_t size, unsigned int flags)
{
	struct fake_context *context = NULL;
	CUresult result = context_current(&context);
	struct allocation one = { .address = (uint64_t)address, .size = size,
				  .origin = FROM_HOST_REGISTER, .kind = KIND_PINNED_HOST };

	if (result)
		return result;
	if (!address || !size || flags > 15)
		return CUDA_ERROR_INVALID_VALUE;
	one.device = context->device;
	one.context = context;
	pthread_mutex_lock(&fake_lock);
	if (allocation_find(one.address))
		result = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	else if (!account_add(KIND_PINNED_HOST, one.device, size))
		result = CUDA_ERROR_OUT_OF_MEMORY;
	else if (!allocation_insert(one)) {
		account_remove(KIND_PINNED_HOST, one.device, size);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	pthread_mutex_unlock(&fake_lock);
	return result;
}

CUresult drv_host_unregister(void *address)
{
	CUresult result = context_to_free();
	struct allocation *one;

	if (result)
		return result;
	if (!address)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&fake_lock);
	one = allocation_containing((uint64_t)address);
	if (!one || one->origin != FROM_HOST_REGISTER)
		result = CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
	else if (one->address != (uint64_t)address)
		result = CUDA_ERROR_INVALID_VALUE;
	else
		allocation_remove(one);
	pthread_mutex_unlock(&fake_lock);
	return result;
}

CUresult drv_mem_info(size_t *avail, size_t *total)
{
	struct fake_context *context = NULL;
	CUresult result = context_current(&context);

	if (result)
		return result;
	if (!avail || !total)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&fake_lock);
	*avail = settings.device_bytes - account_used(context->device);
	*total = settings.device_bytes;
	pthread_mutex_unlock(&fake_lock);
	return CUDA_SUCCESS;
}

CUresult drv_mem_info_v1(unsigned int *avail, unsigned int *total)
{
	size_t wide_avail, wide_total;
	CUresult result = need_first_interface();

	if (!result)
		result = avail && total ? drv_mem_info(&wide_avail, &wide_total)
					: CUDA_ERROR_INVALID_VALUE;
	if (!result) {
		*avail = wide_avail > ~0u ? ~0u : wide_avail;
		*total = wide_total > ~0u ? ~0u : wide_total;
	}
	return result;
}

/* --- copies: device memory has no bytes here, so they only check --- */

static CUresult touch(CUdeviceptr address, size_t size)
{
	struct fake_context *context = NULL;
	CUresult result = context_current(&context);
	struct allocation *one;

	if (result || !size)
		return result;
	pthread_mutex_lock(&fake_lock);
	one = allocation_find(address);
	if (!one)
		one = allocation_containing(address);
	if (one ? size > one->size - (address - one->address) : !vmm_mapped(address, size))
		result = CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_unlock(&fake_lock);
	return result;
}

CUresult drv_copy_to_device(CUdeviceptr to, const void *from, size_t size)
{
	return from || !size ? touch(to, size) : CUDA_ERROR_INVALID_VALUE;
}

CUresult drv_copy_to_host(void *to, CUdeviceptr from, size_t size)
{
	return to || !size ? touch(from, size) : CUDA_ERROR_INVALID_VALUE;
}

CUresult drv_set(CUdeviceptr to, unsigned char value, size_t size)
{
	(void)value;
	return touch(to, size);
}
