/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays and mipmapped arrays: as large as their descriptor says (the genuine ones may pad). */
#include <stdlib.h>

#include "driver_calls_impl.h"

struct fake_array {
	CUDA_ARRAY3D_DESCRIPTOR desc;
	unsigned int levels;
	struct fake_array **level;	/* of a mipmapped array: views which own nothing */
	struct fake_array *whole;	/* of such a view */
	unsigned int number;
};

static unsigned int format_bytes(int format)
{
	switch (format) {
	case 0x01: case 0x08:
		return 1;
	case 0x02: case 0x09: case 0x10:
		return 2;
	case 0x03: case 0x0a: case 0x20:
		return 4;
	default:
		return 0;
	}
}

static bool level_size(const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned int level, uint64_t *size)
{
	uint64_t width = desc->Width >> level, height = desc->Height >> level,
		 depth = desc->Depth >> level, bytes;

	bytes = (uint64_t)format_bytes(desc->Format) * desc->NumChannels;
	return !__builtin_mul_overflow(bytes, width ? width : 1, &bytes) &&
	       !__builtin_mul_overflow(bytes, height ? height : 1, &bytes) &&
	       !__builtin_mul_overflow(bytes, depth ? depth : 1, size);
}

static CUresult check_desc(const CUDA_ARRAY3D_DESCRIPTOR *desc)
{
	return desc && desc->Width && format_bytes(desc->Format) &&
			       (desc->NumChannels == 1 || desc->NumChannels == 2 ||
				desc->NumChannels == 4)
		       ? CUDA_SUCCESS
		       : CUDA_ERROR_INVALID_VALUE;
}

static void free_levels(struct fake_array *array)
{
	for (unsigned int i = 0; array->level && i < array->levels; i++)
		if (array->level[i])
			allocation_remove(allocation_find((uint64_t)array->level[i]));
	free(array->level);
}

static CUresult take(struct fake_array **out, const CUDA_ARRAY3D_DESCRIPTOR *desc,
		     unsigned int levels, enum origin origin, bool own)
{
	struct fake_context *context = NULL;
	CUresult result = context_current(&context);
	struct fake_array *fresh;
	struct allocation one = { .origin = origin, .kind = KIND_ARRAY };

	if (result)
		return result;
	if (!out || (result = check_desc(desc)))
		return CUDA_ERROR_INVALID_VALUE;
	/* sparse arrays and those mapped later get their memory by cuMemMapArrayAsync */
	own = own && !(desc->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING));
	for (unsigned int i = 0; own && i < (levels ? levels : 1); i++) {
		uint64_t size;
		if (!level_size(desc, i, &size) ||
		    __builtin_add_overflow(one.size, size, &one.size))
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (!(fresh = calloc(1, sizeof(*fresh))))
		return CUDA_ERROR_OUT_OF_MEMORY;
	fresh->desc = *desc;
	fresh->levels = levels;
	one.address = (uint64_t)fresh;
	one.device = context->device;
	one.context = context;
	pthread_mutex_lock(&fake_lock);
	if (!account_add(KIND_ARRAY, one.device, one.size)) {
		result = CUDA_ERROR_OUT_OF_MEMORY;
	} else if (!allocation_insert(one)) {
		account_remove(KIND_ARRAY, one.device, one.size);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	pthread_mutex_unlock(&fake_lock);
	if (result)
		free(fresh);
	else
		*out = fresh;
	return result;
}

static CUresult give(struct fake_array *array, enum origin origin)
{
	CUresult result = context_to_free();
	struct allocation *one;

	if (result)
		return result;
	pthread_mutex_lock(&fake_lock);
	one = allocation_find((uint64_t)array);
	if (one && one->origin == origin) {
		free_levels(array);
		allocation_remove(one);
	} else if (one && one->origin == FROM_LEVEL && origin == FROM_ARRAY) {
		array->whole->level[array->number] = NULL;
		allocation_remove(one);
	} else {
		result = CUDA_ERROR_CONTEXT_IS_DESTROYED;	/* as the genuine one says it */
	}
	pthread_mutex_unlock(&fake_lock);
	return result;
}

CUresult drv_array_3d_create(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *desc)
{
	return take(array, desc, 0, FROM_ARRAY, true);
}

CUresult drv_array_create(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *desc)
{
	CUDA_ARRAY3D_DESCRIPTOR wide = { 0 };

	if (!desc)
		return CUDA_ERROR_INVALID_VALUE;
	wide.Width = desc->Width;
	wide.Height = desc->Height;
	wide.Format = desc->Format;
	wide.NumChannels = desc->NumChannels;
	return take(array, &wide, 0, FROM_ARRAY, true);
}

CUresult drv_array_create_v1(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *desc)
{
	CUDA_ARRAY_DESCRIPTOR wide;

	if (!desc)
		return CUDA_ERROR_INVALID_VALUE;
	wide = (CUDA_ARRAY_DESCRIPTOR){ desc->Width, desc->Height, desc->Format,
					desc->NumChannels };
	return drv_array_create(array, &wide);
}

CUresult drv_array_3d_create_v1(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *desc)
{
	CUDA_ARRAY3D_DESCRIPTOR wide;

	if (!desc)
		return CUDA_ERROR_INVALID_VALUE;
	wide = (CUDA_ARRAY3D_DESCRIPTOR){ desc->Width, desc->Height, desc->Depth, desc->Format,
					  desc->NumChannels, desc->Flags };
	return drv_array_3d_create(array, &wide);
}

CUresult drv_array_destroy(CUarray array)
{
	return give(array, FROM_ARRAY);
}

static CUresult take_mipmap(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *desc,
			    unsigned int levels, bool own)
{
	size_t longest = 0;
	unsigned int possible = 1;

	if (!desc || !levels)
		return CUDA_ERROR_INVALID_VALUE;
	longest = desc->Width > desc->Height ? desc->Width : desc->Height;
	longest = longest > desc->Depth ? longest : desc->Depth;
	while (longest >>= 1)
		possible++;
	return take(array, desc, levels < possible ? levels : possible, FROM_MIPMAP, own);
}

CUresult drv_mipmap_create(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *desc,
			   unsigned int levels)
{
	return take_mipmap(array, desc, levels, true);
}

CUresult mipmap_over_import(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *desc,
			    unsigned int levels)
{
	return take_mipmap(array, desc, levels, false);
}

static struct fake_array *new_level(struct fake_array *whole, unsigned int number,
				    const struct allocation *owner)
{
	struct fake_array *view = calloc(1, sizeof(*view));
	struct allocation one = { .address = (uint64_t)view, .origin = FROM_LEVEL,
				  .kind = KIND_ARRAY, .device = owner->device,
				  .context = owner->context };

	if (!view)
		return NULL;
	view->whole = whole;
	view->number = number;
	if (!allocation_insert(one)) {
		free(view);
		return NULL;
	}
	return view;
}

CUresult drv_mipmap_level(CUarray *level_array, CUmipmappedArray array, unsigned int level)
{
	struct fake_context *context = NULL;
	CUresult result = context_current(&context);
	struct allocation *one;

	if (result)
		return result;
	pthread_mutex_lock(&fake_lock);
	one = allocation_find((uint64_t)array);
	if (!one || one->origin != FROM_MIPMAP) {
		result = CUDA_ERROR_INVALID_HANDLE;
	} else if (!level_array || level >= array->levels) {
		result = CUDA_ERROR_INVALID_VALUE;
	} else {
		if (!array->level)
			array->level = calloc(array->levels, sizeof(*array->level));
		if (array->level && !array->level[level])
			array->level[level] = new_level(array, level, one);
		*level_array = array->level ? array->level[level] : NULL;
		result = *level_array ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	}
	pthread_mutex_unlock(&fake_lock);
	return result;
}

CUresult drv_mipmap_destroy(CUmipmappedArray array)
{
	return give(array, FROM_MIPMAP);
}
