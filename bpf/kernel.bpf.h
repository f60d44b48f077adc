/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The few fields of kernel structures that are read, by name and without kernel headers: libbpf
 * relocates their offsets to the running kernel by its BTF; bcc is given them by user space, which
 * reads them in the BTF or, where there is none, finds them (gpumemprof/probe/offsets.py).
 */
#ifndef GPUMEMPROF_KERNEL_H
#define GPUMEMPROF_KERNEL_H

#ifdef GPUMEMPROF_BCC

#define FIELD(type, base, field) ((__u64)(base) + OFFSET_##type##_##field)

#else

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct thread_struct {
	unsigned long fsbase;
};

typedef struct {
	int counter;
} kernel_atomic_t;

struct signal_struct {
	kernel_atomic_t live;	/* threads that have not ended */
};

struct task_struct {
	int pid;
	int tgid;
	struct task_struct *group_leader;
	struct signal_struct *signal;
	__u64 start_boottime;
	struct thread_struct thread;
};

#pragma clang attribute pop

#define FIELD(type, base, field) ((__u64)&((struct type *)(base))->field)

#endif

static __always_inline __u64 kernel_u64(__u64 address)
{
	__u64 value = 0;

	bpf_probe_read_kernel(&value, sizeof(value), (void *)address);
	return value;
}

static __always_inline __u32 kernel_u32(__u64 address)
{
	__u32 value = 0;

	bpf_probe_read_kernel(&value, sizeof(value), (void *)address);
	return value;
}

/* When the process that the task belongs to started, since boot: with its pid, its identity. */
static __always_inline __u64 process_start(__u64 task)
{
	__u64 leader = kernel_u64(FIELD(task_struct, task, group_leader));

	return kernel_u64(FIELD(task_struct, leader, start_boottime));
}

static __always_inline __u64 fs_base_of(__u64 task)
{
	return kernel_u64(FIELD(thread_struct, FIELD(task_struct, task, thread), fsbase));
}

#endif
