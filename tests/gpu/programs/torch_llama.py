"""Trains a small Llama with random weights, generates, lets all go; tells PyTorch's own figures.

Options: --history FILE  PyTorch's own trace of its segments, with stacks, written at READY
         --steps N       training steps
         --cpu           without CUDA, to try the program itself
"""

import argparse
import gc
import json
import os
import sys
import time
from pathlib import Path

import torch

os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
from transformers import LlamaConfig, LlamaForCausalLM


def figures(phase):
    if not torch.cuda.is_available():
        return {"phase": phase}
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    told = {
        "phase": phase,
        "backend": torch.cuda.get_allocator_backend(),
        "reserved": stats.get("reserved_bytes.all.current", 0),
        "allocated": stats.get("allocated_bytes.all.current", 0),
        "device_allocs": stats.get("num_device_alloc", -1),
        "device_frees": stats.get("num_device_free", -1),
        "version": torch.__version__,
    }
    try:
        segments = torch.cuda.memory_snapshot()
        told["segments"] = len(segments)
        told["segment_bytes"] = sum(segment["total_size"] for segment in segments)
    except Exception as error:  # a backend without snapshots
        told["snapshot_error"] = str(error)[:200]
    return told


def ready(phase, **more):
    print("READY " + json.dumps({**figures(phase), **more}), flush=True)
    if not sys.stdin.readline():
        sys.exit(0)


def small_model(device):
    config = LlamaConfig(
        vocab_size=8192,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=512,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config).to(device)


def train(model, steps, device):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(steps):
        ids = torch.randint(3, 8192, (4, 256), device=device)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return optimizer


def generate(model, device):
    with torch.inference_mode():
        prompt = torch.randint(3, 8192, (2, 32), device=device)
        return model.generate(prompt, max_new_tokens=16, min_new_tokens=16, do_sample=False)


def history(path):
    """PyTorch's own trace of what it took from the driver."""
    begun = time.monotonic()
    snapshot = torch.cuda.memory._snapshot()
    kept = []
    for trace in snapshot["device_traces"]:
        for event in trace:
            if event["action"] in ("segment_alloc", "segment_map"):
                kept.append(
                    {
                        "action": event["action"],
                        "size": event["size"],
                        "frames": [
                            {"name": f["name"], "filename": f["filename"], "line": f["line"]}
                            for f in event.get("frames", [])
                        ],
                    }
                )
    Path(path).write_text(json.dumps(kept))
    return {
        "events": sum(len(trace) for trace in snapshot["device_traces"]),
        "kept": len(kept),
        "snapshot_seconds": round(time.monotonic() - begun, 2),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--history")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    device = "cpu" if options.cpu else "cuda"
    torch.manual_seed(0)
    if options.history and not options.cpu:
        torch.cuda.init()
        torch.cuda.memory._record_memory_history(
            enabled="all", context="all", stacks="all", max_entries=10**6
        )
    model = small_model(device)
    optimizer = train(model, options.steps, device)
    tokens = generate(model, device)
    more = history(options.history) if options.history and not options.cpu else {}
    ready("trained", tokens=list(tokens.shape), **more)
    del model, optimizer, tokens
    gc.collect()
    if not options.cpu:
        torch.cuda.empty_cache()
    ready("emptied")


main()
