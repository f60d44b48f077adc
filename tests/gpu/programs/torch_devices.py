"""One process with memory on two GPUs, from two threads that change devices."""

import json
import sys
import threading

import torch

MIB = 1 << 20
held = []


def take(device, size):
    with torch.cuda.device(device):
        held.append(torch.ones(size, dtype=torch.uint8, device="cuda"))


def main():
    count = torch.cuda.device_count()
    if count >= 2:
        take(1, 96 * MIB)
        take(0, 32 * MIB)
        threads = [threading.Thread(target=take, args=(n % 2, 40 * MIB)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        torch.cuda.synchronize()
    told = {"count": count, "reserved": [torch.cuda.memory_reserved(n) for n in range(count)]}
    print("READY " + json.dumps(told), flush=True)
    sys.stdin.readline()


main()
