"""Holds memory before it is recorded, takes more, gives back the first."""

import json
import sys

import torch

MIB = 1 << 20


def ready(phase):
    torch.cuda.synchronize()
    told = {"phase": phase, "reserved": torch.cuda.memory_reserved()}
    print("READY " + json.dumps(told), flush=True)
    if not sys.stdin.readline():
        sys.exit(0)


def take(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def main():
    before = take(1024 * MIB)
    ready("before")
    after = take(512 * MIB)
    ready("more")
    del before
    torch.cuda.empty_cache()
    ready("given-back")
    del after


main()
