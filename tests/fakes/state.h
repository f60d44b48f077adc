/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all calls of the stand-ins share: settings, entering and leaving a call, and the truth.
 *
 * Settings (environment, read once):
 *   GPUMEMPROF_FAKE_DEVICES=N           number of GPUs, 0..16 (1)
 *   GPUMEMPROF_FAKE_DEVICE_BYTES=B      memory of each (80 GiB); per process, not shared
 *   GPUMEMPROF_FAKE_CONTEXT_BYTES=B     memory that a context itself takes from its device (0)
 *   GPUMEMPROF_FAKE_HOST_BYTES=B        limit of pinned and of managed memory, each (1 TiB)
 *   GPUMEMPROF_FAKE_FAIL=RULE,...       RULE is call:which:error; which is n (the n-th entry of
 *                                       that call), n+ (from then on) or * (each)
 *   GPUMEMPROF_FAKE_SLEEP=RULE,...      RULE is call:seconds[:which]; sleeps inside the call
 *   GPUMEMPROF_FAKE_STATS=PATH          truth is written there at exit; %p is the process id
 *   GPUMEMPROF_FAKE_RETAIN_LATE=1       the runtime sets a primary context current before it
 *                                       retains it through the driver's visible call
 *   CUDA_VISIBLE_DEVICES=2,0            as the genuine driver takes it (numbers only)
 */
#ifndef STATE_H
#define STATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>

#include "cuda_types.h"

#define EXPORT __attribute__((visibility("default")))
#define MAX_DEVICES 16

enum kind { KIND_DEVICE, KIND_MANAGED, KIND_ARRAY, KIND_PINNED_HOST, KINDS };

struct settings {
	int devices;
	int physical[MAX_DEVICES];	/* ordinal -> number of the GPU in the machine */
	uint64_t device_bytes, context_bytes, host_bytes;
	bool retain_late;
};
extern struct settings settings;

/* One call by name: how often it was entered, what to do to it. Kept for the process's life. */
struct call_site {
	struct call_site *next;
	const char *name;
	uint64_t entered, outermost, failed;
};

/* The one lock of everything below and of the tables of allocations. */
extern pthread_mutex_t fake_lock;

struct call_site *site_find(const char *name);
/* Counts the entry, sleeps, and returns the injected error, or 0 to go on. */
CUresult call_enter(struct call_site *site);
/* Counts the failure; returns `result`. */
CUresult call_leave(struct call_site *site, CUresult result);

/* True in a child of a process that had called cuInit: CUDA does not survive fork. */
extern bool forked_after_init;
extern bool initialized;

/* With fake_lock held. Takes `size` bytes of a kind on a device, or returns false: no room. */
bool account_add(enum kind kind, int device, uint64_t size);
void account_remove(enum kind kind, int device, uint64_t size);
/* Memory of a context itself: takes room, belongs to no kind. */
void account_context(int device, bool added);
/* Number of references to memory of other owners that are open. */
void account_import(int change);
/* Bytes of a device that are taken. */
uint64_t account_used(int device);

#endif
