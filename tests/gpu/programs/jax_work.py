"""Trains a small network in JAX; tells what its allocator says."""

import json
import sys

import jax
import jax.numpy as jnp


def ready(phase):
    device = jax.devices()[0]
    stats = {k: int(v) for k, v in (device.memory_stats() or {}).items()}
    told = {"phase": phase, "version": jax.__version__, "platform": device.platform, "stats": stats}
    print("READY " + json.dumps(told), flush=True)
    if not sys.stdin.readline():
        sys.exit(0)


def loss(weights, x):
    for w in weights:
        x = jnp.tanh(x @ w)
    return (x**2).mean()


@jax.jit
def step(weights, x):
    gradients = jax.grad(loss)(weights, x)
    return [w - 0.01 * g for w, g in zip(weights, gradients, strict=True)]


def main():
    keys = jax.random.split(jax.random.PRNGKey(0), 5)
    weights = [jax.random.normal(k, (2048, 2048)) for k in keys[:4]]
    x = jax.random.normal(keys[4], (512, 2048))
    for _ in range(3):
        weights = step(weights, x)
    jax.block_until_ready(weights)
    ready("trained")
    more = jax.block_until_ready(jnp.zeros((256, 1 << 20), dtype=jnp.float32))
    ready("more")
    del weights, x, more


main()
