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
#include <bpf/bpf_tracing.h>

#include "events.h"
#include "kernel.bpf.h"
#include "maps.bpf.h"
#include "native.bpf.h"
#include "python.bpf.h"
#include "calls.bpf.h"
#include "lifecycle.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Keeps these types in the object's BTF, where user space reads them. */
const volatile struct abi {
	enum counter counter;
	enum call_mode call_mode;
	enum event_type event_type;
	enum stack_state stack_state;
	enum python_state python_state;
	struct call_event call_event;
	struct stack_event stack_event;
	struct process_event process_event;
	struct python_frame python_frame;
} abi;

/*
 * Three ways to attach, the same logic. User space loads one of them and sets the expected attach
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
