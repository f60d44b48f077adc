"""Real programs, unwound frame by frame as the debugger unwinds them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from native_programs import (
    VARIANTS,
    Captured,
    build_exceptions,
    build_library,
    build_stacks,
    capture,
    compiler,
    gdb_frames,
    read_record,
)

from gpumemprof.stack.symbols import Symbolizer
from gpumemprof.stack.unwind import FileCache, ProcessImage, UnwindEnd, Unwinder, Unwound

pytestmark = pytest.mark.skipif(
    shutil.which("gdb") is None or shutil.which("gcc") is None, reason="needs gcc and gdb"
)

COMPLETE = [
    "chain", "variable", "aligned", "recursion", "libc", "signal", "asm",
    "thread:chain", "thread:aligned", "thread:signal",
]  # fmt: skip


@pytest.fixture(scope="session", params=[name for name, c in VARIANTS.items() if compiler(c)])
def variant(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return VARIANTS[request.param]


@pytest.fixture(scope="session")
def stacks(variant: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_stacks(tmp_path_factory.mktemp("stacks"), variant, "-Wl,-z,lazy")


@pytest.fixture(scope="session")
def optimised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_stacks(tmp_path_factory.mktemp("optimised"), VARIANTS["gcc -O2"])


def unwound(captured: Captured) -> Unwound:
    image = ProcessImage(captured.pid, FileCache())
    return Unwinder(image).unwind(captured.registers, captured.window)


def names(captured: Captured, stack: Unwound) -> list[str]:
    files = FileCache()
    image = ProcessImage(captured.pid, files)
    return [frame.name for frame in Symbolizer(files).image_frames(image, stack.lookups)]


@pytest.mark.parametrize("kind", COMPLETE)
def test_every_frame_up_to_the_root_is_the_debuggers(
    stacks: Path, kind: str, tmp_path: Path
) -> None:
    with capture(stacks, kind) as captured:
        stack = unwound(captured)
        expected = [pc for pc, _ in gdb_frames(captured.pid, tmp_path)]
        assert list(stack.pcs[1:]) == expected[1:]
        assert stack.pcs[0] == captured.registers.ip
        assert stack.end is UnwindEnd.ROOT


@pytest.mark.parametrize("kind", ["destructor", "catch"])
def test_frames_are_whole_while_an_exception_is_in_flight(
    variant: tuple[str, ...], kind: str, tmp_path: Path
) -> None:
    program = build_exceptions(tmp_path, variant)
    with capture(program, kind) as captured:
        stack = unwound(captured)
        expected = [pc for pc, _ in gdb_frames(captured.pid, tmp_path)]
        assert list(stack.pcs[1:]) == expected[1:]
        assert stack.end is UnwindEnd.ROOT
        assert "(anonymous namespace)::through_lambda" in names(captured, stack)


def test_a_stack_can_be_taken_before_every_single_instruction(stacks: Path) -> None:
    """Prologues, linkage stubs, the dynamic linker at work, the vDSO: wherever a signal strikes."""
    with capture(stacks, "step") as captured:
        files = FileCache()
        image = ProcessImage(captured.pid, files)
        unwinder, symbolizer = Unwinder(image), Symbolizer(files)
        registers, window = captured.registers, captured.window
        struck_in: set[str] = set()
        while True:
            stack = unwinder.unwind(registers, window)
            frames = symbolizer.image_frames(image, stack.lookups)
            found = [frame.name for frame in frames]
            assert stack.end is UnwindEnd.ROOT
            assert found[-1] == "_start"
            assert found[-4:-1].count("main") == 1
            where = stack.exact[-1]
            if "many_shapes" in found:
                caller = found.index("many_shapes")
                assert found[caller + 1] == "stepped"
            else:
                assert "stepped" in found[where : where + 2]
            struck_in.add(found[where])
            struck_in.add(frames[where].module.rpartition("/")[2])
            try:
                registers, window = read_record(captured.process)
            except EOFError:
                break
    assert {"aligned", "variable", "asm_frames", "leaf", "_dl_fixup", "[vdso]"} <= struck_in
    assert any(name.startswith("stacks+0x") for name in struck_in)  # linkage stubs have no symbol


def test_frames_below_a_handler_on_its_own_stack_are_said_to_be_elsewhere(
    optimised: Path, tmp_path: Path
) -> None:
    with capture(optimised, "altstack") as captured:
        stack = unwound(captured)
        expected = [pc for pc, _ in gdb_frames(captured.pid, tmp_path)]
        assert list(stack.pcs[1:]) == expected[1 : len(stack.pcs)]
        assert stack.end is UnwindEnd.OTHER_STACK
        assert names(captured, stack)[4:6] == ["on_signal", "__restore_rt"]


def test_code_without_call_frame_information_ends_the_stack_with_its_own_frame(
    optimised: Path,
) -> None:
    with capture(optimised, "asm_without_cfi") as captured:
        stack = unwound(captured)
        assert stack.end is UnwindEnd.NO_CFI
        assert stack.detail == "stacks"
        assert names(captured, stack)[-1] == "asm_without_cfi"


def test_code_made_at_run_time_ends_the_stack(optimised: Path) -> None:
    with capture(optimised, "jit") as captured:
        stack = unwound(captured)
        assert stack.end is UnwindEnd.JIT_CODE
        assert names(captured, stack) == ["capture_point", "[code made at run time]"]


def test_code_made_at_run_time_has_the_name_that_its_perf_map_gives_last(optimised: Path) -> None:
    with capture(optimised, "jit", "with a map") as captured:
        stack = unwound(captured)
        assert names(captured, stack) == ["capture_point", "JS:~hot_loop file.js:12"]


def test_a_short_window_gives_the_frames_that_fit_in_it(optimised: Path) -> None:
    with capture(optimised, "recursion") as captured:
        whole = unwound(captured)
        assert len(whole.pcs) > 255
        image = ProcessImage(captured.pid, FileCache())
        unwinder = Unwinder(image)
        for size in (0, 7, 8, 100, 1000, 4096, len(captured.window)):
            part = unwinder.unwind(captured.registers, captured.window[:size])
            fits = [slot for slot in whole.return_slots if slot + 8 <= size]
            assert part.return_slots == tuple(fits)
            assert part.pcs == whole.pcs[: 1 + len(fits)]
            assert (part.end is UnwindEnd.ROOT) == (len(fits) == len(whole.return_slots))


def test_a_very_deep_stack_is_cut_and_says_so(optimised: Path) -> None:
    with capture(optimised, "deep") as captured:
        stack = unwound(captured)
        assert len(stack.pcs) == 512
        assert stack.end is UnwindEnd.TOO_DEEP


def _remove(library: Path) -> None:
    library.unlink()


def _replace(library: Path) -> None:
    library.unlink()
    library.write_bytes(b"\x7fELF" + b"another file of this name" * 100)


@pytest.mark.parametrize("change", [_remove, _replace])
def test_a_library_that_is_removed_or_replaced_on_disk_is_still_unwound_and_named(
    optimised: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    library = build_library(tmp_path)
    with capture(optimised, "library", library) as captured:
        expected = [pc for pc, _ in gdb_frames(captured.pid, tmp_path)]
        change(library)
        stack = unwound(captured)
        assert stack.end is UnwindEnd.ROOT
        assert list(stack.pcs[1:]) == expected[1:]
        assert "library_calls" in names(captured, stack)


def test_symbols_can_be_looked_up_after_the_process_ended(optimised: Path) -> None:
    files = FileCache()
    with capture(optimised, "chain") as captured:
        image = ProcessImage(captured.pid, files)
        stack = Unwinder(image).unwind(captured.registers, captured.window)
        places = [image.locate(address) for address in stack.lookups]
    image.close()
    frames = Symbolizer(files).frames([place for place in places if place is not None])
    assert [frame.name for frame in frames][:4] == ["capture_point", "leaf", "branch", "chain"]


def test_two_processes_of_one_program_share_its_files(optimised: Path) -> None:
    files = FileCache()
    with capture(optimised, "chain") as one, capture(optimised, "chain") as other:
        places = []
        for captured in (one, other):
            image = ProcessImage(captured.pid, files)
            stack = Unwinder(image).unwind(captured.registers, captured.window)
            places.append([image.locate(address) for address in stack.lookups])
    assert places[0] == places[1]
    assert len(files) == 2  # the program and the C library


def test_a_library_loaded_after_the_mappings_were_read_is_found_by_asking_again(
    optimised: Path, tmp_path: Path
) -> None:
    library = build_library(tmp_path)
    with capture(optimised, "library", library) as captured:
        stale = ProcessImage(captured.pid, FileCache())
        maps = stale.maps
        before = type(maps)(tuple(m for m in maps.mappings if "libplugin" not in m.path))
        image = ProcessImage(captured.pid, FileCache(), maps=before)
        unwinder = Unwinder(image)
        stack = unwinder.unwind(captured.registers, captured.window)
        assert stack.end is UnwindEnd.NO_MAPPING
        image.on_miss = lambda missed: missed.refresh()
        stack = unwinder.unwind(captured.registers, captured.window)
        assert stack.end is UnwindEnd.ROOT
        assert image.generation == 0  # what was known before still holds
