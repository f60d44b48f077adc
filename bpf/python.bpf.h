/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Walks the frames of CPython in the thread that makes the call. Layouts come from user space
 * (struct python_target); what a frame means is decided there too: this only copies.
 */
#ifndef GPUMEMPROF_PYTHON_H
#define GPUMEMPROF_PYTHON_H

/*
 * Functions that are verified once, by themselves, and not again for every state in which a caller
 * may be. They take the number of a scratch buffer: verifiers before 5.12 know of no pointer in such
 * a function. libbpf joins them with their callers; what bcc compiled user space joins, which finds
 * these numbers in the place of the calls (gpumemprof/probe/linking.py).
 */
enum function {
	FUNCTION_WALK_PYTHON = 0x10000000,
	FUNCTION_FINGERPRINT = 0x10000001,
};

__attribute__((noinline)) __u64 walk_python(__u64 key);
__attribute__((noinline)) __u64 fingerprint(__u64 key);

#ifdef GPUMEMPROF_BCC
static __u64 (*call_walk_python)(__u64 key) = (void *)FUNCTION_WALK_PYTHON;
static __u64 (*call_fingerprint)(__u64 key) = (void *)FUNCTION_FINGERPRINT;
#else
#define call_walk_python walk_python
#define call_fingerprint fingerprint
#endif

#define PY_NO_OFFSET 0xffff
#define PY_LIBC_MUSL 1
#define PY_MAX_LIST 64			/* thread states looked at in the last resort */
#define GLIBC_KEYS_PER_BLOCK 32
#define GLIBC_KEY_DATA 16		/* struct pthread_key_data {seq, data} */

static __always_inline __u64 read_u64(__u64 address)
{
	__u64 value = 0;

	if (!address || bpf_probe_read_user(&value, sizeof(value), (void *)address))
		return 0;
	return value;
}

/* Both glibc's and musl's pthread_self() is the fs base, and CPython keeps it in thread_id. */
static __always_inline bool is_thread(const struct python_target *t, __u64 tstate, __u64 fs_base)
{
	return tstate && read_u64(tstate + t->tstate_thread_id) == fs_base;
}

/* pthread_getspecific(key), as the two C libraries lay it out. */
static __always_inline __u64 thread_specific(const struct python_target *t, __u64 fs_base, __u32 key)
{
	__u64 block;

	if (t->libc == PY_LIBC_MUSL) {
		block = read_u64(fs_base + t->pthread_specific);
		return block ? read_u64(block + key * 8) : 0;
	}
	block = fs_base + t->pthread_specific;
	if (key >= GLIBC_KEYS_PER_BLOCK) {
		/* the table of second-level blocks follows the first block */
		block += GLIBC_KEYS_PER_BLOCK * GLIBC_KEY_DATA;
		block = read_u64(block + (key / GLIBC_KEYS_PER_BLOCK) * 8);
		if (!block)
			return 0;
	}
	return read_u64(block + (key % GLIBC_KEYS_PER_BLOCK) * GLIBC_KEY_DATA + 8);
}

static __always_inline __u64 innermost_frame(const struct python_target *t, __u64 tstate)
{
	__u64 frame = read_u64(tstate + t->tstate_frame);

	return t->cframe_frame == PY_NO_OFFSET ? frame : read_u64(frame + t->cframe_frame);
}

/*
 * The thread state of this thread, GIL held or not: the GIL holder's if it is this thread
 * (before 3.12 the only one that is right in a subinterpreter), the GIL state's slot, which
 * stays valid while the GIL is released, or a search.
 */
static __always_inline __u64 find_thread_state(const struct python_target *t, __u64 fs_base,
					       __u8 *state)
{
	__u64 tstate, interpreter, fallback = 0;
	struct {
		__s32 initialized;
		__u32 key;
	} tss = {};
	int i;

	*state = PY_WALKED;
	if (t->current_addr) {
		tstate = read_u64(t->current_addr);
		if (is_thread(t, tstate, fs_base))
			return tstate;
	}
	if (t->tls_offset) {
		tstate = read_u64(fs_base + t->tls_offset);
		if (is_thread(t, tstate, fs_base))
			return tstate;
	} else if (t->tss_key_addr) {
		if (bpf_probe_read_user(&tss, sizeof(tss), (void *)t->tss_key_addr)) {
			*state = PY_UNREADABLE;
			return 0;
		}
		if (!tss.initialized) {
			*state = PY_NOT_INITIALIZED;
			return 0;
		}
		tstate = thread_specific(t, fs_base, tss.key & 1023);
		if (is_thread(t, tstate, fs_base))
			fallback = tstate;
	}
	interpreter = read_u64(t->interp_head_addr);
	/*
	 * Before 3.12 the slot stays with the interpreter in which the thread began: with others
	 * about, the thread may be in one of them, and then has frames there.
	 */
	if (fallback && (!t->current_addr || !interpreter || !read_u64(interpreter + t->interp_next)))
		return fallback;
	tstate = interpreter ? read_u64(interpreter + t->interp_threads) : 0;
	for (i = 0; i < PY_MAX_LIST && interpreter; i++) {
		if (tstate) {
			if (tstate != fallback && is_thread(t, tstate, fs_base) &&
			    (!fallback || innermost_frame(t, tstate)))
				return tstate;
			tstate = read_u64(tstate + t->tstate_next);
		} else {
			interpreter = read_u64(interpreter + t->interp_next);
			tstate = interpreter ? read_u64(interpreter + t->interp_threads) : 0;
		}
	}
	if (!fallback)
		*state = PY_NO_THREAD_STATE;
	return fallback;
}

/* A field of the frame in the buffer; the mask tells the verifier that it is inside. */
#define FRAME_U64(s, offset) (*(__u64 *)((s)->frame + ((offset) & (FRAME_BUFFER - 8))))
#define FRAME_U32(s, offset) (*(__u32 *)((s)->frame + ((offset) & (FRAME_BUFFER - 4))))
#define FRAME_U16(s, offset) (*(__u16 *)((s)->frame + ((offset) & (FRAME_BUFFER - 2))))
#define FRAME_U8(s, offset) ((s)->frame[(offset) & (FRAME_BUFFER - 1)])

/*
 * What follows runs once per frame, and verifiers before 6.8 check each of the MAX_PY_FRAMES rounds
 * by itself, each branch twice: with branches it takes them more than the million steps they allow.
 */

/* 1 if the interpreter has the field, else 0. */
static __always_inline __u32 has(__u16 offset)
{
	__u32 difference = (__u32)offset - PY_NO_OFFSET;

	barrier_var(difference);
	return difference >> 31;
}

/* `a` if the number is negative, else `b`. */
static __always_inline __u64 if_negative(__s64 number, __u64 a, __u64 b)
{
	barrier_var(number);
	number >>= 63;
	barrier_var(number);
	return b ^ ((a ^ b) & number);
}

/*
 * Tells a code object from another that took its address: a hash of its identifying fields
 * (code_fp_len bytes, a multiple of 8), 0 if they cannot be read. What it is about stands in the
 * scratch buffer.
 */
static __always_inline __u64 hash_code(__u64 key)
{
	struct scratch *s = scratch_at(key);
	__u64 h = 0xcbf29ce484222325ULL;
	int i;

	if (!s)
		return 0;
	if (bpf_probe_read_user(s->code, size_within(s->code_fp_len, FRAME_BUFFER),
				(void *)s->code_fp_at))
		return 0;
	for (i = 0; i < FRAME_BUFFER / 8; i++) {
		if (i * 8 >= s->code_fp_len)
			break;
		h = (h ^ *(__u64 *)(s->code + i * 8)) * 0x9E3779B97F4A7C15ULL;
	}
	return (__u32)(h >> 32) ^ (__u32)h;
}

/* One frame out of the buffer. */
static __always_inline void copy_frame(struct python_frame *out, struct scratch *s,
				       const struct python_target *t, __u64 key)
{
	__s32 index = FRAME_U32(s, t->frame_instruction);

	out->code = FRAME_U64(s, t->frame_code);
	out->instruction = if_negative(-(__s64)t->instruction_is_int, (__s64)index,
				       FRAME_U64(s, t->frame_instruction));
	out->owner = FRAME_U8(s, t->frame_owner) * has(t->frame_owner);
	out->is_entry = FRAME_U8(s, t->frame_is_entry) * has(t->frame_is_entry);
	out->tlbc_index = FRAME_U16(s, t->frame_tlbc_index) * has(t->frame_tlbc_index);
	s->code_fp_at = (out->code & ~(__u64)t->code_tag_mask) + t->code_fp_offset;
	out->fingerprint = call_fingerprint(key);
}

/*
 * Writes the frames of the thread to the data of the scratch buffer, innermost first, and what
 * became of them to its event; returns how many.
 */
static __always_inline __u64 copy_frames(__u64 key)
{
	struct scratch *s = scratch_at(key);
	struct python_target *t;
	__u64 tstate, frame, fs_base;
	__u32 pid;
	__u8 state;
	int n = 0;

	if (!s)
		return 0;
	pid = s->event.h.pid;
	fs_base = s->event.fs_base;
	s->event.py_state = PY_NOT_PYTHON;
	t = bpf_map_lookup_elem(MAP(python_targets), &pid);
	if (!t)
		return 0;
	s->code_fp_len = t->code_fp_len;
	tstate = find_thread_state(t, fs_base, &state);
	frame = tstate ? innermost_frame(t, tstate) : 0;
	if (!frame)
		goto end;
	for (n = 0; n < MAX_PY_FRAMES; n++) {
		if (bpf_probe_read_user(s->frame, size_within(t->frame_size, FRAME_BUFFER),
					(void *)frame)) {
			state = PY_UNREADABLE;
			goto end;
		}
		copy_frame((struct python_frame *)s->data + n, s, t, key);
		frame = FRAME_U64(s, t->frame_previous);
		if (!frame) {
			n++;
			goto end;
		}
	}
	state = PY_TRUNCATED;
end:
	s->event.py_state = state;
	return n;
}

#endif
