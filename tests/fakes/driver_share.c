/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of other processes and of other interfaces: references, never accounted as memory. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver_calls_impl.h"

#define MAGIC 0x6b61662d6d706d67ull
#define PAGE 4096ull

struct fake_external {
	uint64_t size;
	bool open;
	struct fake_external *next;
};

static struct fake_external *externals;

void share_fill(struct shared *shared, enum shared_what what, int device, uint64_t address,
		uint64_t size)
{
	*shared = (struct shared){ .magic = MAGIC, .what = what, .pid = getpid(),
				   .device = device, .address = address, .size = size };
}

bool share_valid(const struct shared *shared, enum shared_what what)
{
	return shared && shared->magic == MAGIC && shared->what == (uint32_t)what;
}

CUresult share_write(int *fd, const struct shared *shared)
{
	struct shared full = *shared;
	int file = memfd_create("cuda-shared", MFD_CLOEXEC);

	full.magic = MAGIC;
	full.pid = getpid();
	if (file < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (write(file, &full, sizeof(full)) != sizeof(full)) {
		close(file);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*fd = file;
	return CUDA_SUCCESS;
}

CUresult share_read(int fd, enum shared_what what, struct shared *shared)
{
	return pread(fd, shared, sizeof(*shared), 0) == sizeof(*shared) &&
			       share_valid(shared, what)
		       ? CUDA_SUCCESS
		       : CUDA_ERROR_INVALID_VALUE;
}

CUresult import_range(uint64_t size, enum origin origin, const struct shared *key,
		      CUdeviceptr *address)
{
	struct fake_context *context = NULL;
	CUresult result = context_current(&context);
	struct allocation one = { .size = size, .origin = origin, .kind = KIND_DEVICE,
				  .references = 1 };
	void *base;

	if (result)
		return result;
	one.range = (size + PAGE - 1) & ~(PAGE - 1);
	if (!size || one.range < size)
		return CUDA_ERROR_INVALID_VALUE;
	one.device = context->device;
	one.context = context;
	if (key)
		memcpy(one.key, key, sizeof(one.key));
	pthread_mutex_lock(&fake_lock);
	base = mmap(NULL, one.range, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	one.address = (uint64_t)base;
	if (base != MAP_FAILED && allocation_insert(one))
		account_import(1);
	else
		result = CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_unlock(&fake_lock);
	*address = one.address;
	return result;
}

CUresult drv_ipc_get(CUipcMemHandle *handle, CUdeviceptr address)
{
	CUresult result = need_init();
	struct allocation *one;

	if (result)
		return result;
	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&fake_lock);
	one = allocation_containing(address);
	if (one && one->origin == FROM_DEVICE)	/* the handle is of the whole allocation */
		share_fill((struct shared *)handle, SHARED_IPC, one->device, one->address,
			   one->size);
	else
		result = CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_unlock(&fake_lock);
	return result;
}

static struct allocation *ipc_opened(const struct shared *shared)
{
	uint64_t key[4];

	memcpy(key, shared, sizeof(key));
	return allocation_with_key(key);
}

CUresult drv_ipc_open(CUdeviceptr *address, const CUipcMemHandle *handle, unsigned int flags)
{
	const struct shared *shared = (const struct shared *)handle;
	struct fake_context *context = NULL;
	CUresult result = context_current(&context);
	struct allocation *open;

	if (result)
		return result;
	if (!address || flags != 1 || !share_valid(shared, SHARED_IPC))
		return CUDA_ERROR_INVALID_VALUE;
	if (shared->pid == (uint32_t)getpid())
		return CUDA_ERROR_INVALID_CONTEXT;	/* not in the process that exported it */
	pthread_mutex_lock(&fake_lock);
	open = ipc_opened(shared);
	if (open) {
		open->references++;
		*address = open->address;
	}
	pthread_mutex_unlock(&fake_lock);
	return open ? CUDA_SUCCESS : import_range(shared->size, FROM_IPC, shared, address);
}

CUresult drv_ipc_close(CUdeviceptr address)
{
	struct fake_context *context = NULL;
	CUresult result = context_current(&context);
	struct allocation *one;

	if (result)
		return result;
	pthread_mutex_lock(&fake_lock);
	one = allocation_find(address);
	if (!one || one->origin != FROM_IPC)
		result = CUDA_ERROR_INVALID_VALUE;
	else if (!--one->references)
		allocation_remove(one);
	pthread_mutex_unlock(&fake_lock);
	return result;
}

/* --- external memory --- */

static CUresult need_external(CUexternalMemory memory)
{
	CUresult result = need_init();

	if (result)
		return result;
	for (struct fake_external *one = externals; one; one = one->next)
		if (one == memory && one->open)
			return CUDA_SUCCESS;
	return CUDA_ERROR_INVALID_HANDLE;
}

CUresult drv_external_import(CUexternalMemory *memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc)
{
	struct fake_context *context = NULL;
	CUresult result = context_current(&context);
	struct fake_external *fresh;

	if (result)
		return result;
	if (!memory || !desc || desc->type != 1 || desc->handle.fd < 0 || !desc->size)
		return CUDA_ERROR_INVALID_VALUE;
	if (!(fresh = calloc(1, sizeof(*fresh))))
		return CUDA_ERROR_OUT_OF_MEMORY;
	close(desc->handle.fd);	/* the driver owns it from here on */
	fresh->size = desc->size;
	fresh->open = true;
	pthread_mutex_lock(&fake_lock);
	fresh->next = externals;
	externals = fresh;
	pthread_mutex_unlock(&fake_lock);
	*memory = fresh;
	return CUDA_SUCCESS;
}

CUresult drv_external_buffer(CUdeviceptr *address, CUexternalMemory memory,
			     const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *desc)
{
	CUresult result = need_external(memory);

	if (result)
		return result;
	if (!address || !desc || desc->flags || desc->offset > memory->size ||
	    desc->size > memory->size - desc->offset)
		return CUDA_ERROR_INVALID_VALUE;
	return import_range(desc->size, FROM_EXTERNAL, NULL, address);
}

CUresult drv_external_mipmap(CUmipmappedArray *array, CUexternalMemory memory,
			     const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC *desc)
{
	CUresult result = need_external(memory);

	if (result)
		return result;
	if (!desc || desc->offset > memory->size)
		return CUDA_ERROR_INVALID_VALUE;
	return mipmap_over_import(array, &desc->arrayDesc, desc->numLevels);
}

CUresult drv_external_destroy(CUexternalMemory memory)
{
	CUresult result = need_external(memory);

	if (!result)
		memory->open = false;
	return result;
}
