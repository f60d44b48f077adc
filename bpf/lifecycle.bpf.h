/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Fork, exec and exit of recorded processes, in one order with their calls: tracepoints, which
 * need neither kprobes nor a tracefs mount.
 */
#ifndef GPUMEMPROF_LIFECYCLE_H
#define GPUMEMPROF_LIFECYCLE_H

static __always_inline void send_process_event(__u32 type, struct task_struct *child)
{
	struct process_event *e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);

	if (!e) {
		count(COUNT_EVENTS_LOST);
		return;
	}
	__builtin_memset(e, 0, sizeof(*e));
	fill_header(&e->h, type, 0);
	if (child) {
		e->child = child->tgid;
		e->child_start_ns = child->start_boottime;
	}
	bpf_get_current_comm(e->comm, sizeof(e->comm));
	count(COUNT_EVENTS);
	bpf_ringbuf_submit(e, BPF_RB_FORCE_WAKEUP);
}

SEC("tp_btf/sched_process_fork")
int on_fork(__u64 *ctx)
{
	struct task_struct *child = (void *)ctx[1];
	__u32 parent = bpf_get_current_pid_tgid() >> 32, pid, value;
	struct python_target *target;
	struct settings *set = get_settings();
	__u32 *on;

	pid = child->tgid;
	if (child->pid != pid || !set || !set->follow)
		return 0;	/* a thread */
	on = bpf_map_lookup_elem(&processes, &parent);
	if (!on)
		return 0;
	value = *on;
	if (bpf_map_update_elem(&processes, &pid, &value, BPF_ANY))
		count(COUNT_PROCESSES_FULL);
	/* the child is a copy of its parent until it calls exec */
	target = bpf_map_lookup_elem(&python_targets, &parent);
	if (target)
		bpf_map_update_elem(&python_targets, &pid, target, BPF_ANY);
	if (value)
		send_process_event(EVENT_FORK, child);
	return 0;
}

SEC("tp_btf/sched_process_exec")
int on_exec(__u64 *ctx)
{
	__u64 pid_tgid = bpf_get_current_pid_tgid();
	__u32 pid = pid_tgid >> 32, tid = (__u32)pid_tgid;
	__u32 *on = bpf_map_lookup_elem(&processes, &pid);

	if (!on)
		return 0;
	bpf_map_delete_elem(&threads, &tid);
	bpf_map_delete_elem(&python_targets, &pid);
	if (*on)
		send_process_event(EVENT_EXEC, NULL);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int on_exit(__u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	__u32 pid = task->tgid, tid = task->pid, value;
	__u32 *on;

	/* before looking at the process, which another thread may have ended: the number comes again */
	bpf_map_delete_elem(&threads, &tid);
	on = bpf_map_lookup_elem(&processes, &pid);
	if (!on)
		return 0;
	/* only the last thread's end is the end of the process */
	if (task->signal->live.counter > 0)
		return 0;
	value = *on;
	if (bpf_map_delete_elem(&processes, &pid))
		return 0;	/* another thread ended at the same time and told it */
	bpf_map_delete_elem(&python_targets, &pid);
	if (value)
		send_process_event(EVENT_EXIT, NULL);
	return 0;
}

#endif
