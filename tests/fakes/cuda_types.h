/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The types of the CUDA driver and runtime interfaces which the stand-ins need: our own
 * declarations of the public ABI (x86-64 and arm64 Linux), with the field's names.
 * Sizes and offsets are checked at the end.
 */
#ifndef CUDA_TYPES_H
#define CUDA_TYPES_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned int CUdeviceptr_v1;
typedef struct fake_context *CUcontext;
typedef struct fake_stream *CUstream;
typedef struct fake_array *CUarray;
typedef struct fake_array *CUmipmappedArray;
typedef struct fake_pool *CUmemoryPool;
typedef struct fake_external *CUexternalMemory;
typedef unsigned long long CUmemGenericAllocationHandle;

enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CUDA_ERROR_INSUFFICIENT_DRIVER = 35,	/* of the runtime only */
	CUDA_ERROR_NO_DEVICE = 100,
	CUDA_ERROR_INVALID_DEVICE = 101,
	CUDA_ERROR_INVALID_CONTEXT = 201,
	CUDA_ERROR_INVALID_HANDLE = 400,
	CUDA_ERROR_NOT_FOUND = 500,
	CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
	CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
	CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
	CUDA_ERROR_NOT_SUPPORTED = 801,
};

typedef struct { char bytes[16]; } CUuuid;
typedef struct { char reserved[64]; } CUipcMemHandle;	/* passed by value: on the stack */
typedef struct { unsigned char reserved[64]; } CUmemPoolPtrExportData;

typedef struct {
	unsigned int Width, Height;
	int Format;
	unsigned int NumChannels;
} CUDA_ARRAY_DESCRIPTOR_v1;

typedef struct {
	size_t Width, Height;
	int Format;
	unsigned int NumChannels;
} CUDA_ARRAY_DESCRIPTOR;

typedef struct {
	unsigned int Width, Height, Depth;
	int Format;
	unsigned int NumChannels, Flags;
} CUDA_ARRAY3D_DESCRIPTOR_v1;

typedef struct {
	size_t Width, Height, Depth;
	int Format;
	unsigned int NumChannels, Flags;
} CUDA_ARRAY3D_DESCRIPTOR;

enum { CU_MEM_LOCATION_DEVICE = 1, CU_MEM_LOCATION_HOST = 2, CU_MEM_LOCATION_HOST_NUMA = 3 };
enum { CU_MEM_ALLOCATION_PINNED = 1 };
enum { CU_MEM_HANDLE_POSIX_FD = 1, CU_MEM_HANDLE_FABRIC = 8 };
enum { CUDA_ARRAY3D_SPARSE = 0x40, CUDA_ARRAY3D_DEFERRED_MAPPING = 0x80 };

typedef struct { int type, id; } CUmemLocation;

typedef struct {
	int type;
	int requestedHandleTypes;
	CUmemLocation location;
	void *win32HandleMetaData;
	unsigned char compressionType, gpuDirectRDMACapable;
	unsigned short usage;
	unsigned char reserved[4];
} CUmemAllocationProp;

typedef struct {
	CUmemLocation location;
	int flags;
} CUmemAccessDesc;

typedef struct {
	unsigned int numDevices;
	size_t size;
	unsigned long long handleTypes, flags;
} CUmulticastObjectProp;

typedef struct {
	int allocType;
	int handleTypes;
	CUmemLocation location;
	void *win32SecurityAttributes;
	size_t maxSize;
	unsigned short usage;
	unsigned char reserved[54];
} CUmemPoolProps;

enum {
	CU_MEMPOOL_RELEASE_THRESHOLD = 4,
	CU_MEMPOOL_RESERVED_CURRENT = 5,
	CU_MEMPOOL_RESERVED_HIGH = 6,
	CU_MEMPOOL_USED_CURRENT = 7,
	CU_MEMPOOL_USED_HIGH = 8,
};

typedef struct {
	int type;
	union {
		int fd;
		struct { void *handle; const void *name; } win32;
	} handle;
	unsigned long long size;
	unsigned int flags;
	unsigned int reserved[16];
} CUDA_EXTERNAL_MEMORY_HANDLE_DESC;

typedef struct {
	unsigned long long offset, size;
	unsigned int flags;
	unsigned int reserved[16];
} CUDA_EXTERNAL_MEMORY_BUFFER_DESC;

typedef struct {
	unsigned long long offset;
	CUDA_ARRAY3D_DESCRIPTOR arrayDesc;
	unsigned int numLevels;
	unsigned int reserved[16];
} CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC;

/* --- the runtime's own structures --- */

typedef int cudaError_t;
typedef struct { int x, y, z, w, f; } cudaChannelFormatDesc;
typedef struct { size_t width, height, depth; } cudaExtent;
typedef struct { void *ptr; size_t pitch, xsize, ysize; } cudaPitchedPtr;

typedef struct {
	int type;
	union {
		int fd;
		struct { void *handle; const void *name; } win32;
	} handle;
	unsigned long long size;
	unsigned int flags;
	unsigned int reserved[16];
} cudaExternalMemoryHandleDesc;

typedef struct {
	unsigned long long offset, size;
	unsigned int flags;
	unsigned int reserved[16];
} cudaExternalMemoryBufferDesc;

typedef struct {
	unsigned long long offset;
	cudaChannelFormatDesc formatDesc;
	cudaExtent extent;
	unsigned int flags, numLevels;
	unsigned int reserved[16];
} cudaExternalMemoryMipmappedArrayDesc;

_Static_assert(sizeof(CUDA_ARRAY_DESCRIPTOR) == 24, "ABI");
_Static_assert(sizeof(CUDA_ARRAY3D_DESCRIPTOR) == 40, "ABI");
_Static_assert(sizeof(CUmemAllocationProp) == 32, "ABI");
_Static_assert(sizeof(CUmemPoolProps) == 88 && offsetof(CUmemPoolProps, maxSize) == 24, "ABI");
_Static_assert(sizeof(CUDA_EXTERNAL_MEMORY_HANDLE_DESC) == 104, "ABI");
_Static_assert(sizeof(CUDA_EXTERNAL_MEMORY_BUFFER_DESC) == 88, "ABI");
_Static_assert(sizeof(CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC) == 120, "ABI");

#endif
