"""What `gpumemprof top` shows, as lines."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from gpumemprof.profile.model import Profile, Sample, Values
from gpumemprof.report.live import HELP, LiveRow, LiveView, lines, ordered
from gpumemprof.stack.frames import Frame, FrameKind

MIB = 1 << 20


def console(width: int = 80, height: int = 24) -> Console:
    return Console(file=io.StringIO(), width=width, height=height, force_terminal=True)


def row(pid: int, in_use: int = 0, peak: int = 0, rate: float = 0.0) -> LiveRow:
    return LiveRow(pid, f"python train{pid}.py", in_use, peak, rate, 2.0, 0)


def profile(*functions: tuple[str, int]) -> Profile:
    samples = tuple(
        Sample(
            (Frame(name, FrameKind.PYTHON, "/srv/model.py", 10),),
            (("kind", "device"),),
            Values(1, size, 1, size, size),
        )
        for name, size in functions
    )
    return Profile(samples, 0, 0)


def text(view: LiveView, width: int = 80, height: int = 24) -> list[str]:
    return [line.plain.rstrip() for line in lines(view, console(width), height)]


def test_processes_are_above_and_functions_of_the_selected_one_below() -> None:
    view = LiveView(
        [row(7, 3 * MIB), row(8, MIB)], profile(("load_weights", 2 * MIB), ("cache", MIB))
    )

    shown = text(view)

    assert shown[0].startswith("gpumemprof top  2 processes, 4.00 MiB of GPU memory")
    assert [line.split()[0] for line in shown[3:5]] == ["7", "8"]
    found = next(line for line in shown if "load_weights" in line)
    assert " ".join(found.split()) == "2.00 MiB 2.00 MiB 66.7% load_weights /srv/model.py:10"
    assert shown[-1] == HELP


@pytest.mark.parametrize("size", [(80, 24), (40, 10), (20, 5), (200, 60), (80, 3)])
@pytest.mark.parametrize("count", [0, 1, 100])
def test_it_fits_any_terminal(size: tuple[int, int], count: int) -> None:
    width, height = size
    rows = [LiveRow(pid, "漢字 " * 100, MIB, MIB, 1e12, 1e6, 10**6) for pid in range(count)]
    functions = profile(*((f"function_{n}" * 20, MIB) for n in range(200))) if rows else None

    shown = lines(LiveView(rows, functions, selected=count // 2), console(width, height), height)

    assert len(shown) == height
    assert all(cell_len(line.plain) <= width for line in shown)


def test_the_selected_process_is_shown_however_many_there_are() -> None:
    rows = [row(pid, MIB) for pid in range(1000, 1200)]

    shown = text(LiveView(rows, profile(("f", MIB)), selected=150))

    assert any(line.split()[:1] == ["1150"] for line in shown)
    assert any("function of process 1150" in line for line in shown)


def test_a_name_cannot_do_anything_to_the_terminal() -> None:
    hostile = LiveRow(1, "\x1b]0;owned\x07\x1b[2Jpython\n", MIB, MIB, 0, 0, 0)

    shown = text(LiveView([hostile], profile(("\x1b[31mred\r", MIB))))

    assert not any(ord(letter) < 32 for line in shown for letter in line)


def test_what_was_lost_paused_or_said_is_told() -> None:
    shown = text(LiveView([row(1, MIB)], lost=12, paused=True, message="written: x.pb.gz"), 120)

    assert "INCOMPLETE: 12 events lost" in shown[0]
    assert "PAUSED" in shown[0]
    assert shown[-1] == "written: x.pb.gz"


@pytest.mark.parametrize(
    ("order", "pids"),
    [("in use", [2, 1, 3]), ("peak", [3, 2, 1]), ("rate", [1, 2, 3]), ("pid", [1, 2, 3])],
)
def test_processes_can_be_sorted(order: str, pids: list[int]) -> None:
    rows = [row(3, 0, 9, 0.0), row(1, 5, 1, 7.0), row(2, 6, 2, 0.0)]

    assert [each.pid for each in ordered(rows, order)] == pids
