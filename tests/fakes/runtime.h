/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the stand-in runtime share. */
#ifndef RUNTIME_H
#define RUNTIME_H

#include "driver_calls.h"
#include "export_table.h"
#include "runtime_calls.h"

/* The driver's functions as cuGetProcAddress_v2 gave them. */
struct driver {
#define POINTER(name, asked, ptsz) __typeof__(name) *name;
	RUNTIME_DRIVER_FUNCTIONS(POINTER)
#undef POINTER
	__typeof__(cuGetProcAddress_v2) *cuGetProcAddress_v2;
	const struct export_table *hidden;
};

#define DRV(f) (runtime_driver.f)
extern struct driver runtime_driver;

/* Loads libcuda.so.1 once; CUDA_ERROR_INSUFFICIENT_DRIVER where there is none. */
cudaError_t runtime_load(void);
/* Loads, initialises, and makes a context current on this thread where none is. */
cudaError_t runtime_context(void);
/* Loads and initialises the driver only. */
cudaError_t runtime_init(void);
/* Makes the primary context of `device` current on this thread. */
cudaError_t runtime_bind(int device);
int runtime_thread_device(void);
/* The primary context of the thread's device is gone: the next call makes it anew. */
void runtime_forget(int device);

#endif
