"""Requests and configs for the tests of planning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpumemprof.plan import config, models
from gpumemprof.plan.architecture import Architecture
from gpumemprof.plan.models import Model
from gpumemprof.plan.plan import Plan, Request, make

GIB = 1 << 30
MIB = 1 << 20
MEASURED = ("activations", "outside PyTorch", "CUDA graphs")


def model(name: str, **changes: Any) -> Model:
    """A known model, with fields of its architecture changed."""
    found = models.find(name)
    return replace(found, architecture=replace(found.architecture, **changes))


def plan(name: str | Model, memory: float = 80 * GIB, **request: Any) -> Plan:
    found = models.find(name) if isinstance(name, str) else name
    return make(Request(found, "a GPU", int(memory), **request))


def plan_with_cache_of(name: str | Model, size: float, **request: Any) -> Plan:
    """On a GPU that has just ``size`` bytes left for the cache."""
    given = dict.fromkeys(("weights", *MEASURED), 0)
    first = plan(name, 80 * GIB, given=given, utilization=1.0, **request)
    return plan(name, int(size) + first.budget.fixed, given=given, utilization=1.0, **request)


LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 1024,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}


def llama(**changes: Any) -> Architecture:
    return config.architecture({**LLAMA, **changes})
