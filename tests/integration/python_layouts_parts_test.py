"""The part of a function that a compiler split off is found in a stripped file."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from gpumemprof.process.elf import ElfFile
from gpumemprof.stack.python import symbols
from gpumemprof.stack.python.parts import split_off_parts

# Branches that end in a cold function are unlikely; the compiler moves them to .text.unlikely.
SOURCE = """
extern void cold_path(int) __attribute__((cold));
void cold_path(int n) { __asm__ volatile("" :: "r"(n)); }
#define STEP(n) if (x == n) { cold_path(n); x += y * n; cold_path(x); goto again; }
int loop(int x, int y)
{
again:
	STEP(3) STEP(5) STEP(9) STEP(17) STEP(33) STEP(65) STEP(129) STEP(257)
	while (y-- > 0)
		x ^= y;
	return x;
}
int tail(int x) { return loop(x, 1); }
int main(int argc, char **argv) { (void)argv; return tail(argc); }
"""


@pytest.mark.skipif(not shutil.which("gcc"), reason="no compiler")
def test_the_cold_part_is_found_without_its_name(tmp_path: Path) -> None:
    source = tmp_path / "loop.c"
    source.write_text(SOURCE)
    program = tmp_path / "loop"
    subprocess.run(["gcc", "-O2", "-fno-inline", "-rdynamic", "-o", program, source], check=True)
    named = symbols.find(ElfFile.open(program), ("loop", "tail"), prefix="loop")
    cold = named["loop.cold"]
    subprocess.run(["strip", program], check=True)
    stripped = ElfFile.open(program)
    left = symbols.find(stripped, ("loop", "tail"), prefix="loop")
    assert "loop.cold" not in left

    loop, tail = left["loop"], left["tail"]

    found = split_off_parts(stripped, loop.vaddr, loop.vaddr + loop.size)
    assert found == [(cold.vaddr, cold.vaddr + cold.size)]
    # A jump to the start of another function is a call of it, not a part of the caller.
    assert split_off_parts(stripped, tail.vaddr, tail.vaddr + tail.size) == []
