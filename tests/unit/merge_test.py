"""Python frames stand where the interpreter ran them, and none is lost or moved."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumemprof.stack.frames import Frame, FrameKind, Stack
from gpumemprof.stack.merge import FrameMode, NativeFrame, merge

LIBPYTHON = "/usr/lib/libpython3.12.so.1.0"
LIBC = "/usr/lib/libc.so.6"
FAILED = Frame.note("unwind failed: no CFI")


def c(name: str, module: str = "/opt/libtorch.so") -> NativeFrame:
    return NativeFrame(Frame(name, module=module))


def machinery(name: str) -> NativeFrame:
    return NativeFrame(Frame(name, module=LIBPYTHON), interpreter=True)


def note(frame: Frame) -> NativeFrame:
    return NativeFrame(frame)


def py(name: str) -> Frame:
    return Frame(name, FrameKind.PYTHON, f"{name}.py", 1)


EVAL = NativeFrame(
    Frame("_PyEval_EvalFrameDefault", module=LIBPYTHON), evaluates=True, interpreter=True
)
START = [machinery("Py_RunMain"), c("__libc_start_main", LIBC), machinery("_start")]


def names(stack: Stack) -> list[str]:
    return [frame.name for frame in stack]


def test_python_calls_cuda() -> None:
    native = [c("cudaMalloc"), c("at::empty"), machinery("cfunction_call"), EVAL, *START]
    assert names(merge(native, [[py("forward"), py("main")]])) == [
        "cudaMalloc",
        "at::empty",
        "forward",
        "main",
    ]


def test_python_calls_c_that_calls_python() -> None:
    native = [
        c("cudaMalloc"),
        EVAL,
        machinery("PyObject_Call"),
        c("torch::autograd::apply"),
        machinery("_PyFunction_Vectorcall"),
        EVAL,
        *START,
    ]
    assert names(merge(native, [[py("hook")], [py("backward"), py("main")]])) == [
        "cudaMalloc",
        "hook",
        "torch::autograd::apply",
        "backward",
        "main",
    ]


def test_a_generator_driven_from_c_stands_between_its_callers() -> None:
    native = [c("cudaMalloc"), EVAL, machinery("gen_iternext"), machinery("list_extend"), EVAL]
    assert names(merge(native, [[py("batches")], [py("epoch")]])) == [
        "cudaMalloc",
        "batches",
        "epoch",
    ]


def test_a_thread_without_python_keeps_all_its_native_frames() -> None:
    native = [c("cudaMalloc"), c("autograd::Engine"), c("start_thread", LIBC), c("clone3", LIBC)]
    assert names(merge(native, [])) == ["cudaMalloc", "autograd::Engine", "start_thread", "clone3"]


def test_frames_of_a_program_that_embeds_python_stay() -> None:
    native = [
        c("cudaMalloc"),
        EVAL,
        machinery("PyRun_String"),
        c("main", "/opt/server"),
        c("_start", "/opt/server"),
    ]
    assert names(merge(native, [[py("plugin")]])) == ["cudaMalloc", "plugin", "main", "_start"]


def test_native_frames_cut_at_the_root_lose_no_python_frame() -> None:
    native = [c("cudaMalloc"), EVAL, c("pybind11::dispatch"), note(FAILED)]
    assert names(merge(native, [[py("inner")], [py("outer")]])) == [
        "cudaMalloc",
        "inner",
        "pybind11::dispatch",
        "[unwind failed: no CFI]",
        "outer",
    ]


def test_python_is_shown_when_native_unwinding_failed_at_once() -> None:
    native = [c("cudaMalloc"), note(FAILED)]
    assert names(merge(native, [[py("inner")], [py("outer")]])) == [
        "cudaMalloc",
        "[unwind failed: no CFI]",
        "inner",
        "outer",
    ]
    assert names(merge([note(FAILED)], [[py("main")]])) == ["[unwind failed: no CFI]", "main"]


def test_missing_native_frames_are_said_even_if_the_unwinder_did_not() -> None:
    assert names(merge([c("cudaMalloc")], [[py("main")]])) == [
        "cudaMalloc",
        "[native frames missing]",
        "main",
    ]


def test_interpreter_calls_without_python_frames_are_not_hidden() -> None:
    """A greenlet's parent, or Python frames cut at the limit: more calls than runs."""
    native = [c("cudaMalloc"), EVAL, c("g_switch", "/opt/greenlet.so"), EVAL, *START]
    assert names(merge(native, [[py("worker")]])) == [
        "cudaMalloc",
        "worker",
        "g_switch",
        "_PyEval_EvalFrameDefault",
        "__libc_start_main",
    ]


def test_a_call_that_has_left_its_last_python_frame_keeps_the_others_in_place() -> None:
    native = [c("cudaMalloc"), EVAL, c("dealloc"), EVAL, c("between"), EVAL, *START]
    assert names(merge(native, [[py("finalizer")], [], [py("main")]])) == [
        "cudaMalloc",
        "finalizer",
        "dealloc",
        "between",
        "main",
    ]


def test_perf_trampolines_are_not_shown_beside_their_functions() -> None:
    native = [c("cudaMalloc"), EVAL, c("py::main:/srv/main.py", "[anon]"), *START]
    assert names(merge(native, [[py("main")]])) == ["cudaMalloc", "main"]


def test_python_mode_shows_python_and_the_hooked_call() -> None:
    native = [c("cudaMalloc"), c("at::empty"), EVAL, c("pybind"), EVAL, note(FAILED)]
    assert names(merge(native, [[py("inner")], [py("outer")]], FrameMode.PYTHON)) == [
        "cudaMalloc",
        "inner",
        "outer",
        "[unwind failed: no CFI]",
    ]


def test_native_mode_shows_what_is_on_the_native_stack() -> None:
    native = [c("cudaMalloc"), machinery("cfunction_call"), EVAL, *START]
    assert names(merge(native, [[py("main")]], FrameMode.NATIVE)) == [
        "cudaMalloc",
        "cfunction_call",
        "_PyEval_EvalFrameDefault",
        "Py_RunMain",
        "__libc_start_main",
        "_start",
    ]


@pytest.mark.parametrize(
    ("module", "hidden"),
    [
        ("/usr/bin/python3.12", True),
        ("/opt/venv/bin/python3", True),
        ("/usr/lib/libpython3.10.so.1.0", True),
        ("/usr/lib/python3/dist-packages/_C.cpython-311-x86_64-linux-gnu.so", False),
        ("/opt/libtorch_python.so", False),
        ("", False),
    ],
)
def test_files_of_the_interpreter_are_known_by_name(module: str, hidden: bool) -> None:
    """The executable that starts libpython is a file of its own."""
    native = [c("cudaMalloc"), c("between", module), EVAL]
    assert ("between" not in names(merge(native, [[py("main")]]))) is hidden


native_frames = st.lists(
    st.one_of(
        st.just(EVAL),
        st.integers(0, 99).map(lambda n: c(f"c{n}")),
        st.integers(0, 99).map(lambda n: machinery(f"m{n}")),
        st.just(c("start_thread", LIBC)),
        st.just(note(FAILED)),
    ),
    max_size=20,
)
python_runs = st.lists(st.integers(0, 4), max_size=8).map(
    lambda sizes: [
        [py(f"p{run}.{frame}") for frame in range(size)] for run, size in enumerate(sizes)
    ]
)


@given(
    native=native_frames,
    runs=python_runs,
    mode=st.sampled_from([FrameMode.MIXED, FrameMode.PYTHON]),
)
def test_every_python_frame_is_kept_once_and_in_order(
    native: list[NativeFrame], runs: list[list[Frame]], mode: FrameMode
) -> None:
    merged = merge(native, runs, mode)
    python = [frame for frame in merged if frame.kind is FrameKind.PYTHON]
    assert python == [frame for run in runs for frame in run]


@given(native=native_frames, runs=python_runs)
def test_native_frames_outside_the_interpreter_are_kept_in_order(
    native: list[NativeFrame], runs: list[list[Frame]]
) -> None:
    merged = merge(native, runs)
    kept = [frame.name for frame in merged if frame.name.startswith("c")]
    assert kept == [entry.frame.name for entry in native if entry.frame.name.startswith("c")]


@given(native=native_frames, runs=python_runs)
def test_no_python_frame_passes_a_native_frame_of_another_call(
    native: list[NativeFrame], runs: list[list[Frame]]
) -> None:
    """Run n stands between the native frames around call n, for every call that has a run."""
    merged = names(merge(native, runs))
    calls = [index for index, entry in enumerate(native) if entry.evaluates]
    for call, run in zip(calls, runs, strict=False):
        if not run:
            continue
        first = merged.index(run[0].name)
        last = merged.index(run[-1].name)
        before = sum(entry.frame.name.startswith("c") for entry in native[:call])
        assert sum(name.startswith("c") for name in merged[:first]) == before
        assert last - first == len(run) - 1


@given(native=native_frames, runs=python_runs)
def test_notes_are_never_hidden(native: list[NativeFrame], runs: list[list[Frame]]) -> None:
    for mode in FrameMode:
        wanted = sum(entry.frame == FAILED for entry in native)
        assert sum(frame == FAILED for frame in merge(native, runs, mode)) == wanted
