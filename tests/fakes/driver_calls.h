/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every call that the stand-in libcuda.so.1 exports, one a row:
 *
 *   C(exported name, name asked of cuGetProcAddress, CUDA version it came with,
 *     1 for the per-thread-stream variant, (parameters), (arguments), what carries it out)
 *
 * Variants of a call share what carries it out; each has an entry of its own, as in the real file.
 */
#ifndef DRIVER_CALLS_H
#define DRIVER_CALLS_H

#include "cuda_types.h"

#define DRIVER_CALLS(C)                                                                            \
	/* start, devices */                                                                       \
	C(cuInit, "cuInit", 2000, 0, (unsigned int flags), (flags), drv_init)                      \
	C(cuDriverGetVersion, "cuDriverGetVersion", 2020, 0, (int *version), (version),            \
	  drv_driver_version)                                                                      \
	C(cuGetErrorName, "cuGetErrorName", 6000, 0, (CUresult error, const char **name),          \
	  (error, name), drv_error_name)                                                           \
	C(cuGetErrorString, "cuGetErrorString", 6000, 0, (CUresult error, const char **text),      \
	  (error, text), drv_error_string)                                                         \
	C(cuDeviceGetCount, "cuDeviceGetCount", 2000, 0, (int *count), (count), drv_device_count)  \
	C(cuDeviceGet, "cuDeviceGet", 2000, 0, (CUdevice *device, int ordinal), (device, ordinal), \
	  drv_device_get)                                                                          \
	C(cuDeviceGetName, "cuDeviceGetName", 2000, 0, (char *name, int len, CUdevice device),     \
	  (name, len, device), drv_device_name)                                                    \
	C(cuDeviceGetUuid, "cuDeviceGetUuid", 9020, 0, (CUuuid *uuid, CUdevice device),            \
	  (uuid, device), drv_device_uuid)                                                         \
	C(cuDeviceGetUuid_v2, "cuDeviceGetUuid", 11040, 0, (CUuuid *uuid, CUdevice device),        \
	  (uuid, device), drv_device_uuid)                                                         \
	C(cuDeviceGetPCIBusId, "cuDeviceGetPCIBusId", 4010, 0,                                     \
	  (char *id, int len, CUdevice device), (id, len, device), drv_device_pci)                 \
	C(cuDeviceTotalMem_v2, "cuDeviceTotalMem", 3020, 0, (size_t *bytes, CUdevice device),      \
	  (bytes, device), drv_device_total)                                                       \
	C(cuGetProcAddress, "cuGetProcAddress", 11030, 0,                                          \
	  (const char *symbol, void **address, int version, uint64_t flags),                       \
	  (symbol, address, version, flags, NULL), drv_get_proc_address)                           \
	C(cuGetProcAddress_v2, "cuGetProcAddress", 12000, 0,                                       \
	  (const char *symbol, void **address, int version, uint64_t flags, int *status),          \
	  (symbol, address, version, flags, status), drv_get_proc_address)                         \
	C(cuGetExportTable, "cuGetExportTable", 3000, 0, (const void **table, const CUuuid *id),   \
	  (table, id), drv_export_table)                                                           \
	/* contexts */                                                                             \
	C(cuCtxCreate, "cuCtxCreate", 2000, 0,                                                     \
	  (CUcontext * context, unsigned int flags, CUdevice device), (context, device),           \
	  drv_context_create_v1)                                                                      \
	C(cuCtxCreate_v2, "cuCtxCreate", 3020, 0,                                                  \
	  (CUcontext * context, unsigned int flags, CUdevice device), (context, device),           \
	  drv_context_create)                                                                      \
	C(cuCtxCreate_v3, "cuCtxCreate", 11040, 0,                                                 \
	  (CUcontext * context, void *affinity, int count, unsigned int flags, CUdevice device),   \
	  (context, device), drv_context_create)                                                   \
	C(cuCtxCreate_v4, "cuCtxCreate", 12050, 0,                                                 \
	  (CUcontext * context, void *create, unsigned int flags, CUdevice device),                \
	  (context, device), drv_context_create)                                                   \
	C(cuCtxDestroy, "cuCtxDestroy", 2000, 0, (CUcontext context), (context),                   \
	  drv_context_destroy)                                                                     \
	C(cuCtxDestroy_v2, "cuCtxDestroy", 4000, 0, (CUcontext context), (context),                \
	  drv_context_destroy)                                                                     \
	C(cuCtxAttach, "cuCtxAttach", 2000, 0, (CUcontext * context, unsigned int flags),          \
	  (context, flags), drv_context_attach)                                                    \
	C(cuCtxDetach, "cuCtxDetach", 2000, 0, (CUcontext context), (context), drv_context_detach) \
	C(cuCtxSetCurrent, "cuCtxSetCurrent", 4000, 0, (CUcontext context), (context),             \
	  drv_context_set_current)                                                                 \
	C(cuCtxGetCurrent, "cuCtxGetCurrent", 4000, 0, (CUcontext * context), (context),           \
	  drv_context_get_current)                                                                 \
	C(cuCtxPushCurrent, "cuCtxPushCurrent", 2000, 0, (CUcontext context), (context),           \
	  drv_context_push)                                                                        \
	C(cuCtxPushCurrent_v2, "cuCtxPushCurrent", 4000, 0, (CUcontext context), (context),        \
	  drv_context_push)                                                                        \
	C(cuCtxPopCurrent, "cuCtxPopCurrent", 2000, 0, (CUcontext * context), (context),           \
	  drv_context_pop)                                                                         \
	C(cuCtxPopCurrent_v2, "cuCtxPopCurrent", 4000, 0, (CUcontext * context), (context),        \
	  drv_context_pop)                                                                         \
	C(cuCtxGetDevice, "cuCtxGetDevice", 2000, 0, (CUdevice * device), (device),                \
	  drv_context_device)                                                                      \
	C(cuCtxSynchronize, "cuCtxSynchronize", 2000, 0, (void), (), drv_context_synchronize)      \
	C(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000, 0,                           \
	  (CUcontext * context, CUdevice device), (context, device), drv_primary_retain)           \
	C(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease", 7000, 0, (CUdevice device),      \
	  (device), drv_primary_release)                                                           \
	C(cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease", 11000, 0, (CUdevice device),  \
	  (device), drv_primary_release)                                                           \
	C(cuDevicePrimaryCtxReset, "cuDevicePrimaryCtxReset", 7000, 0, (CUdevice device),          \
	  (device), drv_primary_reset)                                                             \
	C(cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset", 11000, 0, (CUdevice device),      \
	  (device), drv_primary_reset)                                                             \
	C(cuDevicePrimaryCtxGetState, "cuDevicePrimaryCtxGetState", 7000, 0,                       \
	  (CUdevice device, unsigned int *flags, int *active), (device, flags, active),            \
	  drv_primary_state)                                                                       \
	/* device, managed and pinned host memory */                                               \
	C(cuMemGetInfo, "cuMemGetInfo", 2000, 0, (unsigned int *avail, unsigned int *total),       \
	  (avail, total), drv_mem_info_v1)                                                         \
	C(cuMemGetInfo_v2, "cuMemGetInfo", 3020, 0, (size_t *avail, size_t *total),                \
	  (avail, total), drv_mem_info)                                                            \
	C(cuMemAlloc, "cuMemAlloc", 2000, 0, (CUdeviceptr_v1 * address, unsigned int size),        \
	  (address, size), drv_mem_alloc_v1)                                                       \
	C(cuMemAlloc_v2, "cuMemAlloc", 3020, 0, (CUdeviceptr * address, size_t size),              \
	  (address, size), drv_mem_alloc)                                                          \
	C(cuMemAllocPitch, "cuMemAllocPitch", 2000, 0,                                             \
	  (CUdeviceptr_v1 * address, unsigned int *pitch, unsigned int width, unsigned int height, \
	   unsigned int element),                                                                  \
	  (address, pitch, width, height, element), drv_mem_alloc_pitch_v1)                        \
	C(cuMemAllocPitch_v2, "cuMemAllocPitch", 3020, 0,                                          \
	  (CUdeviceptr * address, size_t *pitch, size_t width, size_t height,                      \
	   unsigned int element),                                                                  \
	  (address, pitch, width, height, element), drv_mem_alloc_pitch)                           \
	C(cuMemAllocManaged, "cuMemAllocManaged", 6000, 0,                                         \
	  (CUdeviceptr * address, size_t size, unsigned int flags), (address, size, flags),        \
	  drv_mem_alloc_managed)                                                                   \
	C(cuMemFree, "cuMemFree", 2000, 0, (CUdeviceptr_v1 address), (address), drv_mem_free_v1)      \
	C(cuMemFree_v2, "cuMemFree", 3020, 0, (CUdeviceptr address), (address), drv_mem_free)      \
	C(cuMemAllocHost, "cuMemAllocHost", 2000, 0, (void **address, unsigned int size),          \
	  (address, size, 0), drv_host_alloc)                                                      \
	C(cuMemAllocHost_v2, "cuMemAllocHost", 3020, 0, (void **address, size_t size),             \
	  (address, size, 0), drv_host_alloc)                                                      \
	C(cuMemHostAlloc, "cuMemHostAlloc", 2020, 0,                                               \
	  (void **address, size_t size, unsigned int flags), (address, size, flags),               \
	  drv_host_alloc)                                                                          \
	C(cuMemFreeHost, "cuMemFreeHost", 2000, 0, (void *address), (address), drv_host_free)      \
	C(cuMemHostRegister, "cuMemHostRegister", 4000, 0,                                         \
	  (void *address, size_t size, unsigned int flags), (address, size, flags),                \
	  drv_host_register)                                                                       \
	C(cuMemHostRegister_v2, "cuMemHostRegister", 6050, 0,                                      \
	  (void *address, size_t size, unsigned int flags), (address, size, flags),                \
	  drv_host_register)                                                                       \
	C(cuMemHostUnregister, "cuMemHostUnregister", 4000, 0, (void *address), (address),         \
	  drv_host_unregister)                                                                     \
	/* arrays */                                                                               \
	C(cuArrayCreate, "cuArrayCreate", 2000, 0,                                                 \
	  (CUarray * array, const CUDA_ARRAY_DESCRIPTOR_v1 *desc), (array, desc),                  \
	  drv_array_create_v1)                                                                     \
	C(cuArrayCreate_v2, "cuArrayCreate", 3020, 0,                                              \
	  (CUarray * array, const CUDA_ARRAY_DESCRIPTOR *desc), (array, desc), drv_array_create)   \
	C(cuArray3DCreate, "cuArray3DCreate", 2000, 0,                                             \
	  (CUarray * array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *desc), (array, desc),                \
	  drv_array_3d_create_v1)                                                                  \
	C(cuArray3DCreate_v2, "cuArray3DCreate", 3020, 0,                                          \
	  (CUarray * array, const CUDA_ARRAY3D_DESCRIPTOR *desc), (array, desc),                   \
	  drv_array_3d_create)                                                                     \
	C(cuArrayDestroy, "cuArrayDestroy", 2000, 0, (CUarray array), (array), drv_array_destroy)  \
	C(cuMipmappedArrayCreate, "cuMipmappedArrayCreate", 5000, 0,                               \
	  (CUmipmappedArray * array, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned int levels),    \
	  (array, desc, levels), drv_mipmap_create)                                                \
	C(cuMipmappedArrayGetLevel, "cuMipmappedArrayGetLevel", 5000, 0,                           \
	  (CUarray * level_array, CUmipmappedArray array, unsigned int level),                     \
	  (level_array, array, level), drv_mipmap_level)                                           \
	C(cuMipmappedArrayDestroy, "cuMipmappedArrayDestroy", 5000, 0, (CUmipmappedArray array),   \
	  (array), drv_mipmap_destroy)                                                             \
	/* stream-ordered allocation and pools */                                                  \
	C(cuMemAllocAsync, "cuMemAllocAsync", 11020, 0,                                            \
	  (CUdeviceptr * address, size_t size, CUstream stream), (address, size, stream),          \
	  drv_alloc_async)                                                                         \
	C(cuMemAllocAsync_ptsz, "cuMemAllocAsync", 11020, 1,                                       \
	  (CUdeviceptr * address, size_t size, CUstream stream), (address, size, stream),          \
	  drv_alloc_async)                                                                         \
	C(cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", 11020, 0,                            \
	  (CUdeviceptr * address, size_t size, CUmemoryPool pool, CUstream stream),                \
	  (address, size, pool, stream), drv_alloc_from_pool)                                      \
	C(cuMemAllocFromPoolAsync_ptsz, "cuMemAllocFromPoolAsync", 11020, 1,                       \
	  (CUdeviceptr * address, size_t size, CUmemoryPool pool, CUstream stream),                \
	  (address, size, pool, stream), drv_alloc_from_pool)                                      \
	C(cuMemFreeAsync, "cuMemFreeAsync", 11020, 0, (CUdeviceptr address, CUstream stream),      \
	  (address, stream), drv_free_async)                                                       \
	C(cuMemFreeAsync_ptsz, "cuMemFreeAsync", 11020, 1, (CUdeviceptr address, CUstream stream), \
	  (address, stream), drv_free_async)                                                       \
	C(cuMemPoolCreate, "cuMemPoolCreate", 11020, 0,                                            \
	  (CUmemoryPool * pool, const CUmemPoolProps *props), (pool, props), drv_pool_create)      \
	C(cuMemPoolDestroy, "cuMemPoolDestroy", 11020, 0, (CUmemoryPool pool), (pool),             \
	  drv_pool_destroy)                                                                        \
	C(cuMemPoolTrimTo, "cuMemPoolTrimTo", 11020, 0, (CUmemoryPool pool, size_t keep),          \
	  (pool, keep), drv_pool_trim)                                                             \
	C(cuMemPoolSetAttribute, "cuMemPoolSetAttribute", 11020, 0,                                \
	  (CUmemoryPool pool, int attribute, void *value), (pool, attribute, value),               \
	  drv_pool_set_attribute)                                                                  \
	C(cuMemPoolGetAttribute, "cuMemPoolGetAttribute", 11020, 0,                                \
	  (CUmemoryPool pool, int attribute, void *value), (pool, attribute, value),               \
	  drv_pool_get_attribute)                                                                  \
	C(cuMemPoolSetAccess, "cuMemPoolSetAccess", 11020, 0,                                      \
	  (CUmemoryPool pool, const CUmemAccessDesc *access, size_t count),                        \
	  (pool, access, count), drv_pool_set_access)                                              \
	C(cuDeviceGetDefaultMemPool, "cuDeviceGetDefaultMemPool", 11020, 0,                        \
	  (CUmemoryPool * pool, CUdevice device), (pool, device), drv_device_default_pool)         \
	C(cuDeviceGetMemPool, "cuDeviceGetMemPool", 11020, 0,                                      \
	  (CUmemoryPool * pool, CUdevice device), (pool, device), drv_device_get_pool)             \
	C(cuDeviceSetMemPool, "cuDeviceSetMemPool", 11020, 0,                                      \
	  (CUdevice device, CUmemoryPool pool), (device, pool), drv_device_set_pool)               \
	C(cuMemPoolExportToShareableHandle, "cuMemPoolExportToShareableHandle", 11020, 0,          \
	  (void *out, CUmemoryPool pool, int type, unsigned long long flags), (out, pool, type),   \
	  drv_pool_export)                                                                         \
	C(cuMemPoolImportFromShareableHandle, "cuMemPoolImportFromShareableHandle", 11020, 0,      \
	  (CUmemoryPool * pool, void *handle, int type, unsigned long long flags),                 \
	  (pool, handle, type), drv_pool_import)                                                   \
	C(cuMemPoolExportPointer, "cuMemPoolExportPointer", 11020, 0,                              \
	  (CUmemPoolPtrExportData * data, CUdeviceptr address), (data, address),                   \
	  drv_pool_export_pointer)                                                                 \
	C(cuMemPoolImportPointer, "cuMemPoolImportPointer", 11020, 0,                              \
	  (CUdeviceptr * address, CUmemoryPool pool, CUmemPoolPtrExportData *data),                \
	  (address, pool, data), drv_pool_import_pointer)                                          \
	/* virtual memory management */                                                            \
	C(cuMemGetAllocationGranularity, "cuMemGetAllocationGranularity", 10020, 0,                \
	  (size_t *granularity, const CUmemAllocationProp *prop, int option),                      \
	  (granularity, prop, option), drv_vmm_granularity)                                        \
	C(cuMemAddressReserve, "cuMemAddressReserve", 10020, 0,                                    \
	  (CUdeviceptr * address, size_t size, size_t alignment, CUdeviceptr wanted,               \
	   unsigned long long flags),                                                              \
	  (address, size, alignment, wanted, flags), drv_vmm_reserve)                              \
	C(cuMemAddressFree, "cuMemAddressFree", 10020, 0, (CUdeviceptr address, size_t size),      \
	  (address, size), drv_vmm_unreserve)                                                      \
	C(cuMemCreate, "cuMemCreate", 10020, 0,                                                    \
	  (CUmemGenericAllocationHandle * handle, size_t size, const CUmemAllocationProp *prop,    \
	   unsigned long long flags),                                                              \
	  (handle, size, prop, flags), drv_vmm_create)                                             \
	C(cuMemRelease, "cuMemRelease", 10020, 0, (CUmemGenericAllocationHandle handle), (handle), \
	  drv_vmm_release)                                                                         \
	C(cuMemMap, "cuMemMap", 10020, 0,                                                          \
	  (CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,   \
	   unsigned long long flags),                                                              \
	  (address, size, offset, handle, flags), drv_vmm_map)                                     \
	C(cuMemUnmap, "cuMemUnmap", 10020, 0, (CUdeviceptr address, size_t size),                  \
	  (address, size), drv_vmm_unmap)                                                          \
	C(cuMemSetAccess, "cuMemSetAccess", 10020, 0,                                              \
	  (CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t count),         \
	  (address, size, access, count), drv_vmm_set_access)                                      \
	C(cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle", 11000, 0,                    \
	  (CUmemGenericAllocationHandle * handle, void *address), (handle, address),               \
	  drv_vmm_retain)                                                                          \
	C(cuMemExportToShareableHandle, "cuMemExportToShareableHandle", 10020, 0,                  \
	  (void *out, CUmemGenericAllocationHandle handle, int type, unsigned long long flags),    \
	  (out, handle, type), drv_vmm_export)                                                     \
	C(cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle", 10020, 0,              \
	  (CUmemGenericAllocationHandle * handle, void *shared, int type),                         \
	  (handle, shared, type), drv_vmm_import)                                                  \
	C(cuMulticastCreate, "cuMulticastCreate", 12010, 0,                                        \
	  (CUmemGenericAllocationHandle * handle, const CUmulticastObjectProp *prop),              \
	  (handle, prop), drv_multicast_create)                                                    \
	/* memory of other processes and of other interfaces */                                    \
	C(cuIpcGetMemHandle, "cuIpcGetMemHandle", 4010, 0,                                         \
	  (CUipcMemHandle * handle, CUdeviceptr address), (handle, address), drv_ipc_get)          \
	C(cuIpcOpenMemHandle, "cuIpcOpenMemHandle", 4010, 0,                                       \
	  (CUdeviceptr * address, CUipcMemHandle handle, unsigned int flags),                      \
	  (address, &handle, flags), drv_ipc_open)                                                 \
	C(cuIpcOpenMemHandle_v2, "cuIpcOpenMemHandle", 11000, 0,                                   \
	  (CUdeviceptr * address, CUipcMemHandle handle, unsigned int flags),                      \
	  (address, &handle, flags), drv_ipc_open)                                                 \
	C(cuIpcCloseMemHandle, "cuIpcCloseMemHandle", 4010, 0, (CUdeviceptr address), (address),   \
	  drv_ipc_close)                                                                           \
	C(cuImportExternalMemory, "cuImportExternalMemory", 10000, 0,                              \
	  (CUexternalMemory * memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc),               \
	  (memory, desc), drv_external_import)                                                     \
	C(cuExternalMemoryGetMappedBuffer, "cuExternalMemoryGetMappedBuffer", 10000, 0,            \
	  (CUdeviceptr * address, CUexternalMemory memory,                                         \
	   const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *desc),                                          \
	  (address, memory, desc), drv_external_buffer)                                            \
	C(cuExternalMemoryGetMappedMipmappedArray, "cuExternalMemoryGetMappedMipmappedArray",      \
	  10000, 0,                                                                                \
	  (CUmipmappedArray * array, CUexternalMemory memory,                                      \
	   const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC *desc),                                 \
	  (array, memory, desc), drv_external_mipmap)                                              \
	C(cuDestroyExternalMemory, "cuDestroyExternalMemory", 10000, 0, (CUexternalMemory memory), \
	  (memory), drv_external_destroy)                                                          \
	/* streams and copies: checked, carried out by nobody (device memory has no bytes here) */ \
	C(cuStreamCreate, "cuStreamCreate", 2000, 0, (CUstream * stream, unsigned int flags),      \
	  (stream, flags), drv_stream_create)                                                      \
	C(cuStreamDestroy_v2, "cuStreamDestroy", 4000, 0, (CUstream stream), (stream),             \
	  drv_stream_destroy)                                                                      \
	C(cuStreamSynchronize, "cuStreamSynchronize", 2000, 0, (CUstream stream), (stream),        \
	  drv_stream_synchronize)                                                                  \
	C(cuMemcpyHtoD_v2, "cuMemcpyHtoD", 3020, 0,                                                \
	  (CUdeviceptr to, const void *from, size_t size), (to, from, size), drv_copy_to_device)   \
	C(cuMemcpyDtoH_v2, "cuMemcpyDtoH", 3020, 0,                                                \
	  (void *to, CUdeviceptr from, size_t size), (to, from, size), drv_copy_to_host)           \
	C(cuMemsetD8_v2, "cuMemsetD8", 3020, 0,                                                    \
	  (CUdeviceptr to, unsigned char value, size_t size), (to, value, size), drv_set)

#define DECLARE(name, base, since, ptsz, params, args, impl) CUresult name params;
DRIVER_CALLS(DECLARE)
#undef DECLARE

#endif
