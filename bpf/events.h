/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The layout of everything that crosses between the kernel and user space: the one definition.
 * User space reads these layouts from the BTF of the compiled object, by field name.
 */
#ifndef GPUMEMPROF_EVENTS_H
#define GPUMEMPROF_EVENTS_H

#define MAX_ARGS 6
#define MAX_OUT 4		/* u64 words copied back from one out parameter */
#define IN_WORDS 8		/* u64 words copied from a structure passed by pointer */
#define MAX_PY_FRAMES 256
#define STACK_CHUNK 4096	/* a user read is all or nothing: read page by page */
#define MAX_STACK 32768
#define COMM_LEN 16

/*
 * How the attach cookie of a probe is laid out; probe/calls.py packs it.
 *   id       row of the table of calls
 *   file     which probed file (one per inode), tells a double attachment from a new call
 *   mode     enum call_mode
 *   in_arg   1..6: this argument points to in_len units of 4 bytes to copy at entry; 0: none
 *   out1/2   1..6: this argument points to what to copy at return; 0: none. out1_len is in units
 *            of 4 bytes (4-byte pointers exist: the driver's first interface), out2 likewise
 */
#define COOKIE_ID_SHIFT 0	/* 10 bits */
#define COOKIE_FILE_SHIFT 10	/* 16 bits */
#define COOKIE_MODE_SHIFT 26	/* 4 bits */
#define COOKIE_IN_ARG_SHIFT 30	/* 3 bits */
#define COOKIE_IN_LEN_SHIFT 33	/* 5 bits */
#define COOKIE_OUT1_ARG_SHIFT 38	/* 3 bits */
#define COOKIE_OUT1_LEN_SHIFT 41	/* 4 bits */
#define COOKIE_OUT2_ARG_SHIFT 45	/* 3 bits */
#define COOKIE_OUT2_LEN_SHIFT 48	/* 2 bits */

enum call_mode {
	MODE_ALLOC = 1,		/* stack at entry, event at return */
	MODE_FREE = 2,		/* event at entry, another at return if it failed */
	MODE_RETURN = 3,	/* event at return, at any depth, no stack */
	MODE_RETURN_OUTER = 4,	/* event at return of the outermost hooked call, no stack */
	MODE_CONTEXT_SET = 5,	/* first argument is the thread's current context; no event */
	MODE_CONTEXT_PUSH = 6,	/* as set, after saving the one it replaces */
	MODE_CONTEXT_POP = 7,	/* the saved context is current again */
	MODE_CONTEXT_CREATE = 8,	/* MODE_RETURN, and the first out word becomes current */
	MODE_NOTICE = 9,	/* event at entry, of recorded processes (the dynamic linker's notice) */
	MODE_DISCOVER = 10,	/* event at entry, of every process that is not switched off (cuInit) */
	MODE_CONTEXT_DESTROY = 11,	/* MODE_RETURN; a current context is popped with its end */
};

enum event_type {
	EVENT_RETURN = 1,	/* struct call_event: a call of MODE_ALLOC, MODE_RETURN* returned */
	EVENT_ENTRY = 2,	/* struct call_event: a call of MODE_FREE, MODE_NOTICE was entered */
	EVENT_FREE_FAILED = 3,	/* struct call_event: a call of MODE_FREE returned an error */
	EVENT_FORK = 4,		/* struct process_event */
	EVENT_EXEC = 5,		/* struct process_event */
	EVENT_EXIT = 6,		/* struct process_event: the last thread of the process ended */
	EVENT_STACK = 7,	/* struct stack_event, in the ring of stacks */
};

/* What became of the stack of an allocation; also an index of nothing else. */
enum stack_state {
	STACK_NONE = 0,		/* not asked for */
	STACK_SENT = 1,
	STACK_RING_FULL = 2,	/* lost: the ring of stacks was full */
	STACK_NO_BUFFER = 3,	/* lost: every scratch buffer of this processor was in use */
};

/* What became of the Python part of a stack. */
enum python_state {
	PY_NOT_PYTHON = 0,	/* user space told nothing of an interpreter */
	PY_WALKED = 1,
	PY_NO_THREAD_STATE = 2,	/* a thread the interpreter does not know: no Python frames */
	PY_UNREADABLE = 3,	/* a page was not resident, or a pointer was wrong */
	PY_NOT_INITIALIZED = 4,	/* Py_Initialize has not run yet */
	PY_TRUNCATED = 5,	/* more than MAX_PY_FRAMES frames; the root end is cut */
};

/* Counters of what happened, by index; summed over processors. The names are told to users. */
enum counter {
	COUNT_EVENTS = 0,		/* events sent */
	COUNT_STACKS = 1,		/* stacks sent */
	COUNT_EVENTS_LOST = 2,		/* ring of events full: an event is gone, counts are wrong */
	COUNT_STACKS_LOST = 3,		/* ring of stacks full: counts hold, the stack is unknown */
	COUNT_STACK_NO_BUFFER = 4,
	COUNT_STACK_UNREADABLE = 5,	/* not even the top page of the stack could be read */
	COUNT_OUT_UNREADABLE = 6,	/* an out parameter could not be read at return */
	COUNT_IN_UNREADABLE = 7,
	COUNT_ABANDONED = 8,		/* a hooked call never returned (longjmp, exception) */
	COUNT_DOUBLE = 9,		/* one call seen by two attachments; counted once */
	COUNT_PY_UNREADABLE = 10,
	COUNT_PY_NO_THREAD_STATE = 11,
	COUNT_PY_TRUNCATED = 12,
	COUNT_THREADS_FULL = 13,	/* no room for the state of one more thread */
	COUNT_PROCESSES_FULL = 14,	/* no room for one more process */
	COUNT_TOO_DEEP = 15,		/* more hooked calls inside each other than there are slots */
	COUNT_MAX = 16,
};

struct event_header {
	__u64 time_ns;		/* CLOCK_MONOTONIC */
	__u64 start_ns;		/* start of the process since boot: with pid, its identity */
	__u32 pid;
	__u32 tid;
	__u32 type;		/* enum event_type */
	__u32 call;		/* row of the table of calls */
};

struct call_event {
	struct event_header h;
	__u64 context;		/* current CUDA context of the thread, 0 unknown */
	__u64 result;		/* return value; 0 at entry */
	__u64 args[MAX_ARGS];
	__u64 stack_args[4];	/* the words above the return address: arguments passed in memory */
	__u64 in[IN_WORDS];
	__u64 out1[MAX_OUT];
	__u64 out2;
	__u32 stack_id;		/* per thread: pairs with stack_event.stack_id */
	__u8 stack_state;
	__u8 readable;		/* bit 0 in, bit 1 out1, bit 2 out2, bit 3 stack_args */
	__u16 file;		/* which probed file */
};

/* One frame as the interpreter holds it; user space decides by version what it means. */
struct python_frame {
	__u64 code;		/* as stored, tag bits included */
	__u64 instruction;	/* pointer, or f_lasti up to 3.10 */
	__u32 fingerprint;	/* over code_fp_len bytes of the code object: tells a reused address */
	__u8 owner;
	__u8 is_entry;
	__u16 tlbc_index;	/* free-threaded builds: which copy of the bytecode */
};

struct stack_event {
	struct event_header h;
	__u64 ip, sp, bp, bx, r12, r13, r14, r15;	/* at entry of the call: sp points to the return address */
	__u64 fs_base;
	__u32 stack_id;
	__u32 stack_len;	/* bytes of stack that follow the Python frames, from sp upwards */
	__u16 py_frames;	/* struct python_frame that follow this header, innermost first */
	__u8 py_state;		/* enum python_state */
	__u8 window_full;	/* the stack went on above the window */
	__u32 pad;
};

struct process_event {
	struct event_header h;	/* pid is the process that did it */
	__u32 child;		/* EVENT_FORK: the new process */
	__u32 pad;
	__u64 child_start_ns;
	__u8 comm[COMM_LEN];
};

/*
 * Where a process's interpreter keeps its thread states and frames. Addresses are of the process;
 * an offset that a version does not have is 0xffff. Filled by stack/python/.
 */
struct python_target {
	__u64 tss_key_addr;	/* of {int initialized; pthread_key_t key} for the GIL state; 0: none */
	__u64 current_addr;	/* of the global pointer to the GIL holder's thread state (<= 3.11); 0 */
	__u64 interp_head_addr;	/* of the pointer to the first interpreter */
	__s64 tls_offset;	/* from fs base to the TLS pointer to the GIL state (3.15); 0: none */
	__s32 pthread_specific;	/* glibc: from fs base to specific_1stblock; musl: to the tsd pointer */
	__u16 libc;		/* 0 glibc, 1 musl */
	__u16 interp_threads;	/* interpreter -> first thread state */
	__u16 interp_next;	/* interpreter -> next interpreter */
	__u16 tstate_next;
	__u16 tstate_thread_id;	/* pthread_self: equals fs base, on glibc and musl */
	__u16 tstate_frame;	/* thread state -> innermost frame, or -> cframe */
	__u16 cframe_frame;	/* cframe -> innermost frame (3.11, 3.12) */
	__u16 frame_code;
	__u16 frame_previous;
	__u16 frame_instruction;
	__u16 frame_owner;
	__u16 frame_is_entry;
	__u16 frame_tlbc_index;
	__u16 frame_size;	/* bytes of a frame to read: covers all of the above, at most 128 */
	__u16 code_fp_offset;	/* bytes of the code object that tell it from another */
	__u16 code_fp_len;	/* a multiple of 8, at most 128 */
	__u16 instruction_is_int;	/* 1: frame_instruction is an int (<= 3.10) */
	__u16 code_tag_mask;	/* low bits of frame_code to clear before reading the code object */
};

#endif
