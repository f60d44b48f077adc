/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the runtime finds the driver and makes a context current: dlopen, cuGetProcAddress_v2 for
 * every function, and at the first call that needs it cuInit, cuDevicePrimaryCtxRetain and
 * cuCtxSetCurrent, as the genuine runtime does.
 */
#include "runtime.h"

#include <dlfcn.h>
#include <pthread.h>

struct driver runtime_driver;

static pthread_once_t load_once = PTHREAD_ONCE_INIT;
static cudaError_t load_error;
static pthread_mutex_t primary_lock = PTHREAD_MUTEX_INITIALIZER;
static CUcontext primaries[MAX_DEVICES];
static bool retained[MAX_DEVICES];
static bool initialized_driver;
static __thread int thread_device;

static void load(void)
{
	static const CUuuid id = EXPORT_TABLE_ID;
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	__typeof__(cuGetExportTable) *get_table;
	const void *table = NULL;
	int status;

	load_error = CUDA_ERROR_INSUFFICIENT_DRIVER;
	if (!library)
		return;
	DRV(cuGetProcAddress_v2) =
		(__typeof__(cuGetProcAddress_v2) *)dlsym(library, "cuGetProcAddress_v2");
	get_table = (__typeof__(cuGetExportTable) *)dlsym(library, "cuGetExportTable");
	if (!DRV(cuGetProcAddress_v2) || !get_table || get_table(&table, &id))
		return;	/* not the stand-in driver */
	runtime_driver.hidden = table;
#define LOOK_UP(name, asked, ptsz)                                                                 \
	if (DRV(cuGetProcAddress_v2)(asked, (void **)&DRV(name), RUNTIME_VERSION,                  \
				     ptsz ? 2 : 1, &status) ||                                     \
	    status)                                                                                \
		return;
	RUNTIME_DRIVER_FUNCTIONS(LOOK_UP)
#undef LOOK_UP
	load_error = CUDA_SUCCESS;
}

cudaError_t runtime_load(void)
{
	pthread_once(&load_once, load);
	return load_error;
}

cudaError_t runtime_init(void)
{
	cudaError_t error = runtime_load();

	if (error)
		return error;
	pthread_mutex_lock(&primary_lock);
	if (!initialized_driver) {
		error = DRV(cuInit)(0);
		initialized_driver = !error;
	}
	pthread_mutex_unlock(&primary_lock);
	return error;
}

int runtime_thread_device(void)
{
	return thread_device;
}

cudaError_t runtime_bind(int device)
{
	cudaError_t error = runtime_init();
	bool late, first;

	if (error)
		return error;
	pthread_mutex_lock(&primary_lock);
	first = !retained[device];
	late = first && runtime_driver.hidden->retain_late;
	if (late)
		primaries[device] = runtime_driver.hidden->primary_open(device);
	else if (first)
		error = DRV(cuDevicePrimaryCtxRetain)(&primaries[device], device);
	if (!error)
		error = DRV(cuCtxSetCurrent)(primaries[device]);
	if (!error && late)
		error = DRV(cuDevicePrimaryCtxRetain)(&primaries[device], device);
	if (!error) {
		retained[device] = true;
		thread_device = device;
	}
	pthread_mutex_unlock(&primary_lock);
	return error;
}

cudaError_t runtime_context(void)
{
	cudaError_t error = runtime_init();
	CUcontext current = NULL;

	if (error || (error = DRV(cuCtxGetCurrent)(&current)))
		return error;
	if (!current)
		return runtime_bind(thread_device);
	for (int i = 0; i < MAX_DEVICES; i++)
		if (current == primaries[i] && !retained[i])
			return runtime_bind(i);	/* after cudaDeviceReset */
	return CUDA_SUCCESS;
}

void runtime_forget(int device)
{
	pthread_mutex_lock(&primary_lock);
	retained[device] = false;
	pthread_mutex_unlock(&primary_lock);
}
