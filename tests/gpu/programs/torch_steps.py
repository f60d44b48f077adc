"""Times training steps. Each line "STEPS EMPTY_EVERY" is answered by READY {"ns":[...]}; every
EMPTY_EVERY steps (0: never) the allocator gives its segments back."""

import json
import sys
import time

import torch


def main():
    started = time.monotonic_ns()
    torch.empty(1, device="cuda")
    first = time.monotonic_ns()
    torch.manual_seed(0)
    width = 1024
    model = torch.nn.Sequential(
        *[layer for _ in range(6) for layer in (torch.nn.Linear(width, width), torch.nn.GELU())]
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = torch.randn(256, width, device="cuda")

    def step():
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def measure(steps, empty_every):
        times = []
        for number in range(steps):
            torch.cuda.synchronize()
            begun = time.perf_counter_ns()
            step()
            if empty_every and number % empty_every == empty_every - 1:
                torch.cuda.empty_cache()
            torch.cuda.synchronize()
            times.append(time.perf_counter_ns() - begun)
        return times

    times = measure(30, 0)
    print("READY " + json.dumps({"ns": times, "started": started, "first": first}), flush=True)
    for line in sys.stdin:
        numbers = line.split()
        if len(numbers) != 2:
            return
        print("READY " + json.dumps({"ns": measure(*map(int, numbers))}), flush=True)


main()
