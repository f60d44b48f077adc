"""Works with CuPy's default pool, then empties it."""

import json
import sys

import cupy


def ready(phase):
    cupy.cuda.Device().synchronize()
    pool = cupy.get_default_memory_pool()
    told = {
        "phase": phase,
        "total": pool.total_bytes(),
        "used": pool.used_bytes(),
        "version": cupy.__version__,
    }
    print("READY " + json.dumps(told), flush=True)
    if not sys.stdin.readline():
        sys.exit(0)


def work():
    arrays = [cupy.arange(n, dtype=cupy.float32) for n in (1 << 20, 3 << 20, 12345)]
    product = cupy.ones((1024, 1024), dtype=cupy.float32) @ cupy.ones((1024, 1024), dtype="f4")
    cupy.sort(arrays[1])
    return [*arrays, product]


def main():
    kept = work()
    ready("worked")
    del kept
    cupy.get_default_memory_pool().free_all_blocks()
    ready("emptied")


main()
