"""Asks for more than there is, then fills the GPU until nothing is left."""

import json
import sys

import torch

GIB = 1 << 30
taken = []


def ask_for_too_much():
    return torch.empty(10 << 40, dtype=torch.uint8, device="cuda")  # MARK: too much


def fill(step):
    while True:
        taken.append(torch.empty(step, dtype=torch.uint8, device="cuda"))  # MARK: fill


def ready(phase, **more):
    stats = torch.cuda.memory_stats()
    told = {
        "phase": phase,
        "reserved": stats["reserved_bytes.all.current"],
        "ooms": stats["num_ooms"],
        **more,
    }
    print("READY " + json.dumps(told), flush=True)
    if not sys.stdin.readline():
        sys.exit(0)


def main():
    taken.append(torch.ones(64 << 20, device="cuda"))
    free, total = torch.cuda.mem_get_info()
    try:
        ask_for_too_much()
    except torch.cuda.OutOfMemoryError as error:
        message = str(error)
    ready("too-much", free=free, total=total, asked=10 << 40, message=message[:300])
    try:
        fill(8 * GIB)
    except torch.cuda.OutOfMemoryError as error:
        message = str(error)
    free, total = torch.cuda.mem_get_info()
    ready("full", free=free, total=total, asked=8 * GIB, message=message[:300], steps=len(taken))


main()
