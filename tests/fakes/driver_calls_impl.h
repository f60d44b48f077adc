/* SPDX-License-Identifier: Apache-2.0 */
/* The functions that carry out the rows of driver_calls.h, by file. */
#ifndef DRIVER_CALLS_IMPL_H
#define DRIVER_CALLS_IMPL_H

#include "driver.h"

/* driver_device.c */
CUresult drv_driver_version(int *version);
CUresult drv_error_name(CUresult error, const char **name);
CUresult drv_error_string(CUresult error, const char **text);
CUresult drv_device_count(int *count);
CUresult drv_device_get(CUdevice *device, int ordinal);
CUresult drv_device_name(char *name, int len, CUdevice device);
CUresult drv_device_uuid(CUuuid *uuid, CUdevice device);
CUresult drv_device_pci(char *id, int len, CUdevice device);
CUresult drv_device_total(size_t *bytes, CUdevice device);
CUresult drv_stream_create(CUstream *stream, unsigned int flags);
CUresult drv_stream_destroy(CUstream stream);
CUresult drv_stream_synchronize(CUstream stream);

/* driver_exports.c */
CUresult drv_get_proc_address(const char *symbol, void **address, int version, uint64_t flags,
			      int *status);
CUresult drv_export_table(const void **table, const CUuuid *id);

/* driver_context.c */
CUresult drv_init(unsigned int flags);
CUresult drv_context_create_v1(CUcontext *context, CUdevice device);
CUresult drv_context_create(CUcontext *context, CUdevice device);
CUresult drv_context_destroy(CUcontext context);
CUresult drv_context_attach(CUcontext *context, unsigned int flags);
CUresult drv_context_detach(CUcontext context);
CUresult drv_context_set_current(CUcontext context);
CUresult drv_context_get_current(CUcontext *context);
CUresult drv_context_push(CUcontext context);
CUresult drv_context_pop(CUcontext *context);
CUresult drv_context_device(CUdevice *device);
CUresult drv_context_synchronize(void);
CUcontext primary_open(CUdevice device);
CUresult drv_primary_retain(CUcontext *context, CUdevice device);
CUresult drv_primary_release(CUdevice device);
CUresult drv_primary_reset(CUdevice device);
CUresult drv_primary_state(CUdevice device, unsigned int *flags, int *active);

/* driver_memory.c */
CUresult drv_mem_info(size_t *avail, size_t *total);
CUresult drv_mem_info_v1(unsigned int *avail, unsigned int *total);
CUresult drv_mem_alloc(CUdeviceptr *address, size_t size);
CUresult drv_mem_alloc_v1(CUdeviceptr_v1 *address, unsigned int size);
CUresult drv_mem_alloc_pitch(CUdeviceptr *address, size_t *pitch, size_t width, size_t height,
			     unsigned int element);
CUresult drv_mem_alloc_pitch_v1(CUdeviceptr_v1 *address, unsigned int *pitch, unsigned int width,
				unsigned int height, unsigned int element);
CUresult drv_mem_alloc_managed(CUdeviceptr *address, size_t size, unsigned int flags);
CUresult drv_mem_free_v1(CUdeviceptr_v1 address);
CUresult drv_mem_free(CUdeviceptr address);
CUresult drv_host_alloc(void **address, size_t size, unsigned int flags);
CUresult drv_host_free(void *address);
CUresult drv_host_register(void *address, size_t size, unsigned int flags);
CUresult drv_host_unregister(void *address);
CUresult drv_copy_to_device(CUdeviceptr to, const void *from, size_t size);
CUresult drv_copy_to_host(void *to, CUdeviceptr from, size_t size);
CUresult drv_set(CUdeviceptr to, unsigned char value, size_t size);

/* driver_array.c */
CUresult drv_array_create_v1(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *desc);
CUresult drv_array_create(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *desc);
CUresult drv_array_3d_create_v1(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *desc);
CUresult drv_array_3d_create(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *desc);
CUresult drv_array_destroy(CUarray array);
CUresult drv_mipmap_create(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *desc,
			   unsigned int levels);
CUresult drv_mipmap_level(CUarray *level_array, CUmipmappedArray array, unsigned int level);
CUresult drv_mipmap_destroy(CUmipmappedArray array);
/* A mipmapped array over memory of another owner: takes no bytes. */
CUresult mipmap_over_import(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *desc,
			    unsigned int levels);

/* driver_pool.c */
CUresult drv_alloc_async(CUdeviceptr *address, size_t size, CUstream stream);
CUresult drv_alloc_from_pool(CUdeviceptr *address, size_t size, CUmemoryPool pool, CUstream stream);
CUresult drv_free_async(CUdeviceptr address, CUstream stream);
CUresult drv_pool_create(CUmemoryPool *pool, const CUmemPoolProps *props);
CUresult drv_pool_destroy(CUmemoryPool pool);
CUresult drv_pool_trim(CUmemoryPool pool, size_t keep);
CUresult drv_pool_set_attribute(CUmemoryPool pool, int attribute, void *value);
CUresult drv_pool_get_attribute(CUmemoryPool pool, int attribute, void *value);
CUresult drv_pool_set_access(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count);
CUresult drv_device_default_pool(CUmemoryPool *pool, CUdevice device);
CUresult drv_device_get_pool(CUmemoryPool *pool, CUdevice device);
CUresult drv_device_set_pool(CUdevice device, CUmemoryPool pool);
CUresult drv_pool_export(void *out, CUmemoryPool pool, int type);
CUresult drv_pool_import(CUmemoryPool *pool, void *handle, int type);
CUresult drv_pool_export_pointer(CUmemPoolPtrExportData *data, CUdeviceptr address);
CUresult drv_pool_import_pointer(CUdeviceptr *address, CUmemoryPool pool,
				 CUmemPoolPtrExportData *data);

/* driver_vmm.c */
CUresult drv_vmm_granularity(size_t *granularity, const CUmemAllocationProp *prop, int option);
CUresult drv_vmm_reserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr wanted,
			 unsigned long long flags);
CUresult drv_vmm_unreserve(CUdeviceptr address, size_t size);
CUresult drv_vmm_create(CUmemGenericAllocationHandle *handle, size_t size,
			const CUmemAllocationProp *prop, unsigned long long flags);
CUresult drv_vmm_release(CUmemGenericAllocationHandle handle);
CUresult drv_vmm_map(CUdeviceptr address, size_t size, size_t offset,
		     CUmemGenericAllocationHandle handle, unsigned long long flags);
CUresult drv_vmm_unmap(CUdeviceptr address, size_t size);
CUresult drv_vmm_set_access(CUdeviceptr address, size_t size, const CUmemAccessDesc *access,
			    size_t count);
CUresult drv_vmm_retain(CUmemGenericAllocationHandle *handle, void *address);
CUresult drv_vmm_export(void *out, CUmemGenericAllocationHandle handle, int type);
CUresult drv_vmm_import(CUmemGenericAllocationHandle *handle, void *shared, int type);
CUresult drv_multicast_create(CUmemGenericAllocationHandle *handle,
			      const CUmulticastObjectProp *prop);
/* Whether the whole range is mapped; with fake_lock held. */
bool vmm_mapped(uint64_t address, uint64_t size);

/* driver_share.c */
enum shared_what { SHARED_PHYSICAL = 1, SHARED_POOL, SHARED_POINTER, SHARED_IPC };

/* What a handle that travels between processes says; fits the 64 bytes of the genuine ones. */
struct shared {
	uint64_t magic;
	uint32_t what, pid;
	int64_t device;
	uint64_t address, size, number, unused;
};
_Static_assert(sizeof(struct shared) <= 64, "fits CUipcMemHandle");

void share_fill(struct shared *shared, enum shared_what what, int device, uint64_t address,
		uint64_t size);
bool share_valid(const struct shared *shared, enum shared_what what);
CUresult share_write(int *fd, const struct shared *shared);
CUresult share_read(int fd, enum shared_what what, struct shared *shared);
/* Address space for memory of another owner. */
CUresult import_range(uint64_t size, enum origin origin, const struct shared *key,
		      CUdeviceptr *address);

CUresult drv_ipc_get(CUipcMemHandle *handle, CUdeviceptr address);
CUresult drv_ipc_open(CUdeviceptr *address, const CUipcMemHandle *handle, unsigned int flags);
CUresult drv_ipc_close(CUdeviceptr address);
CUresult drv_external_import(CUexternalMemory *memory,
			     const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc);
CUresult drv_external_buffer(CUdeviceptr *address, CUexternalMemory memory,
			     const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *desc);
CUresult drv_external_mipmap(CUmipmappedArray *array, CUexternalMemory memory,
			     const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC *desc);
CUresult drv_external_destroy(CUexternalMemory memory);

#endif
