/* SPDX-License-Identifier: Apache-2.0 */
/* The runtime's calls, each by its driver call, and the exported functions. */
#include <string.h>

#include "runtime.h"

#define TRY(expression)                                                                            \
	do {                                                                                       \
		cudaError_t tried = (expression);                                                  \
		if (tried)                                                                         \
			return tried;                                                              \
	} while (0)

static __thread cudaError_t last_error;

/* Most calls only hand their arguments to the driver, with a context current. */
#define FORWARD(impl, params, call)                                                                \
	static cudaError_t impl params                                                             \
	{                                                                                          \
		TRY(runtime_context());                                                            \
		return call;                                                                       \
	}

FORWARD(rt_mem_info, (size_t * avail, size_t *total), DRV(cuMemGetInfo_v2)(avail, total))
FORWARD(rt_free, (void *address), DRV(cuMemFree_v2)((CUdeviceptr)address))
FORWARD(rt_host_alloc, (void **address, size_t size, unsigned int flags),
	DRV(cuMemHostAlloc)(address, size, flags))
FORWARD(rt_host_register, (void *address, size_t size, unsigned int flags),
	DRV(cuMemHostRegister_v2)(address, size, flags))
FORWARD(rt_host_unregister, (void *address), DRV(cuMemHostUnregister)(address))
FORWARD(rt_mipmap_level, (CUarray * level, CUmipmappedArray array, unsigned int number),
	DRV(cuMipmappedArrayGetLevel)(level, array, number))
FORWARD(rt_malloc_async,
	(void **address, size_t size, CUstream stream, __typeof__(cuMemAllocAsync) *call),
	call((CUdeviceptr *)address, size, stream))
FORWARD(rt_malloc_from_pool,
	(void **address, size_t size, CUmemoryPool pool, CUstream stream,
	 __typeof__(cuMemAllocFromPoolAsync) *call),
	call((CUdeviceptr *)address, size, pool, stream))
FORWARD(rt_free_async, (void *address, CUstream stream, __typeof__(cuMemFreeAsync) *call),
	call((CUdeviceptr)address, stream))
FORWARD(rt_pool_create, (CUmemoryPool * pool, const CUmemPoolProps *props),
	DRV(cuMemPoolCreate)(pool, props))
FORWARD(rt_pool_destroy, (CUmemoryPool pool), DRV(cuMemPoolDestroy)(pool))
FORWARD(rt_pool_trim, (CUmemoryPool pool, size_t keep), DRV(cuMemPoolTrimTo)(pool, keep))
FORWARD(rt_pool_set_attribute, (CUmemoryPool pool, int attribute, void *value),
	DRV(cuMemPoolSetAttribute)(pool, attribute, value))
FORWARD(rt_pool_get_attribute, (CUmemoryPool pool, int attribute, void *value),
	DRV(cuMemPoolGetAttribute)(pool, attribute, value))
FORWARD(rt_pool_set_access, (CUmemoryPool pool, const CUmemAccessDesc *access, size_t count),
	DRV(cuMemPoolSetAccess)(pool, access, count))
FORWARD(rt_device_default_pool, (CUmemoryPool * pool, int device),
	DRV(cuDeviceGetDefaultMemPool)(pool, device))
FORWARD(rt_device_get_pool, (CUmemoryPool * pool, int device),
	DRV(cuDeviceGetMemPool)(pool, device))
FORWARD(rt_device_set_pool, (int device, CUmemoryPool pool), DRV(cuDeviceSetMemPool)(device, pool))
FORWARD(rt_pool_export, (void *out, CUmemoryPool pool, int type, unsigned int flags),
	DRV(cuMemPoolExportToShareableHandle)(out, pool, type, flags))
FORWARD(rt_pool_import, (CUmemoryPool * pool, void *handle, int type, unsigned int flags),
	DRV(cuMemPoolImportFromShareableHandle)(pool, handle, type, flags))
FORWARD(rt_pool_export_pointer, (CUmemPoolPtrExportData * data, void *address),
	DRV(cuMemPoolExportPointer)(data, (CUdeviceptr)address))
FORWARD(rt_pool_import_pointer, (void **address, CUmemoryPool pool, CUmemPoolPtrExportData *data),
	DRV(cuMemPoolImportPointer)((CUdeviceptr *)address, pool, data))
FORWARD(rt_ipc_get, (CUipcMemHandle * handle, void *address),
	DRV(cuIpcGetMemHandle)(handle, (CUdeviceptr)address))
FORWARD(rt_ipc_open, (void **address, const CUipcMemHandle *handle, unsigned int flags),
	DRV(cuIpcOpenMemHandle_v2)((CUdeviceptr *)address, *handle, flags))
FORWARD(rt_ipc_close, (void *address), DRV(cuIpcCloseMemHandle)((CUdeviceptr)address))
FORWARD(rt_external_destroy, (CUexternalMemory memory), DRV(cuDestroyExternalMemory)(memory))
FORWARD(rt_device_synchronize, (void), DRV(cuCtxSynchronize)())
FORWARD(rt_stream_create, (CUstream * stream), DRV(cuStreamCreate)(stream, 0))
FORWARD(rt_stream_destroy, (CUstream stream), DRV(cuStreamDestroy_v2)(stream))
FORWARD(rt_stream_synchronize, (CUstream stream), DRV(cuStreamSynchronize)(stream))
FORWARD(rt_set, (void *to, int value, size_t size),
	DRV(cuMemsetD8_v2)((CUdeviceptr)to, value, size))

static cudaError_t rt_runtime_version(int *version)
{
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = RUNTIME_VERSION;
	return CUDA_SUCCESS;
}

static cudaError_t rt_driver_version(int *version)
{
	TRY(runtime_load());
	return DRV(cuDriverGetVersion)(version);
}

static cudaError_t rt_device_count(int *count)
{
	TRY(runtime_init());
	return DRV(cuDeviceGetCount)(count);
}

static cudaError_t rt_set_device(int device)
{
	int count = 0;

	TRY(rt_device_count(&count));
	return device < 0 || device >= count ? CUDA_ERROR_INVALID_DEVICE : runtime_bind(device);
}

static cudaError_t rt_get_device(int *device)
{
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	*device = runtime_thread_device();
	return CUDA_SUCCESS;
}

/* The genuine one reaches no call of the driver that is exported: neither does this. */
static cudaError_t rt_device_reset(void)
{
	int device = runtime_thread_device();

	TRY(runtime_init());
	runtime_forget(device);
	return runtime_driver.hidden->primary_reset(device);
}

static cudaError_t rt_entry_point(const char *symbol, void **address, unsigned int version,
				  unsigned long long flags, int *status)
{
	TRY(runtime_load());
	return DRV(cuGetProcAddress_v2)(symbol, address, version, flags, status);
}

static cudaError_t rt_malloc(void **address, size_t size)
{
	if (!address)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(runtime_context());
	if (!size) {
		*address = NULL;
		return CUDA_SUCCESS;
	}
	return DRV(cuMemAlloc_v2)((CUdeviceptr *)address, size);
}

static cudaError_t rt_malloc_managed(void **address, size_t size, unsigned int flags)
{
	if (!address)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(runtime_context());
	if (!size) {
		*address = NULL;
		return CUDA_SUCCESS;
	}
	return DRV(cuMemAllocManaged)((CUdeviceptr *)address, size, flags);
}

static cudaError_t rt_malloc_pitch(void **address, size_t *pitch, size_t width, size_t height)
{
	if (!address || !pitch)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(runtime_context());
	if (!width || !height) {
		*address = NULL;
		*pitch = 0;
		return CUDA_SUCCESS;
	}
	return DRV(cuMemAllocPitch_v2)((CUdeviceptr *)address, pitch, width, height, 4);
}

static cudaError_t rt_malloc_3d(cudaPitchedPtr *out, const cudaExtent *extent)
{
	size_t rows;

	if (!out || __builtin_mul_overflow(extent->height, extent->depth, &rows))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(rt_malloc_pitch(&out->ptr, &out->pitch, extent->width, rows));
	out->xsize = extent->width;
	out->ysize = extent->height;
	return CUDA_SUCCESS;
}

static cudaError_t rt_host_free(void *address)
{
	TRY(runtime_context());
	return address ? DRV(cuMemFreeHost)(address) : CUDA_SUCCESS;
}

/* Bits of each channel and their kind (signed, unsigned, float) to the driver's format. */
static cudaError_t describe(CUDA_ARRAY3D_DESCRIPTOR *to, const cudaChannelFormatDesc *from,
			    const cudaExtent *extent, unsigned int flags)
{
	static const int formats[3][3] = { { 0x08, 0x09, 0x0a }, { 0x01, 0x02, 0x03 },
					   { 0, 0x10, 0x20 } };
	int size = from->x == 8 ? 0 : from->x == 16 ? 1 : from->x == 32 ? 2 : -1;

	memset(to, 0, sizeof(*to));
	if (size < 0 || from->f < 0 || from->f > 2)
		return CUDA_ERROR_INVALID_VALUE;
	to->Width = extent->width;
	to->Height = extent->height;
	to->Depth = extent->depth;
	to->Format = formats[from->f][size];
	to->NumChannels = !!from->x + !!from->y + !!from->z + !!from->w;
	to->Flags = flags;
	return CUDA_SUCCESS;
}

static cudaError_t rt_malloc_array(CUarray *array, const cudaChannelFormatDesc *desc,
				   const cudaExtent *extent, unsigned int flags)
{
	CUDA_ARRAY3D_DESCRIPTOR wide;

	if (!array || !desc)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(describe(&wide, desc, extent, flags));
	TRY(runtime_context());
	return DRV(cuArray3DCreate_v2)(array, &wide);
}

static cudaError_t rt_free_array(CUarray array)
{
	TRY(runtime_context());
	return array ? DRV(cuArrayDestroy)(array) : CUDA_SUCCESS;
}

static cudaError_t rt_malloc_mipmap(CUmipmappedArray *array, const cudaChannelFormatDesc *desc,
				    const cudaExtent *extent, unsigned int levels,
				    unsigned int flags)
{
	CUDA_ARRAY3D_DESCRIPTOR wide;

	if (!array || !desc)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(describe(&wide, desc, extent, flags));
	TRY(runtime_context());
	return DRV(cuMipmappedArrayCreate)(array, &wide, levels);
}

static cudaError_t rt_free_mipmap(CUmipmappedArray array)
{
	TRY(runtime_context());
	return array ? DRV(cuMipmappedArrayDestroy)(array) : CUDA_SUCCESS;
}

/* The runtime's structures are the driver's without the reserved end, up to CUDA 12. */
static cudaError_t rt_external_import(CUexternalMemory *memory,
				      const cudaExternalMemoryHandleDesc *desc)
{
	CUDA_EXTERNAL_MEMORY_HANDLE_DESC wide = { 0 };

	if (!desc)
		return CUDA_ERROR_INVALID_VALUE;
	wide.type = desc->type;
	memcpy(&wide.handle, &desc->handle, sizeof(wide.handle));
	wide.size = desc->size;
	wide.flags = desc->flags;
	TRY(runtime_context());
	return DRV(cuImportExternalMemory)(memory, &wide);
}

static cudaError_t rt_external_buffer(void **address, CUexternalMemory memory,
				      const cudaExternalMemoryBufferDesc *desc)
{
	CUDA_EXTERNAL_MEMORY_BUFFER_DESC wide = { 0 };

	if (!desc)
		return CUDA_ERROR_INVALID_VALUE;
	wide.offset = desc->offset;
	wide.size = desc->size;
	wide.flags = desc->flags;
	TRY(runtime_context());
	return DRV(cuExternalMemoryGetMappedBuffer)((CUdeviceptr *)address, memory, &wide);
}

static cudaError_t rt_external_mipmap(CUmipmappedArray *array, CUexternalMemory memory,
				      const cudaExternalMemoryMipmappedArrayDesc *desc)
{
	CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC wide = { 0 };

	if (!desc)
		return CUDA_ERROR_INVALID_VALUE;
	wide.offset = desc->offset;
	wide.numLevels = desc->numLevels;
	TRY(describe(&wide.arrayDesc, &desc->formatDesc, &desc->extent, desc->flags));
	TRY(runtime_context());
	return DRV(cuExternalMemoryGetMappedMipmappedArray)(array, memory, &wide);
}

enum { HOST_TO_HOST, HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, DIRECTION_DEFAULT };

static cudaError_t rt_copy(void *to, const void *from, size_t size, int direction)
{
	TRY(runtime_context());
	switch (direction) {
	case HOST_TO_HOST:
		memmove(to, from, size);
		return CUDA_SUCCESS;
	case HOST_TO_DEVICE:
		return DRV(cuMemcpyHtoD_v2)((CUdeviceptr)to, from, size);
	case DEVICE_TO_HOST:
		return DRV(cuMemcpyDtoH_v2)(to, (CUdeviceptr)from, size);
	case DEVICE_TO_DEVICE:
	case DIRECTION_DEFAULT:
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

/* --- the exported functions --- */

#define DEFINE(name, params, args, impl)                                                           \
	EXPORT cudaError_t name params                                                             \
	{                                                                                          \
		static struct call_site *site;                                                     \
		cudaError_t result = runtime_load();                                               \
		if (result)                                                                        \
			return last_error = result;                                                \
		if (!site)                                                                         \
			site = runtime_driver.hidden->site_find(#name);                            \
		result = runtime_driver.hidden->call_enter(site);                                  \
		if (result == CUDA_SUCCESS)                                                        \
			result = impl args;                                                        \
		if (result)                                                                        \
			last_error = result;                                                       \
		return runtime_driver.hidden->call_leave(site, result);                            \
	}
RUNTIME_CALLS(DEFINE)
#undef DEFINE

EXPORT cudaError_t cudaGetLastError(void)
{
	cudaError_t error = last_error;
	last_error = CUDA_SUCCESS;
	return error;
}

EXPORT cudaError_t cudaPeekAtLastError(void)
{
	return last_error;
}

EXPORT const char *cudaGetErrorString(cudaError_t error)
{
	const char *text = NULL;

	if (runtime_load())
		return "CUDA driver version is insufficient for CUDA runtime version";
	DRV(cuGetErrorString)(error, &text);
	return text ? text : "unrecognized error code";
}

/* The genuine names are cudaError...: these are the driver's. */
EXPORT const char *cudaGetErrorName(cudaError_t error)
{
	const char *name = NULL;

	if (runtime_load())
		return "cudaErrorInsufficientDriver";
	DRV(cuGetErrorName)(error, &name);
	return name ? name : "unrecognized error code";
}
