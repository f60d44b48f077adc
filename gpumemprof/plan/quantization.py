"""How quantised matrices are stored: packed elements, scales and zero points, by scheme.

A scheme says for a matrix of (outputs, inputs) what it takes beside nothing else; which matrices
it covers is told by their role and by the checkpoint's list of modules left as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpumemprof.errors import UsageError

LINEAR = frozenset({"attention", "mlp", "expert"})
"""Roles that schemes cover unless they say otherwise: embeddings, head, norms, routers and
biases stay as they are."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """``bits``: of an element. ``scale_bytes``: of one scale. ``group``: inputs that share a scale
    (0: all inputs of an output, -1: the whole matrix); ``group_out``: outputs that share it.
    ``zeros``: a zero point of ``bits`` per scale. ``indexed``: a 32-bit group number per input
    (GPTQ's g_idx). ``roles``: what it covers. ``untouched``: parts of module names left out."""

    name: str
    bits: int = 0
    group: int = -1
    group_out: int = 1
    scale_bytes: int = 0
    zeros: bool = False
    indexed: bool = False
    roles: frozenset[str] = LINEAR
    untouched: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.bits > 0

    def covers(self, role: str, module: str) -> bool:
        """Whether the matrix of the module named ``module`` is quantised."""
        return (
            bool(self)
            and role in self.roles
            and not any(_in(part, module) for part in self.untouched)
        )

    def size(self, outputs: int, inputs: int) -> int:
        """Bytes of one matrix with its scales, zero points and indices."""
        total = -(-outputs * inputs * self.bits // 8)
        if self.group == -1:
            return total + self.scale_bytes
        groups = -(-inputs // self.group) if self.group else 1
        scales = groups * -(-outputs // self.group_out)
        total += scales * self.scale_bytes
        if self.zeros:
            total += -(-scales * self.bits // 8)
        if self.indexed:
            total += 4 * inputs
        return total

    @property
    def formula(self) -> str:
        """What an element takes, in words."""
        parts = [f"{self.bits} bits"]
        if self.scale_bytes and self.group > 0:
            shared = f"{self.group}" if self.group_out == 1 else f"{self.group_out} × {self.group}"
            parts.append(f"a scale of {self.scale_bytes} bytes per {shared}")
        elif self.scale_bytes:
            shared = "matrix" if self.group else "output"
            parts.append(f"a scale of {self.scale_bytes} bytes per {shared}")
        if self.zeros:
            parts.append("zero points")
        return " + ".join(parts)


def _in(part: str, module: str) -> bool:
    """A whole name, or a run of the name's parts."""
    return f".{part}." in f".{module}."


NONE = Scheme("none")

SCHEMES: dict[str, Scheme] = {
    scheme.name: scheme
    for scheme in (
        NONE,
        Scheme("fp8", 8, -1, 1, 4),
        Scheme("fp8-block", 8, 128, 128, 4),
        Scheme("int8", 8, 0, 1, 2),
        Scheme("gptq", 4, 128, 1, 2, zeros=True, indexed=True),
        Scheme("awq", 4, 128, 1, 2, zeros=True),
        Scheme("int4", 4, 128, 1, 2),
        Scheme("mxfp4", 4, 32, 1, 1, roles=frozenset({"expert"})),
        Scheme("nvfp4", 4, 16, 1, 1),
        Scheme("nf4", 4, 64, 1, 4),
    )
}
"""By the name that ``--quantization`` takes. Sources: the checkpoints' own tensors (qweight,
qzeros, scales, g_idx; weight_scale_inv of DeepSeek's 128 × 128 blocks), the OCP microscaling
format (32 elements, one 8-bit exponent), bitsandbytes' blocks of 64."""

_MAX_UNTOUCHED = 2_000


def from_config(config: Mapping[str, Any]) -> Scheme:
    """The scheme that a ``quantization_config`` describes.

    Raises UsageError if its method is not known or its numbers make no sense."""
    method = config.get("quant_method")
    if not isinstance(method, str):
        raise UsageError("quantization_config has no quant_method")
    make = _METHODS.get(method)
    if make is None:
        raise UsageError(
            f"the quantization method {method[:40]!r} is not known (known: {', '.join(_METHODS)})"
        )
    return replace(make(config), untouched=_untouched(config))


def with_group(scheme: Scheme, group: int) -> Scheme:
    """``scheme`` with scales shared by ``group`` inputs. Raises UsageError if it has no groups."""
    if scheme.group <= 0:
        raise UsageError(f"{scheme.name} has no groups")
    return replace(scheme, group=group)


def _grouped(name: str) -> Callable[[Mapping[str, Any]], Scheme]:
    def make(config: Mapping[str, Any]) -> Scheme:
        bits, group = config.get("bits", 4), config.get("group_size", 128)
        if bits not in (2, 3, 4, 8) or not isinstance(group, int) or not -1 <= group <= 1 << 20:
            raise UsageError(f"{name} with {bits!r} bits in groups of {group!r} makes no sense")
        return replace(SCHEMES[name], bits=bits, group=max(group, 0))

    return make


def _fp8(config: Mapping[str, Any]) -> Scheme:
    block = config.get("weight_block_size")
    if block is None:
        return SCHEMES["fp8"]
    if (
        not isinstance(block, list)
        or len(block) != 2
        or not all(isinstance(side, int) and 0 < side <= 1 << 20 for side in block)
    ):
        raise UsageError(f"weight_block_size {str(block)[:40]} makes no sense")
    return replace(SCHEMES["fp8-block"], group=block[1], group_out=block[0])


def _bitsandbytes(config: Mapping[str, Any]) -> Scheme:
    return SCHEMES["nf4"] if config.get("load_in_4bit") else SCHEMES["int8"]


def _compressed(config: Mapping[str, Any]) -> Scheme:
    groups = config.get("config_groups")
    if not isinstance(groups, dict) or len(groups) != 1:
        raise UsageError("compressed-tensors with other than one group of modules is not known")
    weights = next(iter(groups.values()))
    weights = weights.get("weights") if isinstance(weights, dict) else None
    if not isinstance(weights, dict):
        raise UsageError("compressed-tensors: the group does not say how weights are stored")
    bits, kind = weights.get("num_bits"), weights.get("type")
    strategy, size = weights.get("strategy"), weights.get("group_size")
    if bits not in (4, 8) or kind not in ("int", "float"):
        raise UsageError(f"compressed-tensors with {bits!r} bits of {kind!r} is not known")
    if isinstance(size, int) and 0 < size <= 1 << 20:
        group = size
    else:
        group = -1 if strategy == "tensor" else 0
    return Scheme(
        "compressed-tensors", bits, group, 1, 1 if bits == 4 and kind == "float" else 2,
        zeros=weights.get("symmetric") is False,
    )  # fmt: skip


def _modelopt(config: Mapping[str, Any]) -> Scheme:
    algorithm = config.get("quant_algo")
    if algorithm not in ("FP8", "NVFP4"):
        raise UsageError(f"modelopt's algorithm {str(algorithm)[:40]!r} is not known")
    return SCHEMES[str(algorithm).lower()]


_METHODS: dict[str, Callable[[Mapping[str, Any]], Scheme]] = {
    "fp8": _fp8,
    "fbgemm_fp8": lambda config: Scheme("fp8", 8, 0, 1, 4),
    "gptq": _grouped("gptq"),
    "awq": _grouped("awq"),
    "mxfp4": lambda config: SCHEMES["mxfp4"],
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed,
    "modelopt": _modelopt,
}


def _untouched(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Parts of module names, from the three keys in use; patterns are cut to their plain text."""
    names: list[str] = []
    for key in ("modules_to_not_convert", "ignore", "ignored_layers"):
        listed = config.get(key)
        if isinstance(listed, list):
            names += [text for text in listed[:_MAX_UNTOUCHED] if isinstance(text, str)]
    plain = {_plain(text) for text in names}
    return tuple(sorted(text for text in plain if text))


def _plain(pattern: str) -> str:
    """``re:.*self_attn.*`` and ``model.layers.*.self_attn`` → ``self_attn``; an expression that is
    more than that matches nothing."""
    text = pattern.removeprefix("re:").removesuffix("$").removeprefix("^").replace("\\.", ".")
    text = text.strip(".*").rpartition("*")[2].strip(".")
    return text if all(char.isalnum() or char in "._-" for char in text) else ""
