/* SPDX-License-Identifier: Apache-2.0 */
/* Virtual memory management: address ranges, and what is mapped there. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>

#include "driver_vmm.h"

struct mapping {
	uint64_t address, size;
	struct handle *handle;
	struct mapping *next;
};

struct reservation {
	uint64_t address, size;
	struct reservation *next;
};

static struct mapping *mappings;
static struct reservation *reservations;

CUresult drv_vmm_reserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr wanted,
			 unsigned long long flags)
{
	CUresult result = need_init();
	uint64_t align = alignment > GRANULARITY ? alignment : GRANULARITY, base, start;
	struct reservation *one;
	void *mapped;

	if (result)
		return result;
	if (!address || !size || size % GRANULARITY || (align & (align - 1)) || flags ||
	    size + align < size)
		return CUDA_ERROR_INVALID_VALUE;
	mapped = mmap((void *)wanted, size + align, PROT_NONE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	one = malloc(sizeof(*one));
	if (mapped == MAP_FAILED || !one) {
		free(one);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	base = (uint64_t)mapped;
	start = (base + align - 1) & ~(align - 1);
	if (start > base)
		munmap(mapped, start - base);
	munmap((void *)(start + size), base + align - start);
	one->address = start;
	one->size = size;
	pthread_mutex_lock(&fake_lock);
	one->next = reservations;
	reservations = one;
	pthread_mutex_unlock(&fake_lock);
	*address = start;
	return CUDA_SUCCESS;
}

static struct mapping *overlapping(uint64_t address, uint64_t size)
{
	struct mapping *one = mappings;

	while (one && (one->address >= address + size || address >= one->address + one->size))
		one = one->next;
	return one;
}

CUresult drv_vmm_unreserve(CUdeviceptr address, size_t size)
{
	CUresult result = need_init();
	struct reservation **link, *one;

	if (result)
		return result;
	pthread_mutex_lock(&fake_lock);
	for (link = &reservations; (one = *link); link = &one->next)
		if (one->address == address)
			break;
	if (!one || one->size != size || overlapping(address, size)) {
		result = CUDA_ERROR_INVALID_VALUE;
	} else {
		*link = one->next;
		munmap((void *)one->address, one->size);
		free(one);
	}
	pthread_mutex_unlock(&fake_lock);
	return result;
}

static bool reserved(uint64_t address, uint64_t size)
{
	for (struct reservation *one = reservations; one; one = one->next)
		if (address >= one->address && address - one->address < one->size &&
		    size <= one->size - (address - one->address))
			return true;
	return false;
}

CUresult drv_vmm_map(CUdeviceptr address, size_t size, size_t offset,
		     CUmemGenericAllocationHandle number, unsigned long long flags)
{
	CUresult result = need_init();
	struct mapping *one;
	struct handle *handle;

	if (result)
		return result;
	pthread_mutex_lock(&fake_lock);
	handle = find_handle(number);
	one = malloc(sizeof(*one));
	if (!one || !handle || flags || !size || size % GRANULARITY || !reserved(address, size) ||
	    overlapping(address, size)) {
		free(one);
		result = CUDA_ERROR_INVALID_VALUE;
	} else if (offset || size != handle->physical->size) {
		free(one);
		result = CUDA_ERROR_NOT_SUPPORTED;	/* only whole, as the genuine one */
	} else {
		*one = (struct mapping){ address, size, handle, mappings };
		mappings = one;
		handle->mappings++;
	}
	pthread_mutex_unlock(&fake_lock);
	return result;
}

/* Whether a mapping lies partly inside and partly outside of [address, address + size). */
static bool cuts(uint64_t address, uint64_t size)
{
	for (struct mapping *one = mappings; one; one = one->next)
		if (one->address < address + size && address < one->address + one->size &&
		    (one->address < address || one->address + one->size > address + size))
			return true;
	return false;
}

CUresult drv_vmm_unmap(CUdeviceptr address, size_t size)
{
	CUresult result = need_init();
	struct mapping **link = &mappings, *one;

	if (result)
		return result;
	pthread_mutex_lock(&fake_lock);
	if (!size || !reserved(address, size) || cuts(address, size)) {
		result = CUDA_ERROR_INVALID_VALUE;
	} else {
		while ((one = *link)) {
			if (one->address < address || one->address >= address + size) {
				link = &one->next;
				continue;
			}
			*link = one->next;
			one->handle->mappings--;
			drop_handle(one->handle);
			free(one);
		}
	}
	pthread_mutex_unlock(&fake_lock);
	return result;
}

bool vmm_mapped(uint64_t address, uint64_t size)
{
	while (size) {
		struct mapping *one = overlapping(address, 1);
		uint64_t here;

		if (!one)
			return false;
		here = one->address + one->size - address;
		if (here >= size)
			return true;
		address += here;
		size -= here;
	}
	return true;
}

CUresult drv_vmm_set_access(CUdeviceptr address, size_t size, const CUmemAccessDesc *access,
			    size_t count)
{
	CUresult result = need_init();

	if (result)
		return result;
	if (!access || !count || !size)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&fake_lock);
	result = vmm_mapped(address, size) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_unlock(&fake_lock);
	return result;
}

CUresult drv_vmm_retain(CUmemGenericAllocationHandle *handle, void *address)
{
	CUresult result = need_init();
	struct mapping *one;

	if (result)
		return result;
	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&fake_lock);
	one = overlapping((uint64_t)address, 1);
	if (one) {
		one->handle->references++;
		*handle = (uint64_t)one->handle;
	} else {
		result = CUDA_ERROR_INVALID_VALUE;
	}
	pthread_mutex_unlock(&fake_lock);
	return result;
}
