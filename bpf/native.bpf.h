/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Captures registers and a window of the user stack; user space unwinds it with .eh_frame. */
#ifndef GPUMEMPROF_NATIVE_H
#define GPUMEMPROF_NATIVE_H

#define FRAME_BUFFER 128

/*
 * Where a stack is put together before it is sent. In a ring a reservation has a constant size,
 * and stacks differ by a factor of ten; so it is built here and copied once.
 */
struct scratch {
	__u32 busy;
	__u32 code_fp_len;	/* what to hash of a code object: python.bpf.h */
	__u64 code_fp_at;
	__u8 frame[FRAME_BUFFER + 8];
	__u8 code[FRAME_BUFFER + 8];
	struct stack_event event;
	__u8 data[MAX_PY_FRAMES * sizeof(struct python_frame) + MAX_STACK + STACK_CHUNK];
};

/* One row per processor and slot; user space sets max_entries to processors x SCRATCH_PER_CPU. */
DECLARE_MAP(scratches,
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SCRATCH_PER_CPU);
	__type(key, __u32);
	__type(value, struct scratch);
);

static __always_inline struct scratch *scratch_at(__u32 key)
{
	return bpf_map_lookup_elem(MAP(scratches), &key);
}

/*
 * The program may be preempted by itself in another thread: a buffer is claimed, not assumed. Its
 * number is put into `key`.
 */
static __always_inline struct scratch *claim_scratch(__u32 *key)
{
	struct scratch *s;
	int i;

	*key = bpf_get_smp_processor_id() * SCRATCH_PER_CPU;
#pragma unroll
	for (i = 0; i < SCRATCH_PER_CPU; i++, ++*key) {
		s = scratch_at(*key);
		if (!s)
			return NULL;
		/* Who is alone after adding to it has it. (Kernels before 5.12 have no exchange.) */
		__sync_fetch_and_add(&s->busy, 1);
		if (*(volatile __u32 *)&s->busy == 1)
			return s;
		__sync_fetch_and_add(&s->busy, -1);
	}
	return NULL;
}

static __always_inline void release_scratch(struct scratch *s)
{
	__sync_fetch_and_add(&s->busy, -1);
}

/*
 * Copies the stack from sp upwards to data + offset. Pieces end at page boundaries: a read that
 * touches a page which cannot be read gives nothing at all. Returns the bytes copied.
 */
static __always_inline __u32 copy_stack(struct scratch *s, __u32 offset, __u64 sp, __u32 limit)
{
	__u64 done = 0, at;
	int i;

	if (limit > MAX_STACK)
		limit = MAX_STACK;
	for (i = 0; i < MAX_STACK / STACK_CHUNK + 1; i++) {
		__u32 n = STACK_CHUNK - ((__u32)(sp + done) & (STACK_CHUNK - 1));

		if (done >= limit)
			break;
		if (n > limit - done)
			n = limit - done;
		n = size_within(n, STACK_CHUNK);
		at = offset + done;
		barrier_var(at);
		if (at > MAX_PY_FRAMES * sizeof(struct python_frame) + MAX_STACK)
			break;
		if (bpf_probe_read_user(s->data + at, n, (void *)(sp + done)))
			break;
		done += n;
	}
	return done;
}

#endif
