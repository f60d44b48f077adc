/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every call that the stand-in libcudart exports, one a row:
 *
 *   R(exported name, (parameters), (arguments), what carries it out)
 *
 * `DRV(f)` in the arguments is the driver's function f, as the runtime looked it up: the variants
 * for per-thread streams call the driver's variants.
 */
#ifndef RUNTIME_CALLS_H
#define RUNTIME_CALLS_H

#include "cuda_types.h"

#define RUNTIME_CALLS(R)                                                                           \
	R(cudaRuntimeGetVersion, (int *version), (version), rt_runtime_version)                    \
	R(cudaDriverGetVersion, (int *version), (version), rt_driver_version)                      \
	R(cudaGetDeviceCount, (int *count), (count), rt_device_count)                              \
	R(cudaSetDevice, (int device), (device), rt_set_device)                                    \
	R(cudaGetDevice, (int *device), (device), rt_get_device)                                   \
	R(cudaDeviceReset, (void), (), rt_device_reset)                                            \
	R(cudaThreadExit, (void), (), rt_device_reset) /* the old name; gone from CUDA 13 on */     \
	R(cudaDeviceSynchronize, (void), (), rt_device_synchronize)                                \
	R(cudaGetDriverEntryPoint,                                                                 \
	  (const char *symbol, void **address, unsigned long long flags, int *status),             \
	  (symbol, address, RUNTIME_VERSION, flags, status), rt_entry_point)                       \
	R(cudaGetDriverEntryPoint_ptsz,                                                            \
	  (const char *symbol, void **address, unsigned long long flags, int *status),             \
	  (symbol, address, RUNTIME_VERSION, flags | 2, status), rt_entry_point)                   \
	R(cudaGetDriverEntryPointByVersion,                                                        \
	  (const char *symbol, void **address, unsigned int version, unsigned long long flags,     \
	   int *status),                                                                           \
	  (symbol, address, version, flags, status), rt_entry_point)                               \
	R(cudaGetDriverEntryPointByVersion_ptsz,                                                   \
	  (const char *symbol, void **address, unsigned int version, unsigned long long flags,     \
	   int *status),                                                                           \
	  (symbol, address, version, flags | 2, status), rt_entry_point)                           \
	/* device, managed and pinned host memory */                                               \
	R(cudaMemGetInfo, (size_t *avail, size_t *total), (avail, total), rt_mem_info)             \
	R(cudaMalloc, (void **address, size_t size), (address, size), rt_malloc)                   \
	R(cudaMallocPitch, (void **address, size_t *pitch, size_t width, size_t height),           \
	  (address, pitch, width, height), rt_malloc_pitch)                                        \
	R(cudaMalloc3D, (cudaPitchedPtr * address, cudaExtent extent), (address, &extent),         \
	  rt_malloc_3d)                                                                            \
	R(cudaMallocManaged, (void **address, size_t size, unsigned int flags),                    \
	  (address, size, flags), rt_malloc_managed)                                               \
	R(cudaFree, (void *address), (address), rt_free)                                           \
	R(cudaMallocHost, (void **address, size_t size), (address, size, 0), rt_host_alloc)        \
	R(cudaHostAlloc, (void **address, size_t size, unsigned int flags),                        \
	  (address, size, flags), rt_host_alloc)                                                   \
	R(cudaFreeHost, (void *address), (address), rt_host_free)                                  \
	R(cudaHostRegister, (void *address, size_t size, unsigned int flags),                      \
	  (address, size, flags), rt_host_register)                                                \
	R(cudaHostUnregister, (void *address), (address), rt_host_unregister)                      \
	/* arrays */                                                                               \
	R(cudaMallocArray,                                                                         \
	  (CUarray * array, const cudaChannelFormatDesc *desc, size_t width, size_t height,        \
	   unsigned int flags),                                                                    \
	  (array, desc, &(cudaExtent){ width, height, 0 }, flags), rt_malloc_array)                \
	R(cudaMalloc3DArray,                                                                       \
	  (CUarray * array, const cudaChannelFormatDesc *desc, cudaExtent extent,                  \
	   unsigned int flags),                                                                    \
	  (array, desc, &extent, flags), rt_malloc_array)                                          \
	R(cudaFreeArray, (CUarray array), (array), rt_free_array)                                  \
	R(cudaMallocMipmappedArray,                                                                \
	  (CUmipmappedArray * array, const cudaChannelFormatDesc *desc, cudaExtent extent,         \
	   unsigned int levels, unsigned int flags),                                               \
	  (array, desc, &extent, levels, flags), rt_malloc_mipmap)                                 \
	R(cudaGetMipmappedArrayLevel,                                                              \
	  (CUarray * level_array, CUmipmappedArray array, unsigned int level),                     \
	  (level_array, array, level), rt_mipmap_level)                                            \
	R(cudaFreeMipmappedArray, (CUmipmappedArray array), (array), rt_free_mipmap)               \
	/* stream-ordered allocation and pools */                                                  \
	R(cudaMallocAsync, (void **address, size_t size, CUstream stream),                         \
	  (address, size, stream, DRV(cuMemAllocAsync)), rt_malloc_async)                          \
	R(cudaMallocAsync_ptsz, (void **address, size_t size, CUstream stream),                    \
	  (address, size, stream, DRV(cuMemAllocAsync_ptsz)), rt_malloc_async)                     \
	R(cudaMallocFromPoolAsync,                                                                 \
	  (void **address, size_t size, CUmemoryPool pool, CUstream stream),                       \
	  (address, size, pool, stream, DRV(cuMemAllocFromPoolAsync)), rt_malloc_from_pool)        \
	R(cudaMallocFromPoolAsync_ptsz,                                                            \
	  (void **address, size_t size, CUmemoryPool pool, CUstream stream),                       \
	  (address, size, pool, stream, DRV(cuMemAllocFromPoolAsync_ptsz)), rt_malloc_from_pool)   \
	R(cudaFreeAsync, (void *address, CUstream stream),                                         \
	  (address, stream, DRV(cuMemFreeAsync)), rt_free_async)                                   \
	R(cudaFreeAsync_ptsz, (void *address, CUstream stream),                                    \
	  (address, stream, DRV(cuMemFreeAsync_ptsz)), rt_free_async)                              \
	R(cudaMemPoolCreate, (CUmemoryPool * pool, const CUmemPoolProps *props), (pool, props),    \
	  rt_pool_create)                                                                          \
	R(cudaMemPoolDestroy, (CUmemoryPool pool), (pool), rt_pool_destroy)                        \
	R(cudaMemPoolTrimTo, (CUmemoryPool pool, size_t keep), (pool, keep), rt_pool_trim)         \
	R(cudaMemPoolSetAttribute, (CUmemoryPool pool, int attribute, void *value),                \
	  (pool, attribute, value), rt_pool_set_attribute)                                         \
	R(cudaMemPoolGetAttribute, (CUmemoryPool pool, int attribute, void *value),                \
	  (pool, attribute, value), rt_pool_get_attribute)                                         \
	R(cudaMemPoolSetAccess,                                                                    \
	  (CUmemoryPool pool, const CUmemAccessDesc *access, size_t count),                        \
	  (pool, access, count), rt_pool_set_access)                                               \
	R(cudaDeviceGetDefaultMemPool, (CUmemoryPool * pool, int device), (pool, device),          \
	  rt_device_default_pool)                                                                  \
	R(cudaDeviceGetMemPool, (CUmemoryPool * pool, int device), (pool, device),                 \
	  rt_device_get_pool)                                                                      \
	R(cudaDeviceSetMemPool, (int device, CUmemoryPool pool), (device, pool),                   \
	  rt_device_set_pool)                                                                      \
	R(cudaMemPoolExportToShareableHandle,                                                      \
	  (void *out, CUmemoryPool pool, int type, unsigned int flags), (out, pool, type, flags),  \
	  rt_pool_export)                                                                          \
	R(cudaMemPoolImportFromShareableHandle,                                                    \
	  (CUmemoryPool * pool, void *handle, int type, unsigned int flags),                       \
	  (pool, handle, type, flags), rt_pool_import)                                             \
	R(cudaMemPoolExportPointer, (CUmemPoolPtrExportData * data, void *address),                \
	  (data, address), rt_pool_export_pointer)                                                 \
	R(cudaMemPoolImportPointer,                                                                \
	  (void **address, CUmemoryPool pool, CUmemPoolPtrExportData *data),                       \
	  (address, pool, data), rt_pool_import_pointer)                                           \
	/* memory of other processes and of other interfaces */                                    \
	R(cudaIpcGetMemHandle, (CUipcMemHandle * handle, void *address), (handle, address),        \
	  rt_ipc_get)                                                                              \
	R(cudaIpcOpenMemHandle, (void **address, CUipcMemHandle handle, unsigned int flags),       \
	  (address, &handle, flags), rt_ipc_open)                                                  \
	R(cudaIpcCloseMemHandle, (void *address), (address), rt_ipc_close)                         \
	R(cudaImportExternalMemory,                                                                \
	  (CUexternalMemory * memory, const cudaExternalMemoryHandleDesc *desc), (memory, desc),   \
	  rt_external_import)                                                                      \
	R(cudaExternalMemoryGetMappedBuffer,                                                       \
	  (void **address, CUexternalMemory memory, const cudaExternalMemoryBufferDesc *desc),     \
	  (address, memory, desc), rt_external_buffer)                                             \
	R(cudaExternalMemoryGetMappedMipmappedArray,                                               \
	  (CUmipmappedArray * array, CUexternalMemory memory,                                      \
	   const cudaExternalMemoryMipmappedArrayDesc *desc),                                      \
	  (array, memory, desc), rt_external_mipmap)                                               \
	R(cudaDestroyExternalMemory, (CUexternalMemory memory), (memory), rt_external_destroy)     \
	/* streams and copies */                                                                   \
	R(cudaStreamCreate, (CUstream * stream), (stream), rt_stream_create)                       \
	R(cudaStreamDestroy, (CUstream stream), (stream), rt_stream_destroy)                       \
	R(cudaStreamSynchronize, (CUstream stream), (stream), rt_stream_synchronize)               \
	R(cudaMemcpy, (void *to, const void *from, size_t size, int direction),                    \
	  (to, from, size, direction), rt_copy)                                                    \
	R(cudaMemcpyAsync,                                                                         \
	  (void *to, const void *from, size_t size, int direction, CUstream stream),               \
	  (to, from, size, direction), rt_copy)                                                    \
	R(cudaMemset, (void *to, int value, size_t size), (to, value, size), rt_set)

/* What the runtime asks of the driver: D(its name here, name asked for, per-thread stream) */
#define RUNTIME_DRIVER_FUNCTIONS(D)                                                                \
	D(cuInit, "cuInit", 0) D(cuDriverGetVersion, "cuDriverGetVersion", 0)                      \
	D(cuDeviceGetCount, "cuDeviceGetCount", 0)                                                 \
	D(cuGetErrorName, "cuGetErrorName", 0) D(cuGetErrorString, "cuGetErrorString", 0)          \
	D(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 0)                                 \
	D(cuCtxSetCurrent, "cuCtxSetCurrent", 0) D(cuCtxGetCurrent, "cuCtxGetCurrent", 0)          \
	D(cuCtxGetDevice, "cuCtxGetDevice", 0) D(cuCtxSynchronize, "cuCtxSynchronize", 0)          \
	D(cuMemGetInfo_v2, "cuMemGetInfo", 0) D(cuMemAlloc_v2, "cuMemAlloc", 0)                    \
	D(cuMemAllocPitch_v2, "cuMemAllocPitch", 0)                                                \
	D(cuMemAllocManaged, "cuMemAllocManaged", 0) D(cuMemFree_v2, "cuMemFree", 0)               \
	D(cuMemHostAlloc, "cuMemHostAlloc", 0) D(cuMemFreeHost, "cuMemFreeHost", 0)                \
	D(cuMemHostRegister_v2, "cuMemHostRegister", 0)                                            \
	D(cuMemHostUnregister, "cuMemHostUnregister", 0)                                           \
	D(cuArray3DCreate_v2, "cuArray3DCreate", 0) D(cuArrayDestroy, "cuArrayDestroy", 0)         \
	D(cuMipmappedArrayCreate, "cuMipmappedArrayCreate", 0)                                     \
	D(cuMipmappedArrayGetLevel, "cuMipmappedArrayGetLevel", 0)                                 \
	D(cuMipmappedArrayDestroy, "cuMipmappedArrayDestroy", 0)                                   \
	D(cuMemAllocAsync, "cuMemAllocAsync", 0) D(cuMemAllocAsync_ptsz, "cuMemAllocAsync", 1)     \
	D(cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", 0)                                   \
	D(cuMemAllocFromPoolAsync_ptsz, "cuMemAllocFromPoolAsync", 1)                              \
	D(cuMemFreeAsync, "cuMemFreeAsync", 0) D(cuMemFreeAsync_ptsz, "cuMemFreeAsync", 1)         \
	D(cuMemPoolCreate, "cuMemPoolCreate", 0) D(cuMemPoolDestroy, "cuMemPoolDestroy", 0)        \
	D(cuMemPoolTrimTo, "cuMemPoolTrimTo", 0)                                                   \
	D(cuMemPoolSetAttribute, "cuMemPoolSetAttribute", 0)                                       \
	D(cuMemPoolGetAttribute, "cuMemPoolGetAttribute", 0)                                       \
	D(cuMemPoolSetAccess, "cuMemPoolSetAccess", 0)                                             \
	D(cuDeviceGetDefaultMemPool, "cuDeviceGetDefaultMemPool", 0)                               \
	D(cuDeviceGetMemPool, "cuDeviceGetMemPool", 0)                                             \
	D(cuDeviceSetMemPool, "cuDeviceSetMemPool", 0)                                             \
	D(cuMemPoolExportToShareableHandle, "cuMemPoolExportToShareableHandle", 0)                 \
	D(cuMemPoolImportFromShareableHandle, "cuMemPoolImportFromShareableHandle", 0)             \
	D(cuMemPoolExportPointer, "cuMemPoolExportPointer", 0)                                     \
	D(cuMemPoolImportPointer, "cuMemPoolImportPointer", 0)                                     \
	D(cuIpcGetMemHandle, "cuIpcGetMemHandle", 0)                                               \
	D(cuIpcOpenMemHandle_v2, "cuIpcOpenMemHandle", 0)                                          \
	D(cuIpcCloseMemHandle, "cuIpcCloseMemHandle", 0)                                           \
	D(cuImportExternalMemory, "cuImportExternalMemory", 0)                                     \
	D(cuExternalMemoryGetMappedBuffer, "cuExternalMemoryGetMappedBuffer", 0)                   \
	D(cuExternalMemoryGetMappedMipmappedArray, "cuExternalMemoryGetMappedMipmappedArray", 0)   \
	D(cuDestroyExternalMemory, "cuDestroyExternalMemory", 0)                                   \
	D(cuStreamCreate, "cuStreamCreate", 0) D(cuStreamDestroy_v2, "cuStreamDestroy", 0)         \
	D(cuStreamSynchronize, "cuStreamSynchronize", 0)                                           \
	D(cuMemcpyHtoD_v2, "cuMemcpyHtoD", 0) D(cuMemcpyDtoH_v2, "cuMemcpyDtoH", 0)                \
	D(cuMemsetD8_v2, "cuMemsetD8", 0)

#define DECLARE(name, params, args, impl) cudaError_t name params;
RUNTIME_CALLS(DECLARE)
#undef DECLARE
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);
const char *cudaGetErrorString(cudaError_t error);
const char *cudaGetErrorName(cudaError_t error);

#endif
