#!/usr/bin/python3.11
"""The first process of a virtual machine: records the stand-in programs, tells the results on the
second serial line (a JSON object a line), and switches the machine off.

Everything runs in children that are forked off here: emulated, each start of Python would take
many seconds.
"""

import base64
import ctypes
import importlib
import json
import os
import platform
import signal
import sys
import time
import traceback
import tty
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHECKOUT = Path("/gpumemprof-checkout")
FAKES = CHECKOUT / "build/fakes"
OUT = Path("/out")
PYTHON = "/usr/bin/python3.11"
PATIENCE = 300.0
KERNEL_BTF = Path("/sys/kernel/btf")
ENVIRONMENT = {
    "PATH": "/usr/sbin:/usr/bin",
    "PYTHONPATH": f"/site:{CHECKOUT}",
    "LD_LIBRARY_PATH": str(FAKES),
    "LC_ALL": "C.UTF-8",
    "HOME": "/tmp",
}
HOLD = "1"
PROGRAMS = {
    "driver_loop": [
        f"{FAKES}/driver_loop", "--pairs", "200", "--leak", "5", "--depth", "4", "--hold", HOLD,
    ],
    "driver_only": [f"{FAKES}/driver_only", "--hold", HOLD],
    "llm_server": [
        PYTHON, str(CHECKOUT / "gpumemprof/demo/llm_server.py"), "--json", "--scale", "0.125",
        "--requests", "6", "--interval", "0.05", "--hold", HOLD,
    ],
}  # fmt: skip

MODULES = (
    "attach_cost",
    "gpumemprof.probe.offsets",
    "gpumemprof.recording",
    "gpumemprof.doctor",
)

libc = ctypes.CDLL(None, use_errno=True)


def mount(kind: str, target: str) -> None:
    if libc.mount(kind.encode(), target.encode(), kind.encode(), 0, None):
        print(f"mount {target}: {os.strerror(ctypes.get_errno())}", flush=True)


def prepare() -> int:
    """The descriptor that results are written to."""
    mount("devtmpfs", "/dev")
    mount("proc", "/proc")
    mount("sysfs", "/sys")
    console = os.open("/dev/console", os.O_RDWR)
    for fd in range(3):
        os.dup2(console, fd)
    line = os.open("/dev/ttyS1", os.O_RDWR | os.O_NOCTTY)
    tty.setraw(line)
    return line


class Results:
    def __init__(self, line: int) -> None:
        self._line = line

    def tell(self, step: str, **values: object) -> None:
        data = json.dumps({"step": step, **values}).encode() + b"\n"
        while data:
            data = data[os.write(self._line, data) :]


def run(work: Callable[[], object], **settings: str) -> dict[str, object]:
    """Runs a function as a program of its own would: output to files, an exit code."""
    began = time.monotonic()
    files = [Path("/tmp/stdout"), Path("/tmp/stderr")]
    for file in files:
        file.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        code = 99
        try:
            os.setsid()
            for number, file in enumerate(files, 1):
                os.dup2(os.open(file, os.O_CREAT | os.O_WRONLY | os.O_APPEND), number)
            os.environ.update(settings)
            code = int(work() or 0)  # type: ignore[call-overload]
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    status = -1
    while time.monotonic() - began < PATIENCE:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            break
        time.sleep(0.02)
    else:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    out, err = (file.read_text(errors="replace")[-20000:] for file in files)
    return {
        "exit": os.waitstatus_to_exitcode(status),
        "stdout": out,
        "stderr": err,
        "seconds": round(time.monotonic() - began, 2),
    }


def command(*arguments: str, **settings: str) -> dict[str, object]:
    from gpumemprof.cli.main import main

    def work() -> object:
        sys.argv = ["gpumemprof", *arguments]
        return main()

    return run(work, **settings)


def record(program: str, *options: str) -> dict[str, object]:
    profile, stats = OUT / "p.pb.gz", OUT / "stats.%p.json"
    for old in OUT.iterdir():
        old.unlink()
    done = command(
        "record", *options, "-o", str(profile), "--", *PROGRAMS[program],
        GPUMEMPROF_FAKE_STATS=str(stats),
    )  # fmt: skip
    truths = [json.loads(path.read_text()) for path in OUT.glob("stats.*.json")]
    encoded = base64.b64encode(profile.read_bytes()).decode() if profile.exists() else None
    return {"program": program, "truths": truths, "profile": encoded, **done}


def complaints() -> list[str]:
    """Lines of the kernel's log that say that something is wrong with it."""
    buffer = ctypes.create_string_buffer(1 << 20)
    libc.klogctl(3, buffer, len(buffer))
    return [line for line in buffer.value.decode(errors="replace").splitlines()
            if "WARNING:" in line or "BUG:" in line]  # fmt: skip


def work(results: Results, plan: dict[str, Any]) -> None:
    """``plan``: see check.plan."""
    # Once, for all children: emulated, it takes seconds.
    attach_cost, offsets, *_ = map(importlib.import_module, MODULES)

    results.tell(
        "machine",
        release=platform.release(),
        btf=(KERNEL_BTF / "vmlinux").exists(),
        processors=os.cpu_count(),
        booted=time.clock_gettime(time.CLOCK_BOOTTIME),
    )
    results.tell("offsets", **run(lambda: print(json.dumps(offsets.told_and_found()))))
    results.tell("doctor", **command("doctor", "--json"))
    for mode, programs in plan["modes"].items():
        cost = run(lambda mode=mode: attach_cost.measure("libbpf", mode))  # type: ignore[misc]
        results.tell("attach", mode=mode, **cost)
        for program in programs if not cost["exit"] else ():
            done = record(program, "--loader", "libbpf", "--attach", mode)
            results.tell("record", btf=True, mode=mode, **done)
    if plan["without_btf"]:
        mount("tmpfs", str(KERNEL_BTF))
        for program in plan["without_btf"]:
            results.tell("record", btf=False, mode="", **record(program))
    results.tell("kernel log", complaints=complaints())


def main() -> None:
    os.environ.update(ENVIRONMENT)
    sys.path[:0] = [*ENVIRONMENT["PYTHONPATH"].split(":"), str(CHECKOUT)]
    results = Results(prepare())
    try:
        work(results, json.loads((CHECKOUT / "plan.json").read_text()))
        results.tell("end")
    except BaseException:
        results.tell("error", trace=traceback.format_exc())
    os.sync()
    libc.reboot(0x4321FEDC)  # LINUX_REBOOT_CMD_POWER_OFF


if __name__ == "__main__":
    main()
