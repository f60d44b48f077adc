"""Several processes at once: not mixed up, children followed, each with its own end."""

from __future__ import annotations

from checks_frameworks import CUPY_POOL
from common import complete, device_labels, end, reconcile, script, session
from compare import label, select, sums, torch_allocator
from results import Run, Skipped, check

TORCH = {"PYTORCH_ALLOC_CONF": "expandable_segments:False"}


@check("two-programs", "processes", 240)
def two_programs(run: Run) -> None:
    """PyTorch and CuPy at once."""
    with session(run) as s:
        torch = s.start("torch", script(run, "torch_llama.py"), {**run.env, **TORCH})
        cupy = s.start("cupy", script(run, "cupy_pool.py"), run.env)
        for _ in range(2):
            of_cupy, of_torch = cupy.ready(), torch.ready()
            profile = s.profile()
            run.equal(
                f"PyTorch ({of_torch['phase']}): in use by its allocator",
                sums(select(profile, torch.pid, where=torch_allocator)).bytes,
                of_torch["reserved"],
            )
            run.equal(
                f"CuPy ({of_cupy['phase']}): in use by its pool",
                sums(select(profile, cupy.pid, where=CUPY_POOL)).bytes,
                of_cupy["total"],
            )
            mixed = sums(select(profile, torch.pid, where=CUPY_POOL)).alloc_count
            mixed += sums(select(profile, cupy.pid, where=torch_allocator)).alloc_count
            run.equal("stacks of one under the other", mixed, 0)
            for program in (torch, cupy):
                device_labels(run, profile, program, program.name)
                reconcile(run, s, profile, program, program.name)
                program.answer()
        end(run, cupy, s)
        end(run, torch, s)


@check("workers", "processes", 240)
def workers(run: Run) -> None:
    """Forked loaders and spawned workers of PyTorch."""
    with session(run) as s:
        program = s.start("workers", script(run, "torch_workers.py"), {**run.env, **TORCH})
        truth = program.ready()
        profile = s.profile()
        for worker in truth["workers"]:
            run.equal("a forked loader's bytes", sums(select(profile, worker)).bytes, 0)
        own = sums(select(profile, program.pid, where=torch_allocator)).bytes
        run.equal("the parent's bytes, its loaders ended", own, truth["reserved"])
        program.answer()
        truth = program.ready()
        profile = s.profile()
        for child in truth["spawned"]:
            run.equal(
                "a spawned worker's bytes",
                sums(select(profile, child["pid"], where=torch_allocator)).bytes,
                child["reserved"],
            )
        own = sums(select(profile, program.pid, where=torch_allocator)).bytes
        run.equal("the parent's bytes beside them", own, truth["reserved"])
        spawned = [child["pid"] for child in truth["spawned"]]
        program.answer()
        truth = program.ready()
        profile = s.profile()
        run.equal("the workers' exit codes", truth["exits"], [0, 0])
        for pid in spawned:
            run.equal("a worker's bytes after its end", sums(select(profile, pid)).bytes, 0)
        own = sums(select(profile, program.pid, where=torch_allocator)).bytes
        run.equal("the parent's bytes, its workers ended", own, truth["reserved"])
        complete(run, profile)
        end(run, program, s)


@check("two-gpus", "processes", 120)
def two_gpus(run: Run) -> None:
    """One process on two GPUs: each byte on its device."""
    with session(run) as s:
        program = s.start("devices", script(run, "torch_devices.py"), {**run.env, **TORCH})
        truth = program.ready()
        if truth["count"] < 2:
            program.finish()
            raise Skipped(f"this machine has {truth['count']} GPU")
        samples = list(select(s.profile(), program.pid, where=torch_allocator))
        for device, reserved in enumerate(truth["reserved"]):
            ours = sums(x for x in samples if label(x, "device") == str(device)).bytes
            run.equal(f"bytes on device {device}", ours, reserved)
        end(run, program, s)
