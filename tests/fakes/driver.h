/* SPDX-License-Identifier: Apache-2.0 */
/* What carries out the calls of driver_calls.h, and what those parts share. */
#ifndef DRIVER_H
#define DRIVER_H

#include "state.h"

struct fake_context {
	int device;
	bool primary, alive;
	bool first_interface;	/* made by cuCtxCreate without _v2: for its 32-bit calls */
	unsigned int references;
};

/* How something in the table of allocations came to be, which says what may free it. */
enum origin {
	FROM_DEVICE,		/* cuMemAlloc and cuMemAllocPitch; address range of an arena */
	FROM_POOL,		/* cuMemAllocAsync and from a pool; likewise */
	FROM_MANAGED,		/* a mapping of its own, host-accessible */
	FROM_HOST_ALLOC,	/* likewise */
	FROM_HOST_REGISTER,	/* the program's own pages */
	FROM_ARRAY, FROM_MIPMAP,
	FROM_LEVEL,		/* a view of a mipmapped array: no bytes of its own */
	FROM_IPC, FROM_EXTERNAL, FROM_POOL_IMPORT,	/* memory of another owner */
};

struct allocation {
	struct allocation *next;
	uint64_t address;	/* or handle of an array */
	uint64_t size;
	uint64_t range;		/* bytes of address space */
	enum origin origin;
	enum kind kind;
	int device;
	bool low;		/* below 4 GiB, for the calls with 32-bit addresses */
	struct fake_context *context;	/* it ends with this */
	struct fake_pool *pool;
	unsigned int references;	/* FROM_IPC: times opened */
	uint64_t key[4];		/* FROM_IPC: what it was opened from */
};

/* --- driver_context.c --- */
/* The current context if it lives, else an error. */
CUresult context_current(struct fake_context **context);
/* What a call that frees asks for: no context is fine, a destroyed one is not. */
CUresult context_to_free(void);
CUresult need_init(void);
CUresult need_device(CUdevice device);
CUresult need_context(CUcontext context);

/* --- allocations.c: all with fake_lock held --- */
struct allocation *allocation_find(uint64_t address);
/* The allocation which contains the address, or NULL (slow: looks at all). */
struct allocation *allocation_containing(uint64_t address);
/* What was opened from a handle with this key, or NULL (looks at all). */
struct allocation *allocation_with_key(const uint64_t key[4]);
struct allocation *allocation_insert(struct allocation value);
/* Takes it out, gives back its address range and its bytes. */
void allocation_remove(struct allocation *one);
void allocations_end_context(struct fake_context *context);
/* Address space of a device, most recently freed first; 0: exhausted. */
uint64_t arena_take(int device, uint64_t size, bool low, uint64_t *range);

/* --- what pools tell the allocations --- */
void pool_shrink(struct fake_pool *pool, uint64_t size);

#endif
