"""A plan as rows: what, how many bytes, how it came about. The table and the JSON show the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpumemprof.plan.plan import Plan

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Line:
    """``value``: bytes, or a plain number where ``unit`` is something else. ``low`` and ``high``:
    the range of an estimate."""

    name: str
    value: float
    unit: str
    formula: str
    low: float | None = None
    high: float | None = None


def lines(plan: Plan) -> list[Line]:
    """Every line of the answer, from the GPU to the sequences it serves; bytes of one rank."""
    request, budget, cache = plan.request, plan.budget, plan.budget.cache
    length = request.typical_length
    rows = [
        Line("GPU", budget.total, "bytes", request.gpu),
        Line(
            "usable", budget.usable, "bytes",
            f"GPU × {budget.utilization:g} (--gpu-memory-utilization)",
        ),
    ]  # fmt: skip
    for name, amount in budget.spent.items():
        rows.append(
            Line(f"− {name}", amount.bytes, "bytes", amount.formula, amount.low, amount.high)
        )
    low, high = budget.available_range
    ranged = low != high
    rows += [
        Line(
            "= KV cache", budget.available, "bytes", "usable − all of the above",
            low if ranged else None, high if ranged else None,
        ),
        Line(
            "KV bytes per token", cache.token_bytes, "bytes",
            f"{len(cache.windows)} layers × {cache.formula}",
        ),
        Line(
            "KV blocks", budget.blocks, "blocks",
            f"KV cache / ({cache.block_size} tokens × {cache.token_bytes:,} bytes), rounded down",
            cache.blocks(low) if ranged else None, cache.blocks(high) if ranged else None,
        ),
        Line(
            "KV tokens", budget.tokens, "tokens", f"blocks × {cache.block_size}",
            cache.blocks(low) * cache.block_size if ranged else None,
            cache.blocks(high) * cache.block_size if ranged else None,
        ),
        Line(
            f"KV of a sequence of {length:,}", cache.sequence_bytes(length), "bytes",
            _sequence_formula(plan),
        ),
        Line(
            "sequences at once", budget.concurrency(length), "sequences",
            f"KV blocks × {cache.block_bytes:,} bytes / KV of a sequence",
        ),
    ]  # fmt: skip
    utilization = budget.utilization_for(length, request.sequences)
    if utilization is not None:
        rows.append(
            Line(
                "least utilisation", utilization, "of the GPU",
                f"(all of the above + {request.sequences:,} × KV of a sequence) / GPU, rounded up",
            )
        )  # fmt: skip
    longest = budget.length_for(request.sequences)
    if longest is not None:
        most = max(request.model.architecture.max_positions, request.length)
        formula = f"whose {request.sequences:,} × KV fits in the KV cache"
        if longest > most:
            formula = f"the model's maximum; the KV cache has room for {longest:,}"
        rows.append(Line("longest sequence", min(longest, most), "tokens", formula))
    return rows


def _sequence_formula(plan: Plan) -> str:
    cache, length = plan.budget.cache, plan.request.typical_length
    sliding = [window for window in cache.windows if window is not None]
    parts = [f"{cache.full_layers} layers × {length:,}"] if cache.full_layers else []
    for window in sorted(set(sliding)):
        parts.append(f"{sliding.count(window)} layers × min({length:,}, {window:,})")
    return f"({' + '.join(parts)}), in whole blocks, × {cache.layer_bytes:,} bytes"


def as_json(plan: Plan) -> dict[str, Any]:
    """The same for scripts. Sizes are bytes."""
    request = plan.request
    return {
        "model": request.model.name,
        "source": request.model.source,
        "family": request.model.architecture.family,
        "parameters": plan.parameters,
        "tensor_parallel": request.ranks,
        "fits": plan.fits,
        "weights_by_role": plan.role_bytes,
        "lines": [
            {
                "name": line.name.lstrip("−= "),
                "value": round(line.value, 4) if isinstance(line.value, float) else line.value,
                "unit": line.unit,
                **({"gib": round(line.value / GIB, 4)} if line.unit == "bytes" else {}),
                "formula": line.formula,
                "estimate": line.low is not None,
                **({} if line.low is None else {"low": line.low, "high": line.high}),
            }
            for line in lines(plan)
        ],
        "notes": list(plan.notes),
        "remedies": list(plan.remedies),
    }
