/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Entry and return of hooked calls.
 *
 * A thread has a small stack of the calls it is in. Calls that handle memory count only when they
 * are outermost: cudaMalloc calls cuMemAlloc, and both are hooked. A slot is known by the stack
 * pointer at entry, which is what survives until the return, where it is found again 8 bytes lower.
 */
#ifndef GPUMEMPROF_CALLS_H
#define GPUMEMPROF_CALLS_H

#define EEXIST 17
#define SLOTS 4			/* a power of two */
#define SAVED_CONTEXTS 4

struct slot {
	__u64 sp;
	__u32 call;
	__u16 file;
	__u8 mode;
	__u8 stack_state;
	__u32 stack_id;
	__u32 readable;
	__u64 args[MAX_ARGS];
	__u64 stack_args[4];
	__u64 in[IN_WORDS];
};

struct thread_state {
	__u64 start_ns;		/* of the process */
	__u64 context;
	__u64 saved[SAVED_CONTEXTS];
	__u32 saved_count;
	__u32 depth;		/* slots in use */
	__u32 last_stack_id;
	__u32 pad;
	struct slot slots[SLOTS];
};

/* By thread id, until the thread ends or calls exec. One that finds no room is not recorded, and counted. */
DECLARE_MAP(threads,
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_THREADS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct thread_state);
);

/* What a new one begins as: nothing ever writes to it, so it is zeros. */
DECLARE_MAP(blank_threads,
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct thread_state);
);

/* The nth slot; barrier_var: see size_within(). */
static __always_inline struct slot *slot_at(struct thread_state *t, __u32 n)
{
	barrier_var(n);
	return &t->slots[n & (SLOTS - 1)];
}

struct cookie {
	__u32 call;
	__u32 file;
	__u32 mode;
	__u32 in_arg, in_bytes;
	__u32 out1_arg, out1_bytes;
	__u32 out2_arg, out2_bytes;
};

static __always_inline struct cookie unpack(__u64 c)
{
	struct cookie k = {
		.call = (c >> COOKIE_ID_SHIFT) & 0x3ff,
		.file = (c >> COOKIE_FILE_SHIFT) & 0xffff,
		.mode = (c >> COOKIE_MODE_SHIFT) & 0xf,
		.in_arg = (c >> COOKIE_IN_ARG_SHIFT) & 7,
		.in_bytes = ((c >> COOKIE_IN_LEN_SHIFT) & 0x1f) * 4,
		.out1_arg = (c >> COOKIE_OUT1_ARG_SHIFT) & 7,
		.out1_bytes = ((c >> COOKIE_OUT1_LEN_SHIFT) & 0xf) * 4,
		.out2_arg = (c >> COOKIE_OUT2_ARG_SHIFT) & 7,
		.out2_bytes = ((c >> COOKIE_OUT2_LEN_SHIFT) & 3) * 4,
	};
	return k;
}

/* Whether calls of this mode count only when no other such call of the thread is under way. */
static __always_inline bool is_outermost_only(__u32 mode)
{
	return mode == MODE_ALLOC || mode == MODE_FREE || mode == MODE_RETURN_OUTER;
}

static __always_inline bool changes_context(__u32 mode)
{
	return mode == MODE_CONTEXT_SET || mode == MODE_CONTEXT_PUSH || mode == MODE_CONTEXT_POP ||
	       mode == MODE_CONTEXT_CREATE || mode == MODE_CONTEXT_DESTROY;
}

enum wanted { OFF, ON, UNKNOWN };

static __always_inline enum wanted is_recorded(__u32 pid, const struct settings *set)
{
	__u32 *on = bpf_map_lookup_elem(MAP(processes), &pid);

	if (on)
		return *on ? ON : OFF;
	return set->record_all ? UNKNOWN : OFF;
}

static __always_inline struct thread_state *get_thread(__u32 tid)
{
	struct thread_state *t = bpf_map_lookup_elem(MAP(threads), &tid);
	struct thread_state *blank;
	__u32 zero = 0;

	if (t)
		return t;
	blank = bpf_map_lookup_elem(MAP(blank_threads), &zero);
	if (!blank)
		return NULL;
	bpf_map_update_elem(MAP(threads), &tid, blank, BPF_ANY);
	t = bpf_map_lookup_elem(MAP(threads), &tid);
	if (t)
		t->start_ns = process_start(bpf_get_current_task());
	else
		count(COUNT_THREADS_FULL);
	return t;
}

static __always_inline struct call_event *reserve_event(__u32 type, __u32 call,
						       __u64 start_ns)
{
	struct call_event *e = bpf_ringbuf_reserve(MAP(events), sizeof(*e), 0);

	if (!e) {
		count(COUNT_EVENTS_LOST);
		return NULL;
	}
	__builtin_memset(e, 0, sizeof(*e));
	fill_header(&e->h, type, call, start_ns);
	return e;
}

static __always_inline void submit_event(struct call_event *e, struct settings *set, bool now)
{
	count(COUNT_EVENTS);
	bpf_ringbuf_submit(e, now ? BPF_RB_FORCE_WAKEUP : wake_flags(MAP(events), set->events_wake, set));
}

static __always_inline void copy_args(__u64 *args, struct pt_regs *ctx)
{
	args[0] = ctx->rdi;
	args[1] = ctx->rsi;
	args[2] = ctx->rdx;
	args[3] = ctx->rcx;
	args[4] = ctx->r8;
	args[5] = ctx->r9;
}

/* The nth argument as it was at entry, n from 1. */
static __always_inline __u64 argument(const struct slot *slot, __u32 n)
{
	__u32 i = n - 1;

	barrier_var(i);
	if (i >= MAX_ARGS)
		return 0;
	return slot->args[i];
}

/* Sends registers, Python frames and the stack window of this call; returns enum stack_state. */
static __always_inline __u8 send_stack(struct pt_regs *ctx, struct settings *set,
				       const struct thread_state *t, __u32 call)
{
	struct scratch *s;
	__u32 key, frames, len, stack_len;
	__u64 size;
	__u8 state;
	long err;

	s = claim_scratch(&key);
	if (!s) {
		count(COUNT_STACK_NO_BUFFER);
		return STACK_NO_BUFFER;
	}
	fill_header(&s->event.h, EVENT_STACK, call, t->start_ns);
	s->event.ip = ctx->rip;
	s->event.sp = ctx->rsp;
	s->event.bp = ctx->rbp;
	s->event.bx = ctx->rbx;
	s->event.r12 = ctx->r12;
	s->event.r13 = ctx->r13;
	s->event.r14 = ctx->r14;
	s->event.r15 = ctx->r15;
	s->event.fs_base = fs_base_of(bpf_get_current_task());
	s->event.stack_id = t->last_stack_id;

	frames = call_walk_python(key);
	state = s->event.py_state;
	if (state == PY_UNREADABLE)
		count(COUNT_PY_UNREADABLE);
	else if (state == PY_NO_THREAD_STATE)
		count(COUNT_PY_NO_THREAD_STATE);
	else if (state == PY_TRUNCATED)
		count(COUNT_PY_TRUNCATED);
	if (frames > MAX_PY_FRAMES)
		frames = MAX_PY_FRAMES;
	s->event.py_frames = frames;
	len = frames * sizeof(struct python_frame);
	stack_len = copy_stack(s, len, ctx->rsp, set->stack_bytes);
	if (!stack_len)
		count(COUNT_STACK_UNREADABLE);
	s->event.stack_len = stack_len;
	s->event.window_full = stack_len >= set->stack_bytes || stack_len >= MAX_STACK;

	size = sizeof(s->event) + len + stack_len;
	barrier_var(size);
	if (size > sizeof(s->event) + sizeof(s->data))
		size = sizeof(s->event);	/* never, but verifiers ask */
	err = bpf_ringbuf_output(MAP(stacks), &s->event, size, wake_flags(MAP(stacks), set->stacks_wake, set));
	release_scratch(s);
	if (err) {
		count(COUNT_STACKS_LOST);
		return STACK_RING_FULL;
	}
	count(COUNT_STACKS);
	return STACK_SENT;
}

/*
 * Slots whose calls were left without returning (longjmp, an exception through C code): their
 * frames lie below the stack pointer of a call that is entered now. Returns whether this very
 * call is already in a slot, seen through another attachment to the same file.
 */
static __always_inline bool drop_abandoned(struct thread_state *t, __u64 sp, const struct cookie *k)
{
	struct slot *top;
	int i;

#pragma unroll
	for (i = 0; i < SLOTS; i++) {
		if (!t->depth)
			return false;
		top = slot_at(t, t->depth - 1);
		if (top->sp > sp)
			return false;
		if (top->sp == sp && (top->call != k->call || top->file != k->file)) {
			/* the same row in another file: one call, two attachments; another row: a
			 * tail call, whose caller is still under way */
			return top->call == k->call;
		}
		count(COUNT_ABANDONED);
		t->depth--;
	}
	return false;
}

static __always_inline bool in_outermost(const struct thread_state *t)
{
	int i;

#pragma unroll
	for (i = 0; i < SLOTS; i++)
		if (i < t->depth && is_outermost_only(t->slots[i].mode))
			return true;
	return false;
}

static __always_inline void set_context(struct thread_state *t, __u32 mode, __u64 context)
{
	__u32 n = t->saved_count;

	if (mode == MODE_CONTEXT_POP) {
		/* unknown: below the first push that was seen, or too deep to have been saved */
		context = 0;
		if (n) {
			t->saved_count = --n;
			if (n < SAVED_CONTEXTS)
				context = t->saved[n & (SAVED_CONTEXTS - 1)];
		}
	} else if (mode != MODE_CONTEXT_SET) {
		if (n < SAVED_CONTEXTS)
			t->saved[n & (SAVED_CONTEXTS - 1)] = t->context;
		t->saved_count = n + 1;
	}
	t->context = context;
}

/* Returns whether the return of this call is wanted. */
static __always_inline bool call_entered(struct pt_regs *ctx, __u64 cookie)
{
	struct cookie k = unpack(cookie);
	__u64 pid_tgid = bpf_get_current_pid_tgid();
	__u32 pid = pid_tgid >> 32, tid = (__u32)pid_tgid, on = 1;
	struct settings *set = get_settings();
	struct thread_state *t;
	struct call_event *e;
	enum wanted wanted;
	struct slot *slot;
	long err;

	if (!set || set->paused)
		return false;
	wanted = is_recorded(pid, set);
	if (k.mode == MODE_DISCOVER) {
		if (wanted == OFF && bpf_map_lookup_elem(MAP(processes), &pid))
			return false;
	} else if (k.mode == MODE_NOTICE) {
		if (wanted != ON)
			return false;	/* every program of the machine has a dynamic linker */
	} else if (wanted == OFF) {
		/* its context is not followed: when it is switched on again, it is not known */
		if (changes_context(k.mode))
			bpf_map_delete_elem(MAP(threads), &tid);
		return false;
	}
	if (wanted == UNKNOWN) {
		err = bpf_map_update_elem(MAP(processes), &pid, &on, BPF_NOEXIST);
		if (err && err != -EEXIST)	/* not just another thread that was faster */
			count(COUNT_PROCESSES_FULL);
	}

	if (k.mode == MODE_NOTICE || k.mode == MODE_DISCOVER) {
		e = reserve_event(EVENT_ENTRY, k.call, process_start(bpf_get_current_task()));
		if (!e)
			return false;
		copy_args(e->args, ctx);
		e->file = k.file;
		submit_event(e, set, true);
		return false;
	}

	t = get_thread(tid);
	if (!t)
		return false;
	if (k.mode == MODE_CONTEXT_SET || k.mode == MODE_CONTEXT_PUSH || k.mode == MODE_CONTEXT_POP) {
		set_context(t, k.mode, ctx->rdi);
		return false;
	}
	if (drop_abandoned(t, ctx->rsp, &k)) {
		count(COUNT_DOUBLE);
		return false;
	}
	if (is_outermost_only(k.mode) && in_outermost(t))
		return false;
	if (t->depth >= SLOTS) {
		count(COUNT_TOO_DEEP);
		return false;
	}

	slot = slot_at(t, t->depth);
	t->depth++;
	slot->sp = ctx->rsp;
	slot->call = k.call;
	slot->file = k.file;
	slot->mode = k.mode;
	slot->stack_state = STACK_NONE;
	slot->readable = 0;
	copy_args(slot->args, ctx);
	if (k.in_arg && k.in_bytes <= sizeof(slot->in)) {
		__u64 from = argument(slot, k.in_arg);

		if (!bpf_probe_read_user(slot->in, size_within(k.in_bytes, sizeof(slot->in)),
					 (void *)from))
			slot->readable |= 1;
		else
			count(COUNT_IN_UNREADABLE);
	}
	if (k.mode == MODE_ALLOC) {
		if (!bpf_probe_read_user(slot->stack_args, sizeof(slot->stack_args),
					 (void *)(ctx->rsp + 8)))
			slot->readable |= 8;
		slot->stack_id = ++t->last_stack_id;
		slot->stack_state = send_stack(ctx, set, t, k.call);
	} else if (k.mode == MODE_FREE) {
		e = reserve_event(EVENT_ENTRY, k.call, t->start_ns);
		if (e) {
			copy_args(e->args, ctx);
			e->context = t->context;
			e->file = k.file;
			submit_event(e, set, false);
		}
	}
	return true;
}

static __always_inline void call_returned(struct pt_regs *ctx, __u64 cookie)
{
	struct cookie k = unpack(cookie);
	__u64 pid_tgid = bpf_get_current_pid_tgid();
	__u32 pid = pid_tgid >> 32, tid = (__u32)pid_tgid, *on;
	struct settings *set = get_settings();
	struct thread_state *t;
	struct call_event *e;
	struct slot *slot;
	__s32 result = (__s32)ctx->rax;
	bool outs;

	if (!set || set->paused)
		return;
	t = bpf_map_lookup_elem(MAP(threads), &tid);
	if (!t || !t->depth)
		return;
	slot = slot_at(t, t->depth - 1);
	/* calls that were ignored at entry return here too when there is no session */
	if (slot->sp != ctx->rsp - 8 || slot->call != k.call || slot->file != k.file)
		return;
	t->depth--;
	if (k.mode == MODE_FREE && !result)
		return;

	on = bpf_map_lookup_elem(MAP(processes), &pid);
	if (on && !*on)
		return;	/* it was switched off during the call */
	e = reserve_event(k.mode == MODE_FREE ? EVENT_FREE_FAILED : EVENT_RETURN, k.call,
			  t->start_ns);
	if (!e)
		return;
	e->context = t->context;
	e->result = ctx->rax;
	e->file = k.file;
	e->stack_id = slot->stack_id;
	e->stack_state = slot->stack_state;
	e->readable = slot->readable;
	__builtin_memcpy(e->args, slot->args, sizeof(e->args));
	__builtin_memcpy(e->stack_args, slot->stack_args, sizeof(e->stack_args));
	__builtin_memcpy(e->in, slot->in, sizeof(e->in));
	/* a failed call leaves its out parameters alone */
	outs = !result;
	if (outs && k.out1_arg && k.out1_bytes <= sizeof(e->out1)) {
		__u64 from = argument(slot, k.out1_arg);

		if (!bpf_probe_read_user(e->out1, size_within(k.out1_bytes, sizeof(e->out1)),
					 (void *)from))
			e->readable |= 2;
		else
			count(COUNT_OUT_UNREADABLE);
	}
	if (outs && k.out2_arg && k.out2_bytes <= sizeof(e->out2)) {
		__u64 from = argument(slot, k.out2_arg);

		if (!bpf_probe_read_user(&e->out2, size_within(k.out2_bytes, sizeof(e->out2)),
					 (void *)from))
			e->readable |= 4;
		else
			count(COUNT_OUT_UNREADABLE);
	}
	if (k.mode == MODE_CONTEXT_CREATE && outs)
		set_context(t, k.mode, e->out1[0]);
	if (k.mode == MODE_CONTEXT_DESTROY && outs && slot->args[0] == t->context)
		set_context(t, MODE_CONTEXT_POP, 0);
	submit_event(e, set, false);
}

#endif
