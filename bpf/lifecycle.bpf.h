/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Fork, exec and exit of recorded processes, in one order with their calls: raw
 * tracepoints, which need neither kprobes nor a tracefs mount nor BTF.
 */
#ifndef GPUMEMPROF_LIFECYCLE_H
#define GPUMEMPROF_LIFECYCLE_H

static __always_inline void send_process_event(__u32 type, __u64 child)
{
	struct process_event *e = bpf_ringbuf_reserve(MAP(events), sizeof(*e), 0);

	if (!e) {
		count(COUNT_EVENTS_LOST);
		return;
	}
	__builtin_memset(e, 0, sizeof(*e));
	fill_header(&e->h, type, 0, process_start(bpf_get_current_task()));
	if (child) {
		e->child = kernel_u32(FIELD(task_struct, child, tgid));
		e->child_start_ns = kernel_u64(FIELD(task_struct, child, start_boottime));
	}
	bpf_get_current_comm(e->comm, sizeof(e->comm));
	count(COUNT_EVENTS);
	bpf_ringbuf_submit(e, BPF_RB_FORCE_WAKEUP);
}

static __always_inline void process_forked(__u64 child)
{
	__u32 parent = bpf_get_current_pid_tgid() >> 32, pid, value;
	struct python_target *target;
	struct settings *set = get_settings();
	__u32 *on;

	pid = kernel_u32(FIELD(task_struct, child, tgid));
	if (kernel_u32(FIELD(task_struct, child, pid)) != pid || !set || !set->follow)
		return;	/* a thread */
	on = bpf_map_lookup_elem(MAP(processes), &parent);
	if (!on)
		return;
	value = *on;
	if (bpf_map_update_elem(MAP(processes), &pid, &value, BPF_ANY))
		count(COUNT_PROCESSES_FULL);
	/* the child is a copy of its parent until it calls exec */
	target = bpf_map_lookup_elem(MAP(python_targets), &parent);
	if (target)
		bpf_map_update_elem(MAP(python_targets), &pid, target, BPF_ANY);
	if (value)
		send_process_event(EVENT_FORK, child);
}

/* old_tid: of the thread that called exec, which has the number of the process from now on */
static __always_inline void process_executed(__u32 old_tid)
{
	__u64 pid_tgid = bpf_get_current_pid_tgid();
	__u32 pid = pid_tgid >> 32, tid = (__u32)pid_tgid;
	__u32 *on;

	bpf_map_delete_elem(MAP(threads), &tid);
	bpf_map_delete_elem(MAP(threads), &old_tid);
	on = bpf_map_lookup_elem(MAP(processes), &pid);
	if (!on)
		return;
	bpf_map_delete_elem(MAP(python_targets), &pid);
	if (*on)
		send_process_event(EVENT_EXEC, 0);
}

static __always_inline void task_exited(__u64 task)
{
	__u64 pid_tgid = bpf_get_current_pid_tgid(), signal;
	__u32 pid = pid_tgid >> 32, tid = (__u32)pid_tgid, value;
	__u32 *on;

	/* before looking at the process, which another thread may have ended: the number comes again */
	bpf_map_delete_elem(MAP(threads), &tid);
	on = bpf_map_lookup_elem(MAP(processes), &pid);
	if (!on)
		return;
	/* only the last thread's end is the end of the process */
	signal = kernel_u64(FIELD(task_struct, task, signal));
	if ((__s32)kernel_u32(FIELD(signal_struct, signal, live)) > 0)
		return;
	value = *on;
	if (bpf_map_delete_elem(MAP(processes), &pid))
		return;	/* another thread ended at the same time and told it */
	bpf_map_delete_elem(MAP(python_targets), &pid);
	if (value)
		send_process_event(EVENT_EXIT, 0);
}

#endif
