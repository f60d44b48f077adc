/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The few kernel structures that are read, by field name: libbpf relocates the offsets to the
 * running kernel by its BTF, so no kernel headers are needed.
 */
#ifndef GPUMEMPROF_KERNEL_H
#define GPUMEMPROF_KERNEL_H

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
	char comm[COMM_LEN];
	struct thread_struct thread;
};

#pragma clang attribute pop

#endif
