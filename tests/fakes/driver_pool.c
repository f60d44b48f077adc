/* SPDX-License-Identifier: Apache-2.0 */
/* Stream-ordered allocation and memory pools. A pool holds nothing beyond what is allocated. */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver_calls_impl.h"

struct fake_pool {
	int device;
	bool imported, destroyed;
	uint64_t used, high, limit, threshold;
	struct fake_pool *next;
};

static struct fake_pool default_pools[MAX_DEVICES], *current_pools[MAX_DEVICES], *pools;

static struct fake_pool *default_pool(int device)
{
	default_pools[device].device = device;
	return &default_pools[device];
}

static bool pool_lives(const struct fake_pool *pool)
{
	for (int i = 0; i < MAX_DEVICES; i++)
		if (pool == &default_pools[i])
			return true;
	for (struct fake_pool *one = pools; one; one = one->next)
		if (one == pool)
			return !one->destroyed;
	return false;
}

void pool_shrink(struct fake_pool *pool, uint64_t size)
{
	pool->used -= size;
}

static CUresult take(CUdeviceptr *address, size_t size, struct fake_pool *pool)
{
	struct fake_context *context = NULL;
	CUresult result = context_current(&context);
	struct allocation one = { .size = size, .origin = FROM_POOL, .kind = KIND_DEVICE };

	if (result)
		return result;
	if (!address)
		return CUDA_ERROR_INVALID_VALUE;
	*address = 0;
	if (!size)	/* nothing asked for, nothing given */
		return CUDA_SUCCESS;
	pthread_mutex_lock(&fake_lock);
	if (!pool && !(pool = current_pools[context->device]))
		pool = default_pool(context->device);
	one.pool = pool;
	if (!pool_lives(pool) || pool->imported) {
		result = CUDA_ERROR_INVALID_VALUE;
	} else if ((pool->limit && size > pool->limit - pool->used) ||
		   !account_add(KIND_DEVICE, pool->device, size)) {
		result = CUDA_ERROR_OUT_OF_MEMORY;
	} else {
		one.device = pool->device;	/* of no context: it outlives them all */
		one.address = arena_take(one.device, size, false, &one.range);
		if (one.address && allocation_insert(one)) {
			pool->used += size;
			pool->high = pool->used > pool->high ? pool->used : pool->high;
			*address = one.address;
		} else {
			account_remove(KIND_DEVICE, one.device, size);
			result = CUDA_ERROR_OUT_OF_MEMORY;
		}
	}
	pthread_mutex_unlock(&fake_lock);
	return result;
}

CUresult drv_alloc_async(CUdeviceptr *address, size_t size, CUstream stream)
{
	(void)stream;
	return take(address, size, NULL);
}

CUresult drv_alloc_from_pool(CUdeviceptr *address, size_t size, CUmemoryPool pool, CUstream stream)
{
	(void)stream;
	return pool ? take(address, size, pool) : CUDA_ERROR_INVALID_VALUE;
}

CUresult drv_free_async(CUdeviceptr address, CUstream stream)
{
	(void)stream;
	return drv_mem_free(address);
}

CUresult drv_pool_create(CUmemoryPool *pool, const CUmemPoolProps *props)
{
	CUresult result = need_init();
	struct fake_pool *fresh;

	if (result)
		return result;
	if (!pool || !props || props->allocType != CU_MEM_ALLOCATION_PINNED ||
	    props->location.type != CU_MEM_LOCATION_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	if ((result = need_device(props->location.id)))
		return result;
	if (!(fresh = calloc(1, sizeof(*fresh))))
		return CUDA_ERROR_OUT_OF_MEMORY;
	fresh->device = props->location.id;
	fresh->limit = props->maxSize;
	pthread_mutex_lock(&fake_lock);
	fresh->next = pools;
	pools = fresh;
	pthread_mutex_unlock(&fake_lock);
	*pool = fresh;
	return CUDA_SUCCESS;
}

CUresult drv_pool_destroy(CUmemoryPool pool)
{
	CUresult result = need_init();

	if (result)
		return result;
	pthread_mutex_lock(&fake_lock);
	if (!pool_lives(pool) || pool == default_pool(pool->device)) {
		result = CUDA_ERROR_INVALID_VALUE;
	} else {
		/* what was allocated from it lives on until it is freed */
		pool->destroyed = true;
		if (current_pools[pool->device] == pool)
			current_pools[pool->device] = NULL;
	}
	pthread_mutex_unlock(&fake_lock);
	return result;
}

static CUresult need_pool(CUmemoryPool pool)
{
	CUresult result = need_init();
	return result ? result : pool_lives(pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult drv_pool_trim(CUmemoryPool pool, size_t keep)
{
	(void)keep;
	return need_pool(pool);
}

CUresult drv_pool_set_attribute(CUmemoryPool pool, int attribute, void *value)
{
	CUresult result = need_pool(pool);

	if (!result && !value)
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result && attribute == CU_MEMPOOL_RELEASE_THRESHOLD)
		pool->threshold = *(uint64_t *)value;
	return result;
}

CUresult drv_pool_get_attribute(CUmemoryPool pool, int attribute, void *value)
{
	CUresult result = need_pool(pool);

	if (result)
		return result;
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	switch (attribute) {
	case CU_MEMPOOL_RELEASE_THRESHOLD:
		*(uint64_t *)value = pool->threshold;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_RESERVED_CURRENT:
	case CU_MEMPOOL_USED_CURRENT:
		*(uint64_t *)value = pool->used;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_RESERVED_HIGH:
	case CU_MEMPOOL_USED_HIGH:
		*(uint64_t *)value = pool->high;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

CUresult drv_pool_set_access(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count)
{
	(void)count;
	return access ? need_pool(pool) : CUDA_ERROR_INVALID_VALUE;
}

CUresult drv_device_default_pool(CUmemoryPool *pool, CUdevice device)
{
	CUresult result = need_device(device);

	if (!result && pool)
		*pool = default_pool(device);
	return result ? result : pool ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult drv_device_get_pool(CUmemoryPool *pool, CUdevice device)
{
	CUresult result = drv_device_default_pool(pool, device);

	if (!result && current_pools[device])
		*pool = current_pools[device];
	return result;
}

CUresult drv_device_set_pool(CUdevice device, CUmemoryPool pool)
{
	CUresult result = need_device(device);

	if (!result && !(result = need_pool(pool)))
		current_pools[device] = pool;
	return result;
}

/* --- pools of other processes: handles are files which say what they stand for --- */

CUresult drv_pool_export(void *out, CUmemoryPool pool, int type)
{
	CUresult result = need_pool(pool);

	if (result)
		return result;
	if (!out || type != CU_MEM_HANDLE_POSIX_FD)
		return CUDA_ERROR_INVALID_VALUE;
	return share_write((int *)out, &(struct shared){ .what = SHARED_POOL,
							 .device = pool->device });
}

CUresult drv_pool_import(CUmemoryPool *pool, void *handle, int type)
{
	struct shared shared;
	CUresult result = need_init();
	struct fake_pool *fresh;

	if (result)
		return result;
	if (!pool || type != CU_MEM_HANDLE_POSIX_FD)
		return CUDA_ERROR_INVALID_VALUE;
	if ((result = share_read((int)(intptr_t)handle, SHARED_POOL, &shared)))
		return result;
	if (!(fresh = calloc(1, sizeof(*fresh))))
		return CUDA_ERROR_OUT_OF_MEMORY;
	fresh->device = shared.device;
	fresh->imported = true;
	pthread_mutex_lock(&fake_lock);
	fresh->next = pools;
	pools = fresh;
	pthread_mutex_unlock(&fake_lock);
	*pool = fresh;
	return CUDA_SUCCESS;
}

CUresult drv_pool_export_pointer(CUmemPoolPtrExportData *data, CUdeviceptr address)
{
	struct shared *shared = (struct shared *)data;
	struct allocation *one;
	CUresult result = need_init();

	if (result)
		return result;
	if (!data)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&fake_lock);
	one = allocation_find(address);
	if (one && one->origin == FROM_POOL)
		share_fill(shared, SHARED_POINTER, one->device, address, one->size);
	else
		result = CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_unlock(&fake_lock);
	return result;
}

CUresult drv_pool_import_pointer(CUdeviceptr *address, CUmemoryPool pool,
				 CUmemPoolPtrExportData *data)
{
	const struct shared *shared = (const struct shared *)data;
	CUresult result = need_pool(pool);

	if (result)
		return result;
	if (!address || !pool->imported || !share_valid(shared, SHARED_POINTER))
		return CUDA_ERROR_INVALID_VALUE;
	return import_range(shared->size, FROM_POOL_IMPORT, shared, address);
}
