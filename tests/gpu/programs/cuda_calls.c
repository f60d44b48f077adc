/* SPDX-License-Identifier: Apache-2.0 */
/* Makes one allocation with every kind of call and tells what it then holds: allocated, half of it
 * freed, after cudaDeviceReset. Built with the static and with the shared runtime. */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "portable.h"

enum kind { DEVICE, MANAGED, ARRAY, PINNED, KINDS };
static const char *const kind_names[KINDS] = { "device", "managed", "array", "pinned_host" };
static size_t held_bytes[KINDS], held_count[KINDS];
static size_t failed_bytes;
static int failed_error;

static void hold(enum kind kind, size_t bytes)
{
	held_bytes[kind] += bytes;
	held_count[kind]++;
}

static void let_go(enum kind kind, size_t bytes)
{
	held_bytes[kind] -= bytes;
	held_count[kind]--;
}

static void ready(const char *phase)
{
	size_t available = 0, total = 0;

	MUST(cudaMemGetInfo(&available, &total));
	printf("READY {\"phase\":\"%s\",\"free\":%zu,\"total\":%zu,\"failed_bytes\":%zu,"
	       "\"failed_error\":%d",
	       phase, available, total, failed_bytes, failed_error);
	for (int kind = 0; kind < KINDS; kind++)
		printf(",\"%s\":{\"bytes\":%zu,\"count\":%zu}", kind_names[kind], held_bytes[kind],
		       held_count[kind]);
	puts("}");
	wait_for_line();
}

/* Physical memory of the driver's virtual memory management. */
static struct {
	CUdeviceptr address;
	size_t size;
	CUmemGenericAllocationHandle handle;
} vmm;

static void *driver_function(const char *name)
{
	static void *library;
	void *found;

	if (!library)
		library = dlopen("libcuda.so.1", RTLD_NOW);
	found = library ? dlsym(library, name) : NULL;
	if (!found) {
		fprintf(stderr, "no %s\n", name);
		exit(3);
	}
	return found;
}

#define DRIVER(name) ((__typeof__(&name))driver_function(#name))

__attribute__((noinline)) static void vmm_allocate(void)
{
	CUmemAllocationProp property;

	memset(&property, 0, sizeof(property));
	property.type = 1;		/* pinned */
	property.location.type = 1;	/* a device */
	vmm.size = 4 * MIB;		/* a multiple of the granularity, 2 MiB */
	MUST(DRIVER(cuMemCreate)(&vmm.handle, vmm.size, &property, 0));
	MUST(DRIVER(cuMemAddressReserve)(&vmm.address, vmm.size, 0, 0, 0));
	MUST(DRIVER(cuMemMap)(vmm.address, vmm.size, 0, vmm.handle, 0));
	hold(DEVICE, vmm.size);
}

static void vmm_release(void)
{
	/* The mapping keeps the memory when the handle is released first. */
	MUST(DRIVER(cuMemRelease)(vmm.handle));
	ready("handle-released");
	MUST(DRIVER(cuMemUnmap)(vmm.address, vmm.size));
	MUST(DRIVER(cuMemAddressFree)(vmm.address, vmm.size));
	let_go(DEVICE, vmm.size);
}

static size_t mipmap_bytes(extent_t extent, unsigned int levels, size_t element)
{
	size_t bytes = 0;

	while (levels--) {
		bytes += extent.width * extent.height * (extent.depth ? extent.depth : 1) * element;
		extent.width = extent.width > 1 ? extent.width / 2 : 1;
		extent.height = extent.height > 1 ? extent.height / 2 : 1;
		extent.depth = extent.depth > 1 ? extent.depth / 2 : extent.depth;
	}
	return bytes;
}

int main(void)
{
	void *linear, *kept, *managed, *pitched, *async, *pinned, *registered, *nothing = NULL;
	size_t pitch;
	pitched_t cube;
	extent_t cube_extent = { 300, 40, 6 }, volume = { 64, 32, 16 }, image = { 256, 128, 0 };
	channels_t floats = { 32, 32, 32, 32, 2 }, bytes = { 8, 0, 0, 0, 1 };
	cudaArray_t flat, deep;
	cudaMipmappedArray_t mipmap;

	MUST(cudaSetDevice(0));
	MUST(cudaMalloc(&linear, 5 * MIB));
	hold(DEVICE, 5 * MIB);
	MUST(cudaMalloc(&kept, 7 * MIB + 12));
	hold(DEVICE, 7 * MIB + 12);
	MUST(cudaMallocManaged(&managed, 3 * MIB, 1));
	hold(MANAGED, 3 * MIB);
	MUST(cudaMallocPitch(&pitched, &pitch, 1000, 512));
	hold(DEVICE, pitch * 512);
	MUST(cudaMalloc3D(&cube, cube_extent));
	hold(DEVICE, cube.pitch * cube_extent.height * cube_extent.depth);
	MUST(cudaMallocHost(&pinned, 2 * MIB));
	hold(PINNED, 2 * MIB);
	if (posix_memalign(&registered, 4096, MIB))
		return 3;
	memset(registered, 1, MIB);
	MUST(cudaHostRegister(registered, MIB, 0));
	hold(PINNED, MIB);
	MUST(cudaMallocArray(&flat, &floats, 256, 128, 0));
	hold(ARRAY, 256 * 128 * 16);
	MUST(cudaMalloc3DArray(&deep, &bytes, volume, 0));
	hold(ARRAY, 64 * 32 * 16);
	MUST(cudaMallocMipmappedArray(&mipmap, &floats, image, 4, 0));
	hold(ARRAY, mipmap_bytes(image, 4, 16));
	MUST(cudaMallocAsync(&async, 6 * MIB, NULL));
	hold(DEVICE, 6 * MIB);
	vmm_allocate();
	MUST(cudaDeviceSynchronize());

	failed_bytes = (size_t)1 << 45;
	failed_error = (int)cudaMalloc(&nothing, failed_bytes);
	cudaGetLastError();
	ready("allocated");

	MUST(cudaFree(linear));
	let_go(DEVICE, 5 * MIB);
	MUST(cudaFree(NULL));
	MUST(cudaFree(pitched));
	let_go(DEVICE, pitch * 512);
	MUST(cudaFreeAsync(async, NULL));
	let_go(DEVICE, 6 * MIB);
	MUST(cudaDeviceSynchronize());
	MUST(cudaFreeArray(flat));
	let_go(ARRAY, 256 * 128 * 16);
	MUST(cudaFreeMipmappedArray(mipmap));
	let_go(ARRAY, mipmap_bytes(image, 4, 16));
	MUST(cudaFreeHost(pinned));
	let_go(PINNED, 2 * MIB);
	vmm_release();
	ready("half-freed");

	/* A free that fails gives nothing back. */
	if (!cudaFree((char *)kept + 4096))
		fprintf(stderr, "freeing the middle of an allocation worked\n");
	cudaGetLastError();
	ready("free-failed");

	MUST(cudaHostUnregister(registered));
	let_go(PINNED, MIB);
	MUST(cudaDeviceReset());
	memset(held_bytes, 0, sizeof(held_bytes));
	memset(held_count, 0, sizeof(held_count));
	puts("READY {\"phase\":\"reset\"}");
	wait_for_line();
	return 0;
}
