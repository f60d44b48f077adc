"""C programs that know what they hold, with the runtime linked statically and shared."""

from __future__ import annotations

import json
import os
import subprocess

from common import (
    binary,
    by_kind,
    complete,
    device_labels,
    end,
    gpumemprof,
    reconcile,
    script,
    session,
)
from compare import GPU_KINDS, Taken, Theirs, match_stacks, select, sums, their_python_frames, told
from results import Run, check

from gpumemprof.profile import pprof
from gpumemprof.stack.frames import FrameKind


def _calls(run: Run, variant: str) -> None:
    with session(run) as s:
        program = s.start("calls", [binary(run, f"cuda_calls_{variant}")], run.env)
        truth = program.ready()
        profile = s.profile()
        by_kind(run, profile, program, truth)
        device_labels(run, profile, program, truth["phase"])
        # Managed memory is not all on the GPU, so that NVML may tell less than what is tracked.
        reconcile(run, s, profile, program, truth["phase"], strict=False)
        failures = [f for f in profile.failures if f.requested == truth["failed_bytes"]]
        run.equal("failures recorded", len(failures), 1)
        if failures:
            run.equal("failure: error", failures[0].error, truth["failed_error"])
            run.true(
                "failure: stack names main",
                any(frame.name == "main" for frame in failures[0].stack),
                told(failures[0].stack),
            )
        allocations = [x for x in select(profile, program.pid) if x.values.inuse_space]
        run.equal(
            "every stack reaches main",
            sum(any(frame.name == "main" for frame in x.stack) for x in allocations),
            len(allocations),
        )
        run.detail("stacks", [told(x.stack, 20) for x in allocations])
        for _ in range(3):
            program.answer()
            truth = program.ready()
            by_kind(run, s.profile(), program, truth)
        program.answer()
        program.ready()
        after = sums(select(s.profile(), program.pid)).bytes
        if variant == "static":
            run.report("held after cudaDeviceReset", after, 0, "reaches no exported driver call")
        else:
            run.equal("held after cudaDeviceReset", after, 0)
        end(run, program, s)


@check("c-static", "native", 60)
def c_static(run: Run) -> None:
    _calls(run, "static")


@check("c-shared", "native", 60)
def c_shared(run: Run) -> None:
    _calls(run, "shared")


@check("ipc", "native", 60)
def ipc(run: Run) -> None:
    with session(run) as s:
        program = s.start("ipc", [binary(run, "cuda_ipc_shared")], run.env)
        for phase in ("opened", "closed"):
            truth = program.ready()
            profile = s.profile()
            run.report(f"{phase}: error of cudaIpcOpenMemHandle", truth["error"])
            run.equal(
                f"{phase}: the owner's bytes",
                sums(select(profile, program.pid)).bytes,
                truth["owner_bytes"],
            )
            run.equal(
                f"{phase}: the other's own bytes",
                sums(select(profile, truth["child"])).bytes,
                truth["child_bytes"],
            )
            for pid, who in ((program.pid, "owner"), (truth["child"], "other")):
                run.report(f"{phase}: NVML's bytes of the {who}", s.driver_bytes(pid))
            program.answer()
        run.equal("exit code", program.finish(), 0)
        profile = s.profile()
        run.equal("unknown frees", profile.completeness.get("unknown_frees"), 0)
        complete(run, profile)


@check("py-stacks", "native", 60)
def py_stacks(run: Run) -> None:
    """A Python program that calls the runtime itself and notes its own stack at each call."""
    with session(run) as s:
        program = s.start("py", script(run, "py_calls.py"), run.env)
        truth = program.ready()
        profile = s.profile()
        run.equal("bytes", sums(select(profile, program.pid)).bytes, truth["bytes"])
        ours: list[Taken] = s.taken(program.pid)
        theirs = [
            Theirs("cudaMalloc", e["size"], their_python_frames(e["frames"]))
            for e in truth["events"]
        ]
        match = match_stacks(ours, theirs)
        run.equal("stacks equal, frames and lines", match.equal, match.theirs)
        run.equal("allocations of ours beside them", match.unclaimed, 0)
        run.detail("misses", match.misses)
        failures = [f for f in profile.failures if f.requested == truth["failed_bytes"]]
        run.equal("failures recorded", len(failures), 1)
        end(run, program, s)


@check("cli", "native", 60)
def cli(run: Run) -> None:
    """The command itself, on a program that ends as soon as it has what it wants."""
    output = run.logs / "cli.pb.gz"
    command = gpumemprof("record", "-o", str(output), "--", binary(run, "cuda_calls_shared"))
    done = subprocess.run(
        command, input="go\n" * 8, env={**os.environ, **run.env}, capture_output=True, text=True,
        timeout=50, check=False,
    )  # fmt: skip
    (run.logs / "cli.out").write_text(done.stdout + done.stderr)
    run.equal("exit code", done.returncode, 0)
    truth = json.loads(done.stdout.split("READY ", 1)[1].splitlines()[0])
    profile = pprof.decode(output.read_bytes())
    gpu = sum(truth[kind]["bytes"] for kind in GPU_KINDS)
    run.equal("GPU bytes at the peak", sum(x.values.peak_space for x in select(profile)), gpu)
    samples = [x for x in select(profile) if x.values.alloc_objects]
    whole = sum(any(frame.name == "main" for frame in x.stack) for x in samples)
    run.equal("stacks that reach main", whole, len(samples))
    notes = sum(any(frame.kind is FrameKind.NOTE for frame in x.stack) for x in samples)
    run.equal("stacks with parts that are not known", notes, 0)
    run.detail("stacks", [told(x.stack, 20) for x in samples])
    complete(run, profile)
