"""Real PyTorch memory snapshots, each with the memory_stats() of the same moment.

torch_snapshots.py DIRECTORY            all scenes, each in a process of its own
torch_snapshots.py DIRECTORY SCENE...   some of them
torch_snapshots.py DIRECTORY serve      a small Llama that serves from a static KV cache, to be
                                        recorded and set beside `gpumemprof plan` (not in "all")

Writes DIRECTORY/SCENE.pickle.gz (what torch.cuda.memory._dump_snapshot writes, compressed) and
DIRECTORY/SCENE.json (its figures). `serve` writes DIRECTORY/serve/ (config.json, safetensors),
DIRECTORY/serve.json and a snapshot without trace, DIRECTORY/serve.pickle.gz.

Options: --cpu, to try `serve` without CUDA.
"""

import argparse
import contextlib
import gzip
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import torch

MIB = 1 << 20
MAX_GZIP = 300_000
EXPANDABLE = "expandable_segments:True"


def model_and_optimizer():
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    model = torch.nn.Sequential(
        torch.nn.Embedding(4096, 256),
        torch.nn.TransformerEncoder(layer, 2),
        torch.nn.Linear(256, 4096),
    ).cuda()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def training_step(model, optimizer, batch=4):
    ids = torch.randint(0, 4096, (batch, 128), device="cuda")
    logits = model(ids)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def training(folder):
    """Snapshot in the middle of a step: weights, optimizer state, activations, gradients."""
    model, optimizer = model_and_optimizer()
    for _ in range(2):
        training_step(model, optimizer)
    ids = torch.randint(0, 4096, (4, 128), device="cuda")
    logits = model(ids)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())
    write(folder, "training")
    return model, loss


def generation(folder):
    """A KV cache that grows by concatenation, one token after the other."""
    heads, head_dim, layers = 4, 64, 4
    width = heads * head_dim
    weights = [torch.randn(3 * width, width, device="cuda") for _ in range(layers)]
    caches = [None] * layers

    def attend(hidden, layer):
        query, key, value = (hidden @ weights[layer].T).split(width, dim=-1)
        if caches[layer] is not None:
            key = torch.cat((caches[layer][0], key), dim=1)
            value = torch.cat((caches[layer][1], value), dim=1)
        caches[layer] = key, value
        return torch.nn.functional.scaled_dot_product_attention(query, key, value)

    with torch.inference_mode():
        hidden = torch.randn(8, 96, width, device="cuda")
        for _ in range(24):
            for layer in range(layers):
                hidden = attend(hidden, layer)
            hidden = hidden[:, -1:]
        write(folder, "generation")


def streams(folder):
    """Two streams, a tensor that another stream still uses, CUDA graph and user pools."""
    side = torch.cuda.Stream()
    kept = [torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")]
    with torch.cuda.stream(side):
        kept.append(torch.empty(5 * MIB, dtype=torch.uint8, device="cuda"))
    graph = torch.cuda.CUDAGraph()
    still = torch.ones(MIB, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        kept.append((still * 2).relu())
    with contextlib.suppress(Exception):  # PyTorch 2.5 and later
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            kept.append(torch.empty(7 * MIB, dtype=torch.uint8, device="cuda"))
        kept.append(pool)
    lent = torch.empty(6 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(4_000_000_000)
        lent.record_stream(side)
    del lent  # the side stream sleeps for more than a second: awaiting free
    if torch.cuda.device_count() > 1:
        kept.append(torch.empty(9 * MIB, dtype=torch.uint8, device="cuda:1"))
    write(folder, "streams", synchronize=False)
    torch.cuda.synchronize()


def scattered(count):
    """``count`` segments of 20 MiB of which each keeps 8 MiB: 12 MiB free in each."""
    blocks = [torch.empty(8 * MIB, dtype=torch.uint8, device="cuda") for _ in range(2 * count)]
    return blocks[::2]


def ask(size):
    try:
        torch.empty(size, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        return str(error)
    raise SystemExit(f"{size} bytes were expected not to fit")


def oom_full(folder):
    """The GPU is full; hundreds of MiB are free in segments, none of them in one piece."""
    free, _ = torch.cuda.mem_get_info()
    ballast = torch.empty(free - 700 * MIB, dtype=torch.uint8, device="cuda")
    kept = scattered(20)
    rest = []
    with contextlib.suppress(torch.OutOfMemoryError):  # what the driver still has
        while True:
            rest.append(torch.empty(32 * MIB, dtype=torch.uint8, device="cuda"))
    message = ask(100 * MIB)
    write(folder, "oom_full", message=message, asked=100 * MIB, kept=len(kept), rest=len(rest))
    return ballast


def oom_limit(folder):
    """The GPU has room; set_per_process_memory_fraction forbids it."""
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(512 * MIB / total)
    kept = scattered(20)
    message = ask(200 * MIB)
    write(folder, "oom_limit", message=message, asked=200 * MIB, kept=len(kept))


def expandable(folder):
    """Expandable segments: mapped, used, partly unmapped again."""
    model, optimizer = model_and_optimizer()
    training_step(model, optimizer)
    blocks = [torch.empty(30 * MIB, dtype=torch.uint8, device="cuda") for _ in range(6)]
    del blocks[1::2]
    torch.cuda.empty_cache()
    blocks.append(torch.empty(3 * MIB, dtype=torch.uint8, device="cuda"))
    write(folder, "expandable")
    return model


def truncated(folder):
    """The trace keeps its last 300 entries only: the peak lies before them."""
    big = torch.empty(200 * MIB, dtype=torch.uint8, device="cuda")
    del big
    for number in range(200):
        torch.empty((1 + number % 7) * MIB, dtype=torch.uint8, device="cuda")
    write(folder, "truncated")


def without_history(folder):
    """Nothing was recorded: blocks without stacks, no trace."""
    kept = [torch.empty((1 + n) * MIB // 2, dtype=torch.uint8, device="cuda") for n in range(8)]
    del kept[::3]
    write(folder, "without_history")


SCENES = {
    "training": training,
    "generation": generation,
    "streams": streams,
    "oom_full": oom_full,
    "oom_limit": oom_limit,
    "expandable": expandable,
    "truncated": truncated,
    "without_history": without_history,
}
ENTRIES = {"truncated": 300, "without_history": 0}


def write(folder, name, synchronize=True, **more):
    if synchronize:
        torch.cuda.synchronize()
    stats = [torch.cuda.memory_stats(d) for d in range(torch.cuda.device_count())]
    snapshot = torch.cuda.memory._snapshot()
    data = gzip.compress(pickle.dumps(snapshot), 9, mtime=0)
    if len(data) > MAX_GZIP:
        print(f"{name}: {len(data):,} bytes, more than {MAX_GZIP:,}", file=sys.stderr)
    (folder / f"{name}.pickle.gz").write_bytes(data)
    told = {
        "torch": torch.__version__,
        "stats": stats,
        "free_total": torch.cuda.mem_get_info(),
        "trace_entries": [len(trace) for trace in snapshot.get("device_traces", [])],
        **more,
    }
    (folder / f"{name}.json").write_text(json.dumps(told, indent=1, sort_keys=True) + "\n")
    print(name, len(data), "bytes;", told["trace_entries"], "entries", flush=True)


def scene(folder, name):
    torch.cuda.init()
    entries = ENTRIES.get(name, 20_000)
    if entries:
        torch.cuda.memory._record_memory_history(
            enabled="all", context="alloc", stacks="python", max_entries=entries
        )
    SCENES[name](folder)


def reserve_cache(cache, model, batch):
    """All of the KV cache at once, as servers do, before a forward leaves segments to reuse."""
    weight = model.lm_head.weight
    config = model.config
    cache.early_initialization(
        batch, config.num_key_value_heads, config.head_dim, weight.dtype, weight.device
    )
    return cache


def serve(folder, device):
    """Loads a Llama of 0.4 billion parameters in bfloat16, and generates with a static cache."""
    os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

    torch.manual_seed(0)
    small = device == "cpu"
    if not small:  # stacks of what lives, no trace
        torch.cuda.memory._record_memory_history(enabled="state", context="state", stacks="python")
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=256 if small else 1536,
        intermediate_size=4096,
        num_hidden_layers=2 if small else 12,
        num_attention_heads=12 if not small else 2,
        num_key_value_heads=4 if not small else 1,
        head_dim=128,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    path = folder / "serve"
    if not (path / "config.json").exists():
        LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(path)
    model = LlamaForCausalLM.from_pretrained(path, torch_dtype=torch.bfloat16).to(device)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    batch, length, new = (2, 64, 4) if small else (8, 4096, 16)
    cache = reserve_cache(StaticCache(config=model.config, max_cache_len=length), model, batch)
    with torch.inference_mode():
        prompt = torch.randint(3, 32000, (batch, length - new), device=device)
        answer = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=False,
            past_key_values=cache,
            disable_compile=True,
        )
    keys = cache.layers[0].keys
    told = {
        "torch": torch.__version__,
        "parameters": parameters,
        "cache_shape": list(keys.shape),
        "cache_dtype": str(keys.dtype),
        "tokens": list(answer.shape),
    }
    if device != "cpu":
        torch.cuda.synchronize()
        told["stats"] = torch.cuda.memory_stats()
        data = gzip.compress(pickle.dumps(torch.cuda.memory._snapshot()), 9, mtime=0)
        (folder / "serve.pickle.gz").write_bytes(data)
    (folder / "serve.json").write_text(json.dumps(told, indent=1, sort_keys=True) + "\n")
    print("serve", parameters, "parameters", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("scenes", nargs="*", metavar="SCENE")
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    unknown = set(options.scenes) - {*SCENES, "serve"}
    if unknown:
        parser.error(f"no such scene: {', '.join(sorted(unknown))}")
    options.directory.mkdir(parents=True, exist_ok=True)
    if options.scenes == ["serve"]:
        serve(options.directory, "cpu" if options.cpu else "cuda")
    elif len(options.scenes) == 1:
        scene(options.directory, options.scenes[0])
    else:
        failed = 0
        for name in options.scenes or SCENES:
            env = {**os.environ}
            configuration = EXPANDABLE if name == "expandable" else "expandable_segments:False"
            env["PYTORCH_ALLOC_CONF"] = env["PYTORCH_CUDA_ALLOC_CONF"] = configuration
            command = [sys.executable, __file__, str(options.directory), name]
            failed |= subprocess.run(command, env=env, check=False).returncode
        sys.exit(1 if failed else 0)


main()
