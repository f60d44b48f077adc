/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program as one that is linked with the static runtime looks from outside: no libcudart, the
 * driver opened by name, its functions through cuGetProcAddress_v2. Allocates once in every way
 * that the driver has, each in a function of its own name, and tells what it holds at the end.
 *
 *   driver_only [--wait] [--hold SECONDS] [--free]
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "driver_calls.h"

#define MIB (1ull << 20)
#define CUDA_VERSION 12040

/* F(name here, name asked for) */
#define FUNCTIONS(F)                                                                               \
	F(cuInit, "cuInit") F(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain")                \
	F(cuCtxSetCurrent, "cuCtxSetCurrent") F(cuMemGetInfo_v2, "cuMemGetInfo")                   \
	F(cuMemAlloc_v2, "cuMemAlloc") F(cuMemAllocPitch_v2, "cuMemAllocPitch")                    \
	F(cuMemAllocManaged, "cuMemAllocManaged") F(cuMemFree_v2, "cuMemFree")                     \
	F(cuMemHostAlloc, "cuMemHostAlloc") F(cuMemFreeHost, "cuMemFreeHost")                      \
	F(cuArray3DCreate_v2, "cuArray3DCreate") F(cuArrayDestroy, "cuArrayDestroy")               \
	F(cuMemAllocAsync, "cuMemAllocAsync") F(cuMemFreeAsync, "cuMemFreeAsync")                  \
	F(cuMemAddressReserve, "cuMemAddressReserve") F(cuMemCreate, "cuMemCreate")                \
	F(cuMemMap, "cuMemMap") F(cuMemUnmap, "cuMemUnmap") F(cuMemRelease, "cuMemRelease")        \
	F(cuMemAddressFree, "cuMemAddressFree")

#define POINTER(name, asked) static __typeof__(name) *drv_##name;
FUNCTIONS(POINTER)
#undef POINTER

#define SEGMENTS 4

static struct {
	CUdeviceptr weights, table, shared, scratch, segments;
	void *staging;
	CUarray texture;
	size_t pitch;
	CUmemGenericAllocationHandle handles[SEGMENTS];
} held;

#define CHECK(call)                                                                                \
	do {                                                                                       \
		int error = (call);                                                                \
		if (error) {                                                                       \
			fprintf(stderr, "driver_only: %s: error %d\n", #call, error);              \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

#define STEP __attribute__((noinline)) static void

STEP allocate_weights(void)
{
	CHECK(drv_cuMemAlloc_v2(&held.weights, 64 * MIB));
}

STEP allocate_lookup_table(void)
{
	CHECK(drv_cuMemAllocPitch_v2(&held.table, &held.pitch, 1000, 1000, 4));
}

STEP allocate_shared_state(void)
{
	CHECK(drv_cuMemAllocManaged(&held.shared, 16 * MIB, 1));
}

STEP allocate_staging_buffer(void)
{
	CHECK(drv_cuMemHostAlloc(&held.staging, 8 * MIB, 0));
}

STEP create_texture(void)
{
	CUDA_ARRAY3D_DESCRIPTOR desc = { 512, 512, 0, 0x20, 4, 0 };
	CHECK(drv_cuArray3DCreate_v2(&held.texture, &desc));
}

STEP allocate_scratch(void)
{
	CHECK(drv_cuMemAllocAsync(&held.scratch, 4 * MIB, NULL));
}

/* As an allocator with expandable segments does it. */
STEP expand_segment(int number)
{
	CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_PINNED,
				     .location = { CU_MEM_LOCATION_DEVICE, 0 } };
	CHECK(drv_cuMemCreate(&held.handles[number], 20 * MIB, &prop, 0));
	CHECK(drv_cuMemMap(held.segments + number * 20 * MIB, 20 * MIB, 0, held.handles[number],
			   0));
}

STEP ask_too_much(void)
{
	CUdeviceptr never;
	if (drv_cuMemAlloc_v2(&never, 1ull << 45) != CUDA_ERROR_OUT_OF_MEMORY) {
		fprintf(stderr, "driver_only: 32 TiB were not refused\n");
		exit(1);
	}
}

STEP free_all(void)
{
	CHECK(drv_cuMemFree_v2(held.weights));
	CHECK(drv_cuMemFree_v2(held.table));
	CHECK(drv_cuMemFree_v2(held.shared));
	CHECK(drv_cuMemFreeHost(held.staging));
	CHECK(drv_cuArrayDestroy(held.texture));
	CHECK(drv_cuMemFreeAsync(held.scratch, NULL));
	CHECK(drv_cuMemUnmap(held.segments, SEGMENTS * 20 * MIB));
	for (int i = 0; i < SEGMENTS; i++)
		CHECK(drv_cuMemRelease(held.handles[i]));
	CHECK(drv_cuMemAddressFree(held.segments, 1024 * MIB));
}

static void load_driver(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	__typeof__(cuGetProcAddress_v2) *look_up = NULL;
	int status;

	if (library)
		look_up = (__typeof__(look_up))dlsym(library, "cuGetProcAddress_v2");
	if (!look_up) {
		fprintf(stderr, "driver_only: %s\n", dlerror());
		exit(2);
	}
#define LOOK_UP(name, asked)                                                                       \
	CHECK(look_up(asked, (void **)&drv_##name, CUDA_VERSION, 0, &status));
	FUNCTIONS(LOOK_UP)
#undef LOOK_UP
}

int main(int argc, char **argv)
{
	size_t avail, total;
	bool give_back = false;
	double hold = 0;
	CUcontext context;

	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--free"))
			give_back = true;
		else if (!strcmp(argv[i], "--hold") && i + 1 < argc)
			hold = atof(argv[++i]);
		else if (!strcmp(argv[i], "--wait")) {
			puts("ready");
			fflush(stdout);
			if (getchar() == EOF)
				return 2;
		}
	}
	load_driver();
	CHECK(drv_cuInit(0));
	CHECK(drv_cuDevicePrimaryCtxRetain(&context, 0));
	CHECK(drv_cuCtxSetCurrent(context));
	allocate_weights();
	allocate_lookup_table();
	allocate_shared_state();
	allocate_staging_buffer();
	create_texture();
	allocate_scratch();
	CHECK(drv_cuMemAddressReserve(&held.segments, 1024 * MIB, 0, 0, 0));
	for (int i = 0; i < SEGMENTS; i++)
		expand_segment(i);
	ask_too_much();
	CHECK(drv_cuMemGetInfo_v2(&avail, &total));
	if (give_back)
		free_all();
	printf("{\"pid\":%d,\"device\":%llu,\"managed\":%llu,\"array\":%llu,\"pinned_host\":%llu,"
	       "\"free\":%zu,\"total\":%zu}\n",
	       getpid(),
	       give_back ? 0 : 64 * MIB + held.pitch * 1000 + 4 * MIB + SEGMENTS * 20 * MIB,
	       give_back ? 0 : 16 * MIB, give_back ? 0 : 512 * 512 * 16ull,
	       give_back ? 0 : 8 * MIB, avail, total);
	fflush(stdout);
	nanosleep(&(struct timespec){ (time_t)hold, (hold - (time_t)hold) * 1e9 }, NULL);
	return 0;
}
