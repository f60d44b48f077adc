/* SPDX-License-Identifier: Apache-2.0 */
/* The table of allocations, and the address space they live in. All with fake_lock held. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "driver.h"

#define SMALLEST_CLASS 9	/* 512 bytes, the alignment of device memory */
#define CLASSES 48
#define LARGE_ALIGN (2ull << 20)

/* --- arenas: inaccessible address space, one a device; blocks of powers of two --- */

struct free_list {
	uint64_t *addresses;
	size_t count, room;
};

struct arena {
	uint64_t top, end;
	struct free_list free[CLASSES];
};

static struct arena arenas[MAX_DEVICES], low_arena;

static bool arena_open(struct arena *arena, uint64_t size, int flags)
{
	void *base;

	if (arena->end)
		return true;
	/* costs nothing: no page of it is ever touched */
	for (; size >= LARGE_ALIGN; size /= 2) {
		base = mmap(NULL, size, PROT_NONE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
		if (base != MAP_FAILED) {
			arena->top = (uint64_t)base;
			arena->end = arena->top + size;
			return true;
		}
	}
	return false;
}

static int class_of(uint64_t size)
{
	int class = SMALLEST_CLASS;
	while (class < CLASSES && (1ull << class) < size)
		class++;
	return class;
}

uint64_t arena_take(int device, uint64_t size, bool low, uint64_t *range)
{
	struct arena *arena = low ? &low_arena : &arenas[device];
	int class = class_of(size);
	uint64_t align, address;

	/* room for each size class to have held the whole device once */
	if (class == CLASSES || !arena_open(arena, low ? 256ull << 20 : 4ull << 40,
					    low ? MAP_32BIT : 0))
		return 0;
	*range = 1ull << class;
	if (arena->free[class].count)
		return arena->free[class].addresses[--arena->free[class].count];
	align = *range < LARGE_ALIGN ? *range : LARGE_ALIGN;
	address = (arena->top + align - 1) & ~(align - 1);
	if (address > arena->end || *range > arena->end - address)
		return 0;
	arena->top = address + *range;
	return address;
}

static void arena_give(struct arena *arena, uint64_t address, uint64_t range)
{
	struct free_list *list = &arena->free[class_of(range)];

	if (list->count == list->room) {
		size_t room = list->room ? list->room * 2 : 64;
		uint64_t *more = realloc(list->addresses, room * sizeof(*more));
		if (!more)
			return;	/* only address space is lost */
		list->addresses = more;
		list->room = room;
	}
	list->addresses[list->count++] = address;
}

/* --- the table --- */

static struct allocation **buckets, *spare;
static size_t bucket_count, live_count;

static size_t bucket_of(uint64_t address)
{
	return (address >> 4) * 0x9e3779b97f4a7c15ull >> 20 & (bucket_count - 1);
}

static bool table_grow(void)
{
	size_t old_count = bucket_count, count = bucket_count ? bucket_count * 4 : 1024;
	struct allocation **old = buckets, **fresh;

	if (live_count < bucket_count)
		return true;
	fresh = calloc(count, sizeof(*fresh));
	if (!fresh)
		return old != NULL;
	buckets = fresh;
	bucket_count = count;
	for (size_t i = 0; i < old_count; i++)
		for (struct allocation *one = old[i], *next; one; one = next) {
			next = one->next;
			one->next = buckets[bucket_of(one->address)];
			buckets[bucket_of(one->address)] = one;
		}
	free(old);
	return true;
}

struct allocation *allocation_find(uint64_t address)
{
	struct allocation *one = bucket_count ? buckets[bucket_of(address)] : NULL;

	while (one && one->address != address)
		one = one->next;
	return one;
}

struct allocation *allocation_containing(uint64_t address)
{
	for (size_t i = 0; i < bucket_count; i++)
		for (struct allocation *one = buckets[i]; one; one = one->next)
			if (address >= one->address && address - one->address < one->size)
				return one;
	return NULL;
}

struct allocation *allocation_with_key(const uint64_t key[4])
{
	for (size_t i = 0; i < bucket_count; i++)
		for (struct allocation *one = buckets[i]; one; one = one->next)
			if (!memcmp(one->key, key, sizeof(one->key)))
				return one;
	return NULL;
}

struct allocation *allocation_insert(struct allocation value)
{
	struct allocation *one = spare;

	if (!table_grow())
		return NULL;
	if (one)
		spare = one->next;
	else if (!(one = malloc(sizeof(*one))))
		return NULL;
	*one = value;
	one->next = buckets[bucket_of(value.address)];
	buckets[bucket_of(value.address)] = one;
	live_count++;
	return one;
}

static void give_back(struct allocation *one)
{
	switch (one->origin) {
	case FROM_DEVICE:
	case FROM_POOL:
		arena_give(one->low ? &low_arena : &arenas[one->device], one->address, one->range);
		break;
	case FROM_MANAGED:
	case FROM_HOST_ALLOC:
	case FROM_IPC:
	case FROM_EXTERNAL:
	case FROM_POOL_IMPORT:
		munmap((void *)one->address, one->range);
		break;
	case FROM_ARRAY:
	case FROM_MIPMAP:
	case FROM_LEVEL:
		free((void *)one->address);
		break;
	case FROM_HOST_REGISTER:
		break;
	}
	if (one->origin >= FROM_IPC)
		account_import(-1);
	else if (one->origin != FROM_LEVEL)
		account_remove(one->kind, one->device, one->size);
	if (one->pool)
		pool_shrink(one->pool, one->size);
}

void allocation_remove(struct allocation *one)
{
	struct allocation **link = &buckets[bucket_of(one->address)];

	while (*link != one)
		link = &(*link)->next;
	*link = one->next;
	live_count--;
	give_back(one);
	one->next = spare;
	spare = one;
}

void allocations_end_context(struct fake_context *context)
{
	for (size_t i = 0; i < bucket_count; i++)
		for (struct allocation *one = buckets[i], *next; one; one = next) {
			next = one->next;
			if (one->context == context)
				allocation_remove(one);
		}
}
