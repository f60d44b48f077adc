/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Maps shared by the programs, and counting. */
#ifndef GPUMEMPROF_MAPS_H
#define GPUMEMPROF_MAPS_H

#define MAX_PROCESSES 16384
#define MAX_THREADS 32768
#define SCRATCH_PER_CPU 2	/* a program can be preempted by another on the same processor */

/*
 * A map is declared by DECLARE_MAP and used as MAP(name). libbpf makes it from the declaration; with
 * bcc user space does, from the same declaration in the BTF, and puts its descriptor in the place
 * of the number that the declaration gets here.
 */
#ifdef GPUMEMPROF_BCC
#define MAP(name) ((void *)bpf_pseudo_fd(1, MAP_##name))
#define DECLARE_MAP(name, ...)			\
	enum { MAP_##name = __COUNTER__ };	\
	struct name##_map { __uint(number, MAP_##name); __VA_ARGS__ }
#else
#define MAP(name) (&name)
#define DECLARE_MAP(name, ...) struct name##_map { __VA_ARGS__ } name SEC(".maps")
#endif

/* User space sets these sizes before loading, by the machine's processors and its own options. */
DECLARE_MAP(events,
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4 * 1024 * 1024);
);

DECLARE_MAP(stacks,
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 16 * 1024 * 1024);
);

struct settings {
	__u32 record_all;	/* processes not in the map are recorded */
	__u32 follow;		/* children of recorded processes are recorded */
	__u32 stack_bytes;	/* how much of a stack to copy at most */
	__u32 events_wake;	/* wake the reader when this many bytes wait in a ring */
	__u32 stacks_wake;
	__u32 paused;		/* the programs do nothing */
	__u32 idle;		/* the reader sleeps long: wake it for the first record, once */
};

DECLARE_MAP(settings,
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct settings);
);

/* Recorded processes by pid: 1 on, 0 off (matters when record_all). */
DECLARE_MAP(processes,
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_PROCESSES);
	__type(key, __u32);
	__type(value, __u32);
);

DECLARE_MAP(python_targets,
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_PROCESSES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct python_target);
);

/* The cookie of the call that is handled on this processor, where the kernel keeps none: set by a
 * wrapper (gpumemprof/probe/wrappers.py) right before it calls the program. */
DECLARE_MAP(cookies,
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
);

DECLARE_MAP(counters,
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNT_MAX);
	__type(key, __u32);
	__type(value, __u64);
);

/*
 * A size of 1 to `most` bytes (a power of two), bounded where it is used and without a branch.
 * Verifiers before 6.8 forget what is known of a value when it is copied or kept on the stack, and
 * follow every branch by itself; barrier_var keeps the compiler from leaving out what it knows.
 */
static __always_inline __u32 size_within(__u32 size, __u32 most)
{
	barrier_var(size);
	return ((size - 1) & (most - 1)) + 1;
}

static __always_inline void count(__u32 which)
{
	__u64 *value = bpf_map_lookup_elem(MAP(counters), &which);

	if (value)
		__sync_fetch_and_add(value, 1);
}

static __always_inline __u64 wrapped_cookie(void)
{
	__u32 zero = 0;
	__u64 *cookie = bpf_map_lookup_elem(MAP(cookies), &zero);

	return cookie ? *cookie : 0;
}

static __always_inline struct settings *get_settings(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(MAP(settings), &zero);
}

/*
 * Readers poll, so that a call pays for no wake-up. One that has slept for long is woken by the
 * first record, since what it has to read of the program may be gone soon; others when much waits.
 */
static __always_inline __u64 wake_flags(void *ring, __u32 threshold, struct settings *set)
{
	if (set->idle) {
		set->idle = 0;	/* two at a time may both wake it */
		return BPF_RB_FORCE_WAKEUP;
	}
	if (bpf_ringbuf_query(ring, BPF_RB_AVAIL_DATA) >= threshold)
		return BPF_RB_FORCE_WAKEUP;
	return BPF_RB_NO_WAKEUP;
}

static __always_inline void fill_header(struct event_header *h, __u32 type, __u32 call,
					__u64 start_ns)
{
	__u64 pid_tgid = bpf_get_current_pid_tgid();

	h->time_ns = bpf_ktime_get_ns();
	h->start_ns = start_ns;
	h->pid = pid_tgid >> 32;
	h->tid = (__u32)pid_tgid;
	h->type = type;
	h->call = call;
}

#endif
