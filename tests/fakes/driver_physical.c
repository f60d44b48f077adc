/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Physical memory and its handles. It lives until every handle of it is released and every mapping
 * of it is gone, and belongs to no context.
 */
#include <stdlib.h>
#include <unistd.h>

#include "driver_vmm.h"

static struct physical *physicals;
static struct handle *handles, *spare_handles;
static uint64_t last_number;

struct handle *find_handle(CUmemGenericAllocationHandle number)
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

void drop_handle(struct handle *handle)
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
