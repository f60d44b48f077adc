"""Every row of call-frame information that readelf prints for this machine's libraries is ours."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpumemprof.process.elf import ElfFile
from gpumemprof.stack.architecture import X86_64
from gpumemprof.stack.cfi import CallFrameInfo
from gpumemprof.stack.cfi_rows import CfaRule, How, Row, Rule, row_at, rows

LIBRARIES = [
    path
    for path in (
        Path("/usr/lib/x86_64-linux-gnu/libc.so.6"),
        Path("/usr/lib/x86_64-linux-gnu/libstdc++.so.6"),
        Path("/lib64/ld-linux-x86-64.so.2"),
    )
    if path.exists()
]
NAMES = X86_64.register_names

pytestmark = pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf is missing")

_REGISTER = re.compile(r"\br\d+ \((\w+)\)")  # "r1 (rdx)"
_ROW = re.compile(r"^[0-9a-f]{16} ")
_FDE = re.compile(r"^\w+ \w+ \w+ FDE .*pc=(\w+)\.\.(\w+)")


def printed_tables(library: Path) -> Iterator[tuple[int, int, list[dict[str, str]]]]:
    """(start, end, rows) of each FDE as readelf prints them."""
    text = subprocess.run(
        ["readelf", "--wide", "--debug-dump=frames-interp", library],
        capture_output=True,
        text=True,
        check=False,  # it fails on a separate debug file that has no such section
    ).stdout
    # Only .eh_frame: a .debug_frame would follow under a heading of its own.
    text = text.split("Contents of the .eh_frame section", 1)[1].split("Contents of the ", 1)[0]
    current: tuple[int, int, list[dict[str, str]]] | None = None
    columns: list[str] = []
    for line in text.splitlines():
        found = _FDE.match(line)
        if found or " CIE " in line:
            if current is not None:
                yield current
            current = (int(found[1], 16), int(found[2], 16), []) if found else None
            columns = []
        elif line.lstrip().startswith("LOC"):
            columns = line.split()
        elif _ROW.match(line) and columns and current is not None:
            words = _REGISTER.sub(r"\1", line).split()
            current[2].append(dict(zip(columns, words, strict=True)))
    if current is not None:
        yield current


def as_printed(row: Row, columns: list[str]) -> dict[str, str]:
    """A row of ours in readelf's words."""
    assert row.cfa is not None
    words = {"LOC": f"{row.start:016x}", "CFA": cfa_words(row.cfa)}
    for column in columns[2:]:
        number = X86_64.return_address if column == "ra" else NAMES.index(column)
        words[column] = rule_words(row.rules.get(number))
    return words


def cfa_words(cfa: CfaRule) -> str:
    return "exp" if cfa.expression else f"{NAMES[cfa.register]}{cfa.offset:+d}"


def rule_words(rule: Rule | None) -> str:
    if rule is None or rule.how is How.UNDEFINED:
        return "u"
    if rule.how is How.REGISTER:
        return NAMES[rule.value]
    return {
        How.SAME: "s",
        How.AT_CFA: f"c{rule.value:+d}",
        How.CFA_PLUS: f"v{rule.value:+d}",
        How.AT_EXPRESSION: "exp",
        How.EXPRESSION: "vexp",
    }[rule.how]


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda path: path.name)
def test_every_row_is_the_one_that_readelf_prints(library: Path) -> None:
    frames = CallFrameInfo(ElfFile.open(library))
    compared = 0
    for start, end, printed in printed_tables(library):
        found = frames.fde_at(start)
        assert found is not None
        fde, instructions_vaddr = found
        assert (fde.start, fde.end) == (start, end)
        if not printed:  # nothing beyond the CIE's own row
            continue
        ours = [Row(r.start, r.cfa, dict(r.rules)) for r in rows(fde, instructions_vaddr)]
        columns = list(printed[0])
        assert [as_printed(row, columns) for row in ours] == printed
        for row in ours[:: max(1, len(ours) // 3)]:
            in_force = row_at(fde, row.start, instructions_vaddr)
            last = [r for r in ours if r.start == row.start][-1]
            assert (in_force.cfa, in_force.rules) == (last.cfa, last.rules)
        compared += len(ours)
    assert compared > 500


@pytest.mark.parametrize("library", LIBRARIES[:2], ids=lambda path: path.name)
def test_reading_from_end_to_end_finds_the_same_entries_as_the_search_table(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elf = ElfFile.open(library)
    by_table = CallFrameInfo(elf)
    monkeypatch.setattr(elf, "segments", tuple(s for s in elf.segments if s.type != 0x6474E550))
    by_scan = CallFrameInfo(elf)
    entries = [fde for fde, _ in by_table.fdes()]
    assert len(entries) > 1000
    for fde in entries[::7]:
        for address in (fde.start, fde.end - 1, fde.end):
            assert by_table.fde_at(address) == by_scan.fde_at(address)
