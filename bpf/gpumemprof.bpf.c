// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Follows calls of the CUDA libraries. One generic pair of programs serves every hooked call:
 * the attach cookie says which row of the table of calls it is and what to copy (events.h).
 *
 * Per call: the stack is taken at entry of the outermost call of a thread (at return its frames
 * are gone), the result and the out parameters at return. Allocations send the stack to a ring
 * of its own, so that a lost stack never loses a count.
 */
#include <linux/types.h>
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_helpers.h>

#include "events.h"
#include "kernel.bpf.h"
#include "maps.bpf.h"
#include "native.bpf.h"
#include "python.bpf.h"
#include "calls.bpf.h"
#include "lifecycle.bpf.h"

#ifndef GPUMEMPROF_BCC
char LICENSE[] SEC("license") = "Dual BSD/GPL";
#endif

/*
 * Never loaded: it keeps these types in the BTF, where user space reads them: what crosses between
 * the two, and what maps there are.
 */
struct abi {
	enum counter counter;
	enum call_mode call_mode;
	enum event_type event_type;
	enum stack_state stack_state;
	enum python_state python_state;
	struct call_event call_event;
	struct stack_event stack_event;
	struct process_event process_event;
	enum function function;
	struct python_frame python_frame;
	struct settings settings;
	struct python_target python_target;
	struct scratch scratch;
	struct thread_state thread_state;
	struct maps {
		struct events_map events;
		struct stacks_map stacks;
		struct settings_map settings;
		struct processes_map processes;
		struct python_targets_map python_targets;
		struct counters_map counters;
		struct scratches_map scratches;
		struct threads_map threads;
		struct blank_threads_map blank_threads;
		struct cookies_map cookies;
	} maps;
};

SEC("uprobe")
int abi(struct abi *unused)
{
	return 0;
}

/* See python.bpf.h. Here and not there since bcc compiles functions of this file only. */
__u64 fingerprint(__u64 key)
{
	return hash_code(key);
}

__u64 walk_python(__u64 key)
{
	return copy_frames(key);
}

/*
 * Four ways to attach, the same logic. User space loads one of them and sets the expected attach
 * type of "multi" and "session" programs itself: the libraries of older distributions know neither.
 */
SEC("uprobe")
int single_entry(struct pt_regs *ctx)
{
	call_entered(ctx, bpf_get_attach_cookie(ctx));
	return 0;
}

SEC("uretprobe")
int single_return(struct pt_regs *ctx)
{
	call_returned(ctx, bpf_get_attach_cookie(ctx));
	return 0;
}

SEC("uprobe")
int multi_entry(struct pt_regs *ctx)
{
	call_entered(ctx, bpf_get_attach_cookie(ctx));
	return 0;
}

SEC("uretprobe")
int multi_return(struct pt_regs *ctx)
{
	call_returned(ctx, bpf_get_attach_cookie(ctx));
	return 0;
}

/*
 * One program for both: at entry it says whether it wants the return (0) or not (1). Which it is
 * shows in the instruction pointer: at entry the probed address, at return where the call goes back
 * to. (The kernel's own bpf_session_is_return() has another prototype in Linux 7.2, and libbpf refuses
 * an object with the other one, needed or not.)
 */
SEC("uprobe")
int session(struct pt_regs *ctx)
{
	__u64 cookie = bpf_get_attach_cookie(ctx);

	if (bpf_get_func_ip(ctx) != ctx->rip) {
		call_returned(ctx, cookie);
		return 0;
	}
	return call_entered(ctx, cookie) ? 0 : 1;
}

/* Where there are no attach cookies (before 5.15): called by wrappers, which leave theirs here. */
SEC("uprobe")
int wrapped_entry(struct pt_regs *ctx)
{
	call_entered(ctx, wrapped_cookie());
	return 0;
}

SEC("uretprobe")
int wrapped_return(struct pt_regs *ctx)
{
	call_returned(ctx, wrapped_cookie());
	return 0;
}

SEC("raw_tp/sched_process_fork")
int on_fork(__u64 *ctx)
{
	process_forked(ctx[1]);
	return 0;
}

SEC("raw_tp/sched_process_exec")
int on_exec(__u64 *ctx)
{
	process_executed((__u32)ctx[1]);
	return 0;
}

SEC("raw_tp/sched_process_exit")
int on_exit(__u64 *ctx)
{
	task_exited(ctx[0]);
	return 0;
}

/* For measuring: what a probe costs that does nothing. */
SEC("uprobe")
int empty_session(struct pt_regs *ctx)
{
	return 0;
}

SEC("uprobe")
int empty_entry(struct pt_regs *ctx)
{
	return 0;
}

SEC("uretprobe")
int empty_return(struct pt_regs *ctx)
{
	return 0;
}
