"""CuPy and JAX: their pools as they tell them, against what we saw them take."""

from __future__ import annotations

from typing import Any

from common import device_labels, end, reconcile, remainder, script, session
from compare import largest, select, sums, through
from results import Run, check
from session import Program, Session

from gpumemprof.profile.model import Profile

CUPY_POOL = through("/cupy/cuda/memory")


@check("cupy", "frameworks", 120)
def cupy(run: Run) -> None:
    with session(run) as s:
        program = s.start("cupy", script(run, "cupy_pool.py"), run.env)
        for _ in range(2):
            truth = program.ready()
            phase = truth["phase"]
            profile = s.profile()
            pool = list(select(profile, program.pid, where=CUPY_POOL))
            run.equal(
                f"{phase}: in use by the pool, of total_bytes", sums(pool).bytes, truth["total"]
            )
            run.report(f"{phase}: used by arrays", "", truth["used"])
            run.detail(f"{phase}: pool", largest(pool))
            remainder(run, profile, program, phase, CUPY_POOL)
            device_labels(run, profile, program, phase)
            reconcile(run, s, profile, program, phase)
            program.answer()
        end(run, program, s)


def _jax(run: Run, env: dict[str, str]) -> None:
    with session(run) as s:
        program = s.start("jax", script(run, "jax_work.py"), {**run.env, **env})
        for _ in range(2):
            truth = program.ready()
            run.equal(f"{truth['phase']}: platform", truth["platform"], "gpu")
            _jax_pool(run, s, s.profile(), program, truth)
            program.answer()
        end(run, program, s)


def _jax_pool(
    run: Run, s: Session, profile: Profile, program: Program, truth: dict[str, Any]
) -> None:
    phase, stats = truth["phase"], truth["stats"]
    held = list(select(profile, program.pid))
    tracked = sums(held).bytes
    run.detail(f"{phase}: stats", stats)
    run.detail(f"{phase}: held", largest(held, 30))
    pool = stats.get("pool_bytes")
    if pool is None:
        run.report(f"{phase}: tracked, of bytes_limit (this JAX tells no pool_bytes)", tracked,
                   stats.get("bytes_limit"))  # fmt: skip
    else:
        run.at_most(f"{phase}: pool_bytes, of what is tracked", pool, tracked)
        run.report(f"{phase}: tracked beside the pool", tracked - pool)
        sizes = sorted((x.values.inuse_space for x in held if x.values.inuse_space), reverse=True)
        run.true(f"{phase}: some stacks hold exactly pool_bytes", _adds_up(sizes, pool), pool)
    run.at_most(f"{phase}: bytes in use in the pool, of what is tracked",
                stats.get("bytes_in_use", 0), tracked)  # fmt: skip
    device_labels(run, profile, program, phase)
    reconcile(run, s, profile, program, phase)


def _adds_up(sizes: list[int], total: int) -> bool:
    """Whether the largest stacks, one after the other, sum to it; those of the pool come first."""
    reached = {0}
    for size in sizes[:16]:
        reached |= {one + size for one in reached if one + size <= total}
    return total in reached


@check("jax", "frameworks", 150, alone=True)
def jax(run: Run) -> None:
    _jax(run, {})


@check("jax-grow", "frameworks", 150, alone=True)
def jax_grow(run: Run) -> None:
    _jax(run, {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"})
