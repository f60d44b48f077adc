/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Virtual memory management: address ranges, physical memory, mappings. Physical memory lives until
 * every handle of it is released and every mapping of it is gone, and belongs to no context.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver_calls_impl.h"

#define GRANULARITY (2ull << 20)

struct physical {
	uint64_t size, number;
	enum kind kind;
	int device;
	bool foreign;			/* of another process: not accounted */
	unsigned int handles;
	struct physical *next;
};

struct handle {
	struct physical *physical;
	unsigned int references, mappings;
	bool imported;
	struct handle *next;
};

struct mapping {
	uint64_t address, size;
	struct handle *handle;
	struct mapping *next;
};

struct reservation {
	uint64_t address, size;
	struct reservation *next;
};

static struct physical *physicals;
static struct handle *handles, *spare_handles;
static struct mapping *mappings;
static struct reservation *reservations;
static uint64_t last_number;

static struct handle *find_handle(CUmemGenericAllocationHandle number)
{
	struct handle *one = handles;

	while (one && (uint64_t)one != number)
		one = one->next;
	return one && one->references ? one : NULL;
}

static struct handle *new_handle(struct physical *physical, bool imported)
{
	struct handle *one = spare_handles;

	if (one)
		spare_handles = one->next;
	else if (!(one = malloc(sizeof(*one))))
		return NULL;
	*one = (struct handle){ physical, 1, 0, imported, handles };
	handles = one;
	physical->handles++;
	if (imported)
		account_import(1);
	return one;
}

static void drop_physical(struct physical *physical)
{
	struct physical **link = &physicals;

	if (physical->handles)
		return;
	while (*link != physical)
		link = &(*link)->next;
	*link = physical->next;
	if (!physical->foreign)
		account_remove(physical->kind, physical->device, physical->size);
	free(physical);
}

/* After a release or an unmap: the handle goes when nothing refers to it. */
static void drop_handle(struct handle *handle)
{
	struct handle **link = &handles;

	if (handle->references || handle->mappings)
		return;
	while (*link != handle)
		link = &(*link)->next;
	*link = handle->next;
	if (handle->imported)
		account_import(-1);
	handle->physical->handles--;
	drop_physical(handle->physical);
	handle->next = spare_handles;	/* the number is used again, most recent first */
	spare_handles = handle;
}

static struct handle *new_physical(struct physical value, bool imported)
{
	struct physical *physical = malloc(sizeof(*physical));
	struct handle *handle;

	if (!physical)
		return NULL;
	*physical = value;
	handle = new_handle(physical, imported);
	if (!handle) {
		free(physical);
		return NULL;
	}
	physical->next = physicals;
	physicals = physical;
	return handle;
}

static CUresult check_prop(const CUmemAllocationProp *prop)
{
	if (!prop || prop->type != CU_MEM_ALLOCATION_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	if (prop->location.type == CU_MEM_LOCATION_DEVICE)
		return need_device(prop->location.id);
	if (prop->location.type == CU_MEM_LOCATION_HOST ||
	    prop->location.type == CU_MEM_LOCATION_HOST_NUMA)
		return CUDA_SUCCESS;
	return CUDA_ERROR_INVALID_VALUE;
}

CUresult drv_vmm_granularity(size_t *granularity, const CUmemAllocationProp *prop, int option)
{
	CUresult result = need_init();

	if (result || (result = check_prop(prop)))
		return result;
	if (!granularity || option < 0 || option > 1)
		return CUDA_ERROR_INVALID_VALUE;
	*granularity = GRANULARITY;
	return CUDA_SUCCESS;
}

CUresult drv_vmm_create(CUmemGenericAllocationHandle *handle, size_t size,
			const CUmemAllocationProp *prop, unsigned long long flags)
{
	CUresult result = need_init();
	struct physical value = { .size = size };
	struct handle *fresh = NULL;
	bool on_device;

	if (result || (result = check_prop(prop)))
		return result;
	if (!handle || !size || size % GRANULARITY || flags)
		return CUDA_ERROR_INVALID_VALUE;
	on_device = prop->location.type == CU_MEM_LOCATION_DEVICE;
	value.kind = on_device ? KIND_DEVICE : KIND_PINNED_HOST;
	value.device = on_device ? prop->location.id : 0;
	pthread_mutex_lock(&fake_lock);
	if (account_add(value.kind, value.device, size)) {
		value.number = ++last_number;
		fresh = new_physical(value, false);
		if (!fresh)
			account_remove(value.kind, value.device, size);
	}
	pthread_mutex_unlock(&fake_lock);
	if (!fresh)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*handle = (uint64_t)fresh;
	return CUDA_SUCCESS;
}

CUresult drv_vmm_release(CUmemGenericAllocationHandle number)
{
	CUresult result = need_init();
	struct handle *handle;

	if (result)
		return result;
	pthread_mutex_lock(&fake_lock);
	handle = find_handle(number);
	if (handle) {
		handle->references--;
		drop_handle(handle);
	} else {
		result = CUDA_ERROR_INVALID_VALUE;
	}
	pthread_mutex_unlock(&fake_lock);
	return result;
}

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
	if (!one || !handle || offset || flags || !size || size % GRANULARITY ||
	    size > handle->physical->size || !reserved(address, size) ||
	    overlapping(address, size)) {
		free(one);
		result = CUDA_ERROR_INVALID_VALUE;
	} else {
		*one = (struct mapping){ address, size, handle, mappings };
		mappings = one;
		handle->mappings++;
	}
	pthread_mutex_unlock(&fake_lock);
	return result;
}

/* Bytes of [address, address + size) that whole mappings cover; mappings cut by it count 0. */
static uint64_t covered(uint64_t address, uint64_t size)
{
	uint64_t sum = 0;

	for (struct mapping *one = mappings; one; one = one->next)
		if (one->address >= address && one->address + one->size <= address + size)
			sum += one->size;
	return sum;
}

CUresult drv_vmm_unmap(CUdeviceptr address, size_t size)
{
	CUresult result = need_init();
	struct mapping **link = &mappings, *one;

	if (result)
		return result;
	pthread_mutex_lock(&fake_lock);
	if (!size || address + size < address || covered(address, size) != size) {
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

CUresult drv_vmm_export(void *out, CUmemGenericAllocationHandle number, int type)
{
	CUresult result = need_init();
	struct shared shared;
	struct handle *handle;

	if (result)
		return result;
	if (type == CU_MEM_HANDLE_FABRIC)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!out || type != CU_MEM_HANDLE_POSIX_FD)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&fake_lock);
	handle = find_handle(number);
	if (handle) {
		share_fill(&shared, SHARED_PHYSICAL, handle->physical->device, 0,
			   handle->physical->size);
		shared.number = handle->physical->number;
	}
	pthread_mutex_unlock(&fake_lock);
	return handle ? share_write(out, &shared) : CUDA_ERROR_INVALID_VALUE;
}

CUresult drv_vmm_import(CUmemGenericAllocationHandle *handle, void *from, int type)
{
	CUresult result = need_init();
	struct physical *own = NULL;
	struct shared shared;
	struct handle *fresh;

	if (result)
		return result;
	if (!handle || type != CU_MEM_HANDLE_POSIX_FD)
		return CUDA_ERROR_INVALID_VALUE;
	if ((result = share_read((int)(intptr_t)from, SHARED_PHYSICAL, &shared)))
		return result;
	pthread_mutex_lock(&fake_lock);
	if (shared.pid == (uint32_t)getpid())
		for (own = physicals; own; own = own->next)
			if (own->number == shared.number && !own->foreign)
				break;
	fresh = own ? new_handle(own, true)
		    : new_physical((struct physical){ .size = shared.size,
						      .number = shared.number,
						      .kind = KIND_DEVICE,
						      .device = shared.device,
						      .foreign = true },
				   true);
	pthread_mutex_unlock(&fake_lock);
	if (!fresh)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*handle = (uint64_t)fresh;
	return CUDA_SUCCESS;
}

/* A multicast object has a handle and a size, and no memory of its own. */
CUresult drv_multicast_create(CUmemGenericAllocationHandle *handle,
			      const CUmulticastObjectProp *prop)
{
	CUresult result = need_init();
	struct handle *fresh;

	if (result)
		return result;
	if (!handle || !prop || !prop->size || prop->size % GRANULARITY || !prop->numDevices ||
	    prop->numDevices > (unsigned int)settings.devices)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&fake_lock);
	fresh = new_physical((struct physical){ .size = prop->size, .foreign = true }, false);
	pthread_mutex_unlock(&fake_lock);
	if (!fresh)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*handle = (uint64_t)fresh;
	return CUDA_SUCCESS;
}
