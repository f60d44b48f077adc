"""Attach cookies for kernels that have none (before 5.15): a small program for each place, which
leaves its cookie in a map of its processor and goes on in the program for all.

Nothing comes between the two on such kernels: programs of uprobes run there with preemption off
(kernel/trace/trace_uprobe.c, __uprobe_perf_func).
"""

from __future__ import annotations

from gpumemprof.probe import instructions as do
from gpumemprof.probe.loading import MAP_TYPE_PROGRAM_ARRAY, create_map, load_program
from gpumemprof.probe.programs import TYPE_UPROBE, Kind
from gpumemprof.probe.syscalls import BpfMap, Descriptor

_KIND = Kind(TYPE_UPROBE)
_ENTRY, _RETURN = 0, 1


class Wrappers:
    """Makes the programs for single places."""

    def __init__(self, entry: int, returned: int, cookies: int) -> None:
        """Descriptors: the programs for all entries and all returns, and the map of cookies.
        Raises ProbeError."""
        self._programs = create_map("wrapped", MAP_TYPE_PROGRAM_ARRAY, 4, 4, 2)
        self._cookies = cookies
        by_number = BpfMap(self._programs.fd, 4, 4)
        for number, fd in ((_ENTRY, entry), (_RETURN, returned)):
            by_number.put(number.to_bytes(4, "little"), fd.to_bytes(4, "little"))

    def program(self, cookie: int, *, returns: bool) -> Descriptor:
        """One for a place with this cookie. Raises ProbeError."""
        number = _RETURN if returns else _ENTRY
        return load_program(
            "wrapper", _KIND, wrapper(cookie, number, self._cookies, self._programs.fd)
        )

    def close(self) -> None:
        """Let go of the programs for all: wrappers that are still attached then do nothing."""
        self._programs.close()


def wrapper(cookie: int, number: int, cookies: int, programs: int) -> bytes:
    """The instructions: put ``cookie`` into the map ``cookies``, call the program ``number`` of the
    array ``programs`` with the registers that came."""
    return b"".join(
        (
            do.move(do.R6, do.R1),
            do.store_value32(do.R10, -4, 0),
            do.move(do.R2, do.R10),
            do.add_value(do.R2, -4),
            do.load_map(do.R1, cookies),
            do.call(do.MAP_LOOKUP),
            do.skip_unless_zero(do.R0, 2),
            do.move_value(do.R0, 0),
            do.leave(),
            do.load_value(do.R1, cookie),
            do.store(do.R0, 0, do.R1),
            do.move(do.R1, do.R6),
            do.load_map(do.R2, programs),
            do.move_value(do.R3, number),
            do.call(do.TAIL_CALL),
            do.move_value(do.R0, 0),
            do.leave(),
        )
    )
