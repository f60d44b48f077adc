"""Does what its arguments name, one step after the other, and tells PyTorch's figures after each.

torch_phases.py NAME STEP...    NAME: what /proc calls it, at most 15 letters

import         nothing: PyTorch is loaded, CUDA not yet used
first          the first allocation
take=MIB[@N]   takes so much on GPU N (default 0)
train          trains a small network, and keeps it
oom            asks for 10 TiB
drop           gives back what was taken first
leak           begins, in a thread, to take 2 MiB four times a second, beside memory that goes again
stop           ends that
"""

import contextlib
import ctypes
import json
import sys
import threading
from pathlib import Path

NAME = sys.argv[1].encode()
ctypes.CDLL(None).prctl(15, NAME, 0, 0, 0)  # PR_SET_NAME, before anything of CUDA is loaded

import torch  # noqa: E402

MIB = 1 << 20
TOO_MUCH = 10 << 40
PERIOD = 0.25
taken = []
trained = []
leaked = []
stopped = threading.Event()
threads = []


def first():
    taken.append(torch.empty(MIB, dtype=torch.uint8, device="cuda"))  # MARK: first


def take(what):
    size, _, device = what.partition("@")
    with torch.cuda.device(int(device or 0)):
        taken.append(torch.empty(int(size) * MIB, dtype=torch.uint8, device="cuda"))  # MARK: take


def train():
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(1024, 1024), torch.nn.GELU())]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    inputs = torch.randn(256, 1024, device="cuda")
    for _ in range(5):
        (model(inputs) - inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    trained.extend((model, optimizer, inputs))


def oom():
    try:
        torch.empty(TOO_MUCH, dtype=torch.uint8, device="cuda")  # MARK: oom
    except torch.cuda.OutOfMemoryError as error:
        return {"asked": TOO_MUCH, "message": str(error)[:300]}
    raise SystemExit("10 TiB fitted")


def drop():
    del taken[0]
    torch.cuda.empty_cache()


def grow():
    # Two of these fill a segment of 2 MiB, which is what is asked of the driver.
    for _ in range(2):
        leaked.append(torch.empty(MIB, dtype=torch.uint8, device="cuda"))


def churn():
    torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.empty_cache()


def leaking():
    while not stopped.wait(PERIOD):
        grow()
        churn()


def leak():
    threads.append(threading.Thread(target=leaking))
    threads[0].start()


def stop():
    stopped.set()
    threads[0].join()


STEPS = {"import": lambda: None, "first": first, "train": train, "oom": oom, "drop": drop,
         "leak": leak, "stop": stop}  # fmt: skip


def figures():
    count = torch.cuda.device_count()
    if not torch.cuda.is_initialized():
        return {"count": count}
    torch.cuda.synchronize()
    stats = [torch.cuda.memory_stats(n) for n in range(count)]
    uuids = [""] * count
    with contextlib.suppress(AttributeError):  # an older PyTorch
        uuids = [str(torch.cuda.get_device_properties(n).uuid) for n in range(count)]

    def each(name):
        return [one.get(name, 0) for one in stats]

    return {
        "count": count,
        "uuids": [f"GPU-{uuid.removeprefix('GPU-')}" if uuid else "" for uuid in uuids],
        "reserved": each("reserved_bytes.all.current"),
        "most_reserved": each("reserved_bytes.all.peak"),
        "device_allocs": each("num_device_alloc"),
        "device_frees": each("num_device_free"),
    }


def lines():
    source = Path(__file__).read_text().splitlines()
    return {mark: n for n, text in enumerate(source, 1) if (mark := text.partition("# MARK: ")[2])}


def main():
    for step in sys.argv[2:]:
        name, _, argument = step.partition("=")
        more = (take(argument) if name == "take" else STEPS[name]()) or {}
        told = {"phase": step, "version": torch.__version__, "lines": lines(), **figures(), **more}
        print("READY " + json.dumps(told), flush=True)
        if not sys.stdin.readline():
            break
    stopped.set()


main()
