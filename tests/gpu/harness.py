"""Runs checks against real CUDA programs, each in a process of its own with a time limit.

run.sh [NAME...]        checks or groups by name; all but selftest by default
run.sh --list
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SITE = ROOT / "site" if (ROOT / "site/gpumemprof").is_dir() else ROOT
sys.path[:0] = [str(SITE), str(HERE)]
if SITE != ROOT:
    sys.path.append(str(ROOT))  # for tests.fakes
if "GPU_TEST_SITE" in os.environ:  # a checkout: the dependencies of its environment
    sys.path.append(os.environ["GPU_TEST_SITE"])

import checks_agent  # noqa: E402, F401
import checks_agent_cases  # noqa: E402, F401
import checks_agent_cost  # noqa: E402, F401
import checks_cost  # noqa: E402, F401
import checks_frameworks  # noqa: E402, F401
import checks_native  # noqa: E402, F401
import checks_processes  # noqa: E402, F401
import checks_tools  # noqa: E402, F401
import checks_torch  # noqa: E402, F401
import programs_build  # noqa: E402
from results import CHECKS, Check, Run, Skipped, markdown  # noqa: E402

GROUPS = ("native", "torch", "agent", "stacks", "frameworks", "processes", "cost")
"""In this order: the time on a GPU is spent on what matters most first."""
TAIL = 3000
OVERALL_SECONDS = 570


def main() -> int:
    options = _options()
    if options.list:
        for one in CHECKS.values():
            print(f"{one.name:24} {one.group:12} at most {one.seconds} s")
        return 0
    out = Path(options.out).resolve()
    (out / "logs").mkdir(parents=True, exist_ok=True)
    if options.one:
        return run_one(CHECKS[options.one], out, options)
    selftest = options.names == ["selftest"]
    names = options.names or ["all"]
    chosen = [one for one in CHECKS.values() if _chosen(one, names, selftest)]
    chosen.sort(key=lambda one: GROUPS.index(one.group))
    known = {"all", "selftest", *GROUPS, *CHECKS}
    if not chosen or not known.issuperset(names):
        print(f"no such check: {' '.join(sorted({*names} - known))} (--list tells them)")
        return 2
    problems = programs_build.programs(out, stand_ins=selftest)
    results = run_all(chosen, out, options, selftest)
    return summarise(results, problems, out)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="checks or groups")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--out", default=os.environ.get("OUT") or "gpu-results")
    parser.add_argument("--seconds", type=float, default=OVERALL_SECONDS, help="for everything")
    parser.add_argument("-j", "--jobs", type=int, default=1, help="checks at the same time")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--stand-ins", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _chosen(one: Check, names: list[str], selftest: bool) -> bool:
    if selftest:
        return one.group in {"native", "agent"} or one.name in {"cost-pair", "cost-pair-static"}
    return "all" in names or one.name in names or one.group in names


# One check, in a process of its own


def run_one(one: Check, out: Path, options: argparse.Namespace) -> int:
    run = Run(
        name=one.name,
        file=out / f"{one.name}.json",
        logs=out / "logs",
        binaries=out / "bin",
        programs=HERE / "programs",
        python=os.environ.get("GPU_TEST_PYTHON") or shutil.which("python3") or sys.executable,
    )
    if options.stand_ins:
        run.stand_ins = True
        run.env = {
            "LD_LIBRARY_PATH": str(programs_build.stand_in_libraries()),
            "PYTHONPATH": str(HERE / "stand_in"),
        }
        os.environ["LD_LIBRARY_PATH"] = run.env["LD_LIBRARY_PATH"]
    run.save()
    try:
        one.run(run)
    except Skipped as why:
        run.end("skipped", str(why))
        return 0
    except BaseException:
        run.end("error", traceback.format_exc()[-TAIL:])
        traceback.print_exc()
        return 1
    run.end("failed" if run.failed else "ok")
    return int(run.failed)


# All of them


def run_all(
    chosen: list[Check], out: Path, options: argparse.Namespace, selftest: bool
) -> list[dict[str, Any]]:
    deadline = time.monotonic() + options.seconds
    together = [one for one in chosen if not one.alone and options.jobs > 1]
    alone = [one for one in chosen if one not in together]
    results: dict[str, dict[str, Any]] = {}
    with concurrent.futures.ThreadPoolExecutor(max(1, options.jobs)) as pool:
        running = {one.name: pool.submit(_spawn, one, out, selftest, deadline) for one in together}
        for name, future in running.items():
            results[name] = future.result()
    for one in alone:
        results[one.name] = _spawn(one, out, selftest, deadline)
    return [results[one.name] for one in chosen]


def _spawn(one: Check, out: Path, selftest: bool, deadline: float) -> dict[str, Any]:
    file, log = out / f"{one.name}.json", out / "logs" / f"{one.name}.log"
    file.unlink(missing_ok=True)
    seconds = min(one.seconds, deadline - time.monotonic())
    if seconds < 5:
        return _result(file, one.name, "not run", "the time for all checks was over")
    command = [
        sys.executable, "-E", "-s", "-S", str(HERE / "harness.py"), "--one", one.name,
        "--out", str(out), *(["--stand-ins"] if selftest else []),
    ]  # fmt: skip
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True
        )
        try:
            process.wait(seconds)
            status, problem = "", ""
        except subprocess.TimeoutExpired:
            status, problem = "timeout", f"not done in {seconds:.0f} s"
        finally:
            _kill_group(process.pid)
            process.wait()
    if not status and process.returncode < 0:
        status, problem = "error", f"the check died of signal {-process.returncode}"
    result = _result(file, one.name, status, problem, log)
    print(f"{result['status']:8} {one.name} ({result['seconds']} s)", flush=True)
    return result


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _result(
    file: Path, name: str, status: str, problem: str, log: Path | None = None
) -> dict[str, Any]:
    try:
        result: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError):
        result = {"name": name, "seconds": 0, "rows": [], "details": {}, "problem": ""}
        status = status or "error"
        if log is not None and not problem:
            problem = log.read_text(errors="replace")[-TAIL:]
    if status:
        result["status"] = status
        result["problem"] = "\n".join(p for p in (problem, result["problem"]) if p)
    file.write_text(json.dumps(result, indent=1))
    return result


def summarise(results: list[dict[str, Any]], problems: list[str], out: Path) -> int:
    failed = [r for r in results if r["status"] not in ("ok", "skipped")]
    where = machine()
    told = {"machine": where, "build": problems, "checks": results}
    (out / "results.json").write_text(json.dumps(told, indent=1))
    lines = "".join(f"- {name}: {value}\n" for name, value in where.items())
    (out / "results.md").write_text(f"{lines}\n{markdown(results)}")
    print()
    for problem in problems:
        print(f"build: {problem[-600:]}")
    for result in results:
        wrong = [row for row in result["rows"] if row["ok"] is False]
        right = sum(row["ok"] is True for row in result["rows"])
        print(
            f"{result['status']:8} {result['name']:24} {right} right, {len(wrong)} wrong, "
            f"{result['seconds']} s"
        )
        for row in wrong[:6]:
            ours, theirs = f"{row['ours']!s:.200}", f"{row['theirs']!s:.200}"
            print(f"           {row['what']}: ours {ours}, theirs {theirs}")
        if result["problem"]:
            lines = result["problem"].strip().splitlines()
            print("           " + "\n           ".join(line[:220] for line in lines[-4:]))
    print(f"\n{len(results) - len(failed)} of {len(results)} fine; tables: {out}/results.md")
    return int(bool(failed))


def machine() -> dict[str, str]:
    """Where this ran, for the tables."""
    version = ROOT / "VERSION"
    return {
        "gpumemprof": version.read_text().strip() if version.exists() else "a checkout",
        "kernel": f"{platform.release()}, {os.cpu_count()} processors",
        "python of the profiler": platform.python_version(),
        "GPU": _said("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"),
        "time": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def _said(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "; ".join(done.stdout.strip().splitlines()) or done.stderr.strip()[:200]


if __name__ == "__main__":
    sys.exit(main())
