#!/usr/bin/python3.11
"""The first and only process of a virtual machine: records the stand-in programs, tells the
results on the second serial line (a JSON object a line), and switches the machine off."""

import base64
import ctypes
import json
import os
import platform
import subprocess
import time
import traceback
import tty
from pathlib import Path

CHECKOUT = Path("/gpumemprof-checkout")
FAKES = CHECKOUT / "build/fakes"
OUT = Path("/out")
PYTHON = "/usr/bin/python3.11"
MODES = ("session", "multi", "single")
PATIENCE = 180.0
ENVIRONMENT = {
    "PATH": "/usr/sbin:/usr/bin",
    "PYTHONPATH": f"/site:{CHECKOUT}",
    "LD_LIBRARY_PATH": str(FAKES),
    "LC_ALL": "C.UTF-8",
    "HOME": "/tmp",
}
# Long enough alive to be looked at by a recorder that is emulated as well.
HOLD = "3"
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


def run(arguments: list[str], **settings: str) -> dict[str, object]:
    began = time.monotonic()
    try:
        done = subprocess.run(
            arguments, capture_output=True, timeout=PATIENCE, check=False, cwd="/tmp",
            stdin=subprocess.DEVNULL, env={**ENVIRONMENT, **settings},
        )  # fmt: skip
        code, out, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as late:
        code, out, err = -1, late.stdout or b"", (late.stderr or b"") + b"\ntook too long"
    return {
        "exit": code,
        "stdout": out.decode(errors="replace")[-20000:],
        "stderr": err.decode(errors="replace")[-20000:],
        "seconds": round(time.monotonic() - began, 2),
    }


def gpumemprof(*arguments: str, **settings: str) -> dict[str, object]:
    return run([PYTHON, "-m", "gpumemprof", *arguments], **settings)


def record(mode: str, program: str) -> dict[str, object]:
    profile, stats = OUT / "p.pb.gz", OUT / "stats.%p.json"
    for old in OUT.iterdir():
        old.unlink()
    done = gpumemprof(
        "record", "--attach", mode, "-o", str(profile), "--", *PROGRAMS[program],
        GPUMEMPROF_FAKE_STATS=str(stats),
    )  # fmt: skip
    truths = [json.loads(path.read_text()) for path in OUT.glob("stats.*.json")]
    encoded = base64.b64encode(profile.read_bytes()).decode() if profile.exists() else None
    return {"mode": mode, "program": program, "truths": truths, "profile": encoded, **done}


def work(results: Results) -> None:
    results.tell(
        "machine",
        release=platform.release(),
        btf=Path("/sys/kernel/btf/vmlinux").exists(),
        processors=os.cpu_count(),
        booted=time.clock_gettime(time.CLOCK_BOOTTIME),
    )
    results.tell("doctor", **gpumemprof("doctor", "--json"))
    programs = {} if "gpumemprof.only=attach" in Path("/proc/cmdline").read_text() else PROGRAMS
    for mode in MODES:
        cost = run([PYTHON, str(CHECKOUT / "attach_cost.py"), mode])
        results.tell("attach", mode=mode, **cost)
        for program in programs:
            done = record(mode, program)
            results.tell("record", **done)
            if cost["exit"] and done["exit"]:
                break  # refused


def main() -> None:
    results = Results(prepare())
    try:
        work(results)
        results.tell("end")
    except BaseException:
        results.tell("error", trace=traceback.format_exc())
    os.sync()
    libc.reboot(0x4321FEDC)  # LINUX_REBOOT_CMD_POWER_OFF


main()
