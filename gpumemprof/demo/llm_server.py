"""A small LLM server that holds GPU memory the way real ones do, in plain Python.

It loads weights layer by layer through pinned staging buffers, reserves a KV cache, answers
requests whose activations come and go, asks once for more than there is, and leaks: its prefix
cache keeps an entry for every request (``--fixed`` repairs that). It computes nothing.

Nothing of it knows of a profiler; ``--json`` prints its own bookkeeping, to compare with.
Needs only libcudart, by default found as the dynamic linker finds libraries:

    LD_LIBRARY_PATH=/usr/local/cuda/lib64 python3 -m gpumemprof.demo.llm_server
"""

from __future__ import annotations

import argparse
import json
import queue
import sys
import threading
import time

from gpumemprof.demo.cuda_runtime import (
    CUDA_OUT_OF_MEMORY,
    Bookkeeping,
    Cuda,
    CudaError,
    find_runtime,
)

MIB = 1 << 20
BYTES_PER_VALUE = 2  # bfloat16
HIDDEN, FEED_FORWARD, KV_WIDTH, VOCABULARY = 2048, 8192, 512, 32000
LAYERS = 16
KV_BLOCKS, BLOCK_TOKENS = 1024, 16
PREFIX_TOKENS = 512
STAGING_BYTES = 16 * MIB
HOST_TO_DEVICE = 1  # cudaMemcpyHostToDevice


def bytes_of(*shape: int) -> int:
    """Bytes of an array of bfloat16."""
    size = BYTES_PER_VALUE
    for dimension in shape:
        size *= dimension
    return size


class WeightLoader:
    """Copies a checkpoint to the GPU through a pinned staging buffer."""

    def __init__(self, cuda: Cuda) -> None:
        self.cuda = cuda
        self.staging = cuda.malloc_host(STAGING_BYTES)

    def copy(self, address: int, size: int) -> None:
        """Fills ``size`` bytes at ``address``, a staging buffer at a time."""
        for offset in range(0, size, STAGING_BYTES):
            part = min(STAGING_BYTES, size - offset)
            self.cuda.memcpy(address + offset, self.staging, part, HOST_TO_DEVICE)

    def close(self) -> None:
        """Frees the staging buffer."""
        self.cuda.free_host(self.staging)


class Linear:
    """A weight matrix."""

    def __init__(self, loader: WeightLoader, inputs: int, outputs: int) -> None:
        size = bytes_of(inputs, outputs)
        self.weight = loader.cuda.malloc(size)
        loader.copy(self.weight, size)


class Attention:
    """Projections of one layer, and its part of the KV cache."""

    def __init__(self, loader: WeightLoader) -> None:
        self.query = Linear(loader, HIDDEN, HIDDEN)
        self.key = Linear(loader, HIDDEN, KV_WIDTH)
        self.value = Linear(loader, HIDDEN, KV_WIDTH)
        self.output = Linear(loader, HIDDEN, HIDDEN)

    def forward(self, cuda: Cuda, tokens: int) -> list[int]:
        """Returns the activations, which the caller frees."""
        projected = cuda.malloc(bytes_of(tokens, HIDDEN + 2 * KV_WIDTH))
        return [projected, cuda.malloc(bytes_of(tokens, HIDDEN))]


class MLP:
    """Gated feed-forward block."""

    def __init__(self, loader: WeightLoader) -> None:
        self.gate = Linear(loader, HIDDEN, FEED_FORWARD)
        self.up = Linear(loader, HIDDEN, FEED_FORWARD)
        self.down = Linear(loader, FEED_FORWARD, HIDDEN)

    def forward(self, cuda: Cuda, tokens: int) -> list[int]:
        """Returns the activations, which the caller frees."""
        gated = cuda.malloc(bytes_of(tokens, 2 * FEED_FORWARD))
        return [gated, cuda.malloc(bytes_of(tokens, HIDDEN))]


class DecoderLayer:
    """Attention and MLP, on one device."""

    def __init__(self, loader: WeightLoader, device: int) -> None:
        self.device = device
        loader.cuda.set_device(device)
        self.attention = Attention(loader)
        self.mlp = MLP(loader)

    def forward(self, cuda: Cuda, tokens: int) -> None:
        """One layer's work: its activations live only as long as it runs."""
        cuda.set_device(self.device)
        activations = self.attention.forward(cuda, tokens)
        activations += self.mlp.forward(cuda, tokens)
        for address in reversed(activations):
            cuda.free(address)


class KVCacheManager:
    """Paged KV cache, reserved whole at start."""

    def __init__(self, cuda: Cuda, layers: list[DecoderLayer], blocks: int) -> None:
        self.blocks: list[int] = []
        for layer in layers:
            cuda.set_device(layer.device)
            self.reserve_blocks(cuda, blocks)

    def reserve_blocks(self, cuda: Cuda, blocks: int) -> None:
        """Keys and values of one layer."""
        size = bytes_of(blocks, BLOCK_TOKENS, KV_WIDTH)
        self.blocks += [cuda.malloc(size), cuda.malloc(size)]


class PrefixCache:
    """Hidden states of prompts seen before, to skip their prefill."""

    def __init__(self, fixed: bool) -> None:
        self.fixed = fixed
        self.entries: dict[int, int] = {}

    def insert(self, cuda: Cuda, request: int) -> None:
        """Keeps the prefix of a request.

        The key should be the prompt's prefix; it is the number of the request, so that no entry
        is ever found again and none is ever replaced.
        """
        key = 0 if self.fixed else request
        if key not in self.entries:
            self.entries[key] = cuda.malloc(bytes_of(PREFIX_TOKENS, HIDDEN))


class Sampler:
    """Picks tokens from logits."""

    def __init__(self, cuda: Cuda, max_batch: int) -> None:
        self.logits = self.allocate_logits(cuda, max_batch)

    def allocate_logits(self, cuda: Cuda, batch: int) -> int:
        """Room for ``batch`` sequences, halved for as long as there is too little memory."""
        while True:
            try:
                return cuda.malloc(bytes_of(batch, VOCABULARY))
            except CudaError as error:
                if error.code != CUDA_OUT_OF_MEMORY or batch == 1:
                    raise
                print(f"no memory for logits of {batch} sequences", file=sys.stderr)
                batch = min(batch // 2, 64)


class LLMServer:
    """The server: one process, one model."""

    def __init__(self, cuda: Cuda, options: argparse.Namespace) -> None:
        self.cuda = cuda
        self.layer_count = max(1, round(LAYERS * options.scale))
        self.devices = options.devices
        self.load_weights()
        cuda.set_device(0)
        available, total = cuda.memory_info()
        print(f"{available / MIB:.0f} of {total / MIB:.0f} MiB free", file=sys.stderr)
        blocks = max(1, round(KV_BLOCKS * options.scale))
        self.kv_cache = KVCacheManager(cuda, self.layers, blocks)
        cuda.set_device(0)
        # 16 Mi sequences: 1 TB, more than any GPU has
        self.sampler = Sampler(cuda, max_batch=1 << 24)
        self.prefix_cache = PrefixCache(options.fixed)
        self.token_buffer = cuda.malloc_host(MIB)

    def load_weights(self) -> None:
        """Reads the checkpoint into GPU memory, layer by layer."""
        loader = WeightLoader(self.cuda)
        self.embedding = Linear(loader, VOCABULARY, HIDDEN)
        self.layers = [
            DecoderLayer(loader, number * self.devices // self.layer_count)
            for number in range(self.layer_count)
        ]
        self.lm_head = Linear(loader, HIDDEN, VOCABULARY)
        loader.close()

    def handle_request(self, request: int) -> None:
        """Prefill and decoding of one prompt."""
        tokens = 128 + request % 4 * 64
        for layer in self.layers:
            layer.forward(self.cuda, tokens)
        self.cuda.set_device(0)
        self.prefix_cache.insert(self.cuda, request)

    def serve(self, requests: int, interval: float) -> None:
        """Answers ``requests`` requests one after the other, every second one on a worker."""
        inbox: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        done: queue.SimpleQueue[int] = queue.SimpleQueue()
        worker = threading.Thread(target=self.worker_loop, args=(inbox, done), name="worker")
        worker.start()
        for request in range(requests):
            if request % 2:
                inbox.put(request)
                done.get()
            else:
                self.handle_request(request)
            time.sleep(interval)
        inbox.put(None)
        worker.join()

    def worker_loop(
        self, inbox: queue.SimpleQueue[int | None], done: queue.SimpleQueue[int]
    ) -> None:
        """Answers what comes in until None does."""
        while (request := inbox.get()) is not None:
            self.handle_request(request)
            done.put(request)


def main(arguments: list[str] | None = None) -> None:
    """Starts the server, answers the requests, and tells what is held at the end."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--scale", type=float, default=1.0, help="size of model and cache")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--interval", type=float, default=0.05, help="seconds between requests")
    parser.add_argument("--devices", type=int, default=1, help="GPUs to spread the layers over")
    parser.add_argument("--hold", type=float, default=0.0, help="seconds to stay up at the end")
    parser.add_argument("--fixed", action="store_true", help="without the leak")
    parser.add_argument("--runtime", help="path or name of libcudart")
    parser.add_argument("--json", action="store_true", help="print the bookkeeping as JSON")
    options = parser.parse_args(arguments)
    books = Bookkeeping()
    cuda = Cuda(options.runtime or find_runtime(), books)
    server = LLMServer(cuda, options)
    print(f"{server.layer_count} layers loaded, {books.gpu_bytes() / MIB:.0f} MiB", file=sys.stderr)
    server.serve(options.requests, options.interval)
    cuda.synchronize()
    print(
        f"{options.requests} requests answered, {books.gpu_bytes() / MIB:.0f} MiB held, "
        f"{len(server.prefix_cache.entries)} prefixes cached",
        file=sys.stderr,
    )
    if options.json:
        print(json.dumps(books.summary()), flush=True)
    time.sleep(options.hold)


if __name__ == "__main__":
    try:
        main()
    except CudaError as error:
        sys.exit(str(error))
