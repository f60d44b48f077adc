/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Maps shared by the programs, and counting. */
#ifndef GPUMEMPROF_MAPS_H
#define GPUMEMPROF_MAPS_H

#define MAX_PROCESSES 16384
#define MAX_THREADS 32768
#define SCRATCH_PER_CPU 2	/* a program can be preempted by another on the same processor */

/* User space sets these sizes before loading, by the machine's processors and its own options. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4 * 1024 * 1024);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 16 * 1024 * 1024);
} stacks SEC(".maps");

struct settings {
	__u32 record_all;	/* processes not in the map are recorded */
	__u32 follow;		/* children of recorded processes are recorded */
	__u32 stack_bytes;	/* how much of a stack to copy at most */
	__u32 events_wake;	/* wake the reader when this many bytes wait in a ring */
	__u32 stacks_wake;
	__u32 paused;		/* the programs do nothing */
	__u32 idle;		/* the reader sleeps long: wake it for the first record, once */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct settings);
} settings SEC(".maps");

/* Recorded processes by pid: 1 on, 0 off (matters when record_all). */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_PROCESSES);
	__type(key, __u32);
	__type(value, __u32);
} processes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_PROCESSES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct python_target);
} python_targets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNT_MAX);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

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
	__u64 *value = bpf_map_lookup_elem(&counters, &which);

	if (value)
		__sync_fetch_and_add(value, 1);
}

static __always_inline struct settings *get_settings(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&settings, &zero);
}

/*
 * Readers poll, so that a call pays for no wake-up. One that has slept for long is woken by the
 * first record, since what it has to read of the program may be gone soon; others when much waits.
 */
static __always_inline __u64 wake_flags(void *ring, __u32 threshold, struct settings *set)
{
	if (set->idle && __sync_lock_test_and_set(&set->idle, 0))
		return BPF_RB_FORCE_WAKEUP;
	if (bpf_ringbuf_query(ring, BPF_RB_AVAIL_DATA) >= threshold)
		return BPF_RB_FORCE_WAKEUP;
	return BPF_RB_NO_WAKEUP;
}

static __always_inline void fill_header(struct event_header *h, __u32 type, __u32 call)
{
	struct task_struct *task = (void *)bpf_get_current_task_btf();
	__u64 pid_tgid = bpf_get_current_pid_tgid();

	h->time_ns = bpf_ktime_get_ns();
	h->start_ns = task->group_leader->start_boottime;
	h->pid = pid_tgid >> 32;
	h->tid = (__u32)pid_tgid;
	h->type = type;
	h->call = call;
}

#endif
