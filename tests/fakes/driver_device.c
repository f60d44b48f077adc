/* SPDX-License-Identifier: Apache-2.0 */
/* Devices, versions, error names, streams. */
#include <stdlib.h>
#include <string.h>

#include "driver_calls_impl.h"

#define DRIVER_VERSION 13000

struct fake_stream {
	int unused;
};

struct error_text {
	CUresult error;
	const char *name, *text;
};

static const struct error_text errors[] = {
	{ CUDA_SUCCESS, "CUDA_SUCCESS", "no error" },
	{ CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument" },
	{ CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory" },
	{ CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error" },
	{ CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected" },
	{ CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal" },
	{ CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context" },
	{ CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle" },
	{ CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found" },
	{ CUDA_ERROR_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED",
	  "context is destroyed" },
	{ CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
	  "part or all of the requested memory range is already mapped" },
	{ CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
	  "pointer does not correspond to a registered memory region" },
	{ CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported" },
};

static const struct error_text *find_error(CUresult error)
{
	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
		if (errors[i].error == error)
			return &errors[i];
	return NULL;
}

CUresult drv_error_name(CUresult error, const char **name)
{
	const struct error_text *known = find_error(error);

	if (!name)
		return CUDA_ERROR_INVALID_VALUE;
	*name = known ? known->name : NULL;
	return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult drv_error_string(CUresult error, const char **text)
{
	const struct error_text *known = find_error(error);

	if (!text)
		return CUDA_ERROR_INVALID_VALUE;
	*text = known ? known->text : NULL;
	return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult drv_driver_version(int *version)
{
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = DRIVER_VERSION;
	return CUDA_SUCCESS;
}

CUresult drv_device_count(int *count)
{
	CUresult result = need_init();

	if (!result && count)
		*count = settings.devices;
	return result ? result : count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult drv_device_get(CUdevice *device, int ordinal)
{
	CUresult result = need_device(ordinal);

	if (!result && device)
		*device = ordinal;
	return result ? result : device ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult drv_device_name(char *name, int len, CUdevice device)
{
	CUresult result = need_device(device);

	if (result)
		return result;
	if (!name || len < 1)
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(name, len, "Stand-in GPU %d", settings.physical[device]);
	return CUDA_SUCCESS;
}

CUresult drv_device_uuid(CUuuid *uuid, CUdevice device)
{
	CUresult result = need_device(device);

	if (result)
		return result;
	if (!uuid)
		return CUDA_ERROR_INVALID_VALUE;
	memset(uuid->bytes, 0xfa, sizeof(uuid->bytes));
	uuid->bytes[15] = settings.physical[device];
	return CUDA_SUCCESS;
}

CUresult drv_device_pci(char *id, int len, CUdevice device)
{
	CUresult result = need_device(device);

	if (result)
		return result;
	if (!id || len < 13)
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(id, len, "0000:%02X:00.0", settings.physical[device] + 1);
	return CUDA_SUCCESS;
}

CUresult drv_device_total(size_t *bytes, CUdevice device)
{
	CUresult result = need_device(device);

	if (!result && bytes)
		*bytes = settings.device_bytes;
	return result ? result : bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult drv_stream_create(CUstream *stream, unsigned int flags)
{
	struct fake_context *context = NULL;
	CUresult result = context_current(&context);

	if (result)
		return result;
	if (!stream || flags > 1)
		return CUDA_ERROR_INVALID_VALUE;
	*stream = calloc(1, sizeof(**stream));
	return *stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult drv_stream_destroy(CUstream stream)
{
	CUresult result = need_init();

	if (result)
		return result;
	if (!stream)
		return CUDA_ERROR_INVALID_HANDLE;
	free(stream);
	return CUDA_SUCCESS;
}

CUresult drv_stream_synchronize(CUstream stream)
{
	(void)stream;
	return drv_context_synchronize();
}
