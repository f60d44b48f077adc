"""What user space tells the kernel of a process's interpreter: ``struct python_target``."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpumemprof.stack.python.layouts import ABSENT, Layout, Position
from gpumemprof.stack.python.threads import Libc


@dataclass(frozen=True, slots=True)
class PythonTarget:
    """The fields of ``struct python_target`` of bpf/events.h, by the same names.

    Addresses are of the process; 0xffff is an offset that the version does not have.
    """

    tss_key_addr: int
    current_addr: int
    interp_head_addr: int
    tls_offset: int
    pthread_specific: int
    libc: int
    interp_threads: int
    interp_next: int
    tstate_next: int
    tstate_thread_id: int
    tstate_frame: int
    cframe_frame: int
    frame_code: int
    frame_previous: int
    frame_instruction: int
    frame_owner: int
    frame_is_entry: int
    frame_tlbc_index: int
    frame_size: int
    code_fp_offset: int
    code_fp_len: int
    instruction_is_int: int
    code_tag_mask: int

    def without_key(self) -> PythonTarget:
        """The same, for an interpreter whose TSS key is not where its version has it."""
        return replace(self, tss_key_addr=0)


_FROM_LAYOUT = (
    "interp_threads",
    "interp_next",
    "tstate_next",
    "tstate_thread_id",
    "tstate_frame",
    "cframe_frame",
    "frame_code",
    "frame_previous",
    "frame_instruction",
    "frame_owner",
    "frame_is_entry",
    "frame_tlbc_index",
    "frame_size",
    "code_tag_mask",
)


def make_target(layout: Layout, runtime: int, libc: Libc, tls_offset: int = 0) -> PythonTarget:
    """``runtime``: address of ``_PyRuntime`` in the process."""

    def within_runtime(offset: int) -> int:
        return 0 if offset == ABSENT else runtime + offset

    return PythonTarget(
        tss_key_addr=within_runtime(layout.runtime_tss_key),
        current_addr=within_runtime(layout.runtime_current),
        interp_head_addr=runtime + layout.runtime_interpreters_head,
        tls_offset=tls_offset,
        pthread_specific=libc.pthread_specific,
        libc=int(libc.kind),
        code_fp_offset=layout.fingerprint_offset,
        code_fp_len=layout.fingerprint_length,
        instruction_is_int=int(layout.position is not Position.POINTER),
        **{name: getattr(layout, name) for name in _FROM_LAYOUT},
    )
