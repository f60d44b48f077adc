/* SPDX-License-Identifier: Apache-2.0 */
/* Physical memory and its handles, shared by the two halves of virtual memory management. */
#ifndef DRIVER_VMM_H
#define DRIVER_VMM_H

#include "driver_calls_impl.h"

#define GRANULARITY (2ull << 20)

struct physical {
	uint64_t size, number;
	enum kind kind;
	int device;
	bool foreign;			/* of another process: not accounted */
	unsigned int handles;
	struct physical *next;
};

struct handle {
	struct physical *physical;
	unsigned int references, mappings;
	bool imported;
	struct handle *next;
};

/* All with fake_lock held. */
/* The handle of this number if it is not yet released, else NULL. */
struct handle *find_handle(CUmemGenericAllocationHandle number);
/* After a release or an unmap: handle and memory go when nothing refers to them. */
void drop_handle(struct handle *handle);

#endif
