"""Workers beside a process with CUDA: forked loaders without it, spawned ones with their own."""

import json
import os
import sys

import torch
from torch import multiprocessing
from torch.utils.data import DataLoader, Dataset

MIB = 1 << 20


class Numbers(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((1024,), float(index)), os.getpid()


def worker(queue, release, size):
    block = torch.empty(size, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    queue.put({"pid": os.getpid(), "reserved": torch.cuda.memory_reserved()})
    release.wait()
    del block


def ready(phase, **more):
    torch.cuda.synchronize()
    told = {"phase": phase, "reserved": torch.cuda.memory_reserved(), **more}
    print("READY " + json.dumps(told), flush=True)
    if not sys.stdin.readline():
        sys.exit(0)


def main():
    held = torch.ones(128 * MIB, dtype=torch.uint8, device="cuda")
    loader = DataLoader(
        Numbers(), batch_size=8, num_workers=2, pin_memory=True, multiprocessing_context="fork"
    )
    pids, total = set(), 0.0
    for batch, owners in loader:
        total += batch.to("cuda").sum().item()
        pids.update(owners.tolist())
    ready("loaded", workers=sorted(pids), total=total)
    context = multiprocessing.get_context("spawn")
    queue, release = context.Queue(), context.Event()
    children = [
        context.Process(target=worker, args=(queue, release, (n + 1) * 64 * MIB), daemon=True)
        for n in range(2)
    ]
    for child in children:
        child.start()
    told = [queue.get(timeout=120) for _ in children]
    ready("spawned", spawned=told)
    release.set()
    for child in children:
        child.join(60)
    ready("joined", exits=[child.exitcode for child in children])
    del held


if __name__ == "__main__":
    main()
