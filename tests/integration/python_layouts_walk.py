"""What bpf/python.bpf.h does in the kernel, in Python, on the memory of a stopped process.

For testing what user space tells the kernel on interpreters of every version, without a kernel.
"""

from __future__ import annotations

from gpumemprof.stack.python.code import fingerprint
from gpumemprof.stack.python.frames import MAX_FRAMES, RawFrame
from gpumemprof.stack.python.layouts import ABSENT
from gpumemprof.stack.python.memory import Memory, read_exactly, read_u64
from gpumemprof.stack.python.target import PythonTarget

MUSL = 1


def thread_specific(memory: Memory, target: PythonTarget, fs_base: int, key: int) -> int:
    """``pthread_getspecific(key)`` of the thread."""
    block = fs_base + target.pthread_specific
    if target.libc == MUSL:
        return read_u64(memory, read_u64(memory, block) + 8 * key)
    if key >= 32:
        block = read_u64(memory, block + 32 * 16 + 8 * (key // 32))
    return read_u64(memory, block + 16 * (key % 32) + 8)


def gil_state(memory: Memory, target: PythonTarget, fs_base: int) -> int:
    """The thread state in the thread's own slot; 0 if the target tells of none."""
    if target.tls_offset:
        return read_u64(memory, fs_base + target.tls_offset)
    if not target.tss_key_addr:
        return 0
    words = read_exactly(memory, target.tss_key_addr, 8)
    assert int.from_bytes(words[:4], "little") == 1
    return thread_specific(memory, target, fs_base, int.from_bytes(words[4:], "little"))


def thread_states(memory: Memory, target: PythonTarget) -> dict[int, int]:
    """fs base -> thread state, of all threads of all interpreters."""
    found = {}
    interpreter = read_u64(memory, target.interp_head_addr)
    while interpreter:
        state = read_u64(memory, interpreter + target.interp_threads)
        while state:
            found[read_u64(memory, state + target.tstate_thread_id)] = state
            state = read_u64(memory, state + target.tstate_next)
        interpreter = read_u64(memory, interpreter + target.interp_next)
    return found


def frames(memory: Memory, target: PythonTarget, thread_state: int) -> list[RawFrame]:
    """The frames of a thread as the kernel emits them, innermost first."""
    frame = read_u64(memory, thread_state + target.tstate_frame)
    if target.cframe_frame != ABSENT:
        frame = read_u64(memory, frame + target.cframe_frame)
    found: list[RawFrame] = []
    while frame and len(found) < MAX_FRAMES:
        data = read_exactly(memory, frame, target.frame_size)

        def field(offset: int, size: int, data: bytes = data) -> int:
            return 0 if offset == ABSENT else int.from_bytes(data[offset : offset + size], "little")

        code = field(target.frame_code, 8)
        identity = (code & ~target.code_tag_mask) + target.code_fp_offset
        found.append(
            RawFrame(
                code,
                field(target.frame_instruction, 4 if target.instruction_is_int else 8),
                fingerprint(memory.read_some(identity, target.code_fp_len)),
                field(target.frame_owner, 1),
                field(target.frame_is_entry, 1),
                field(target.frame_tlbc_index, 2),
            )
        )
        frame = field(target.frame_previous, 8)
    return found
