"""The whole plan of one request, as a value: what the table and the JSON show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from gpumemprof.errors import UsageError
from gpumemprof.plan import budget as budgets
from gpumemprof.plan import dtypes, loading, parameters, stored
from gpumemprof.plan.architecture import Architecture, Attention
from gpumemprof.plan.budget import Amount, Budget
from gpumemprof.plan.kv_cache import KVCache, kv_cache
from gpumemprof.plan.models import Model
from gpumemprof.plan.quantization import Scheme
from gpumemprof.snapshot import allocator

GIVEN = ("weights", "activations", "outside PyTorch", "CUDA graphs")
"""Lines that may be given as measured."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked. ``memory``: bytes of the GPU as CUDA tells them. None: the model's own, or
    what follows from it. ``given``: measured bytes by the name of their line. ``draft``: a second
    model that proposes tokens; ``draft_layers``: layers of the model's own shape that do."""

    model: Model
    gpu: str
    memory: int
    utilization: float = 0.9
    ranks: int = 1
    dtype: str | None = None
    scheme: Scheme | None = None
    kv_dtype: str = "auto"
    max_model_len: int | None = None
    sequence_length: int | None = None
    sequences: int = 1
    block_size: int = 16
    batched_tokens: int = 8192
    max_sequences: int = 256
    eager: bool = False
    draft: Model | None = None
    draft_layers: int = 0
    given: dict[str, int] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """Of the longest sequence."""
        return self.max_model_len or self.model.architecture.max_positions

    @property
    def typical_length(self) -> int:
        """Of the sequences whose number is asked."""
        return self.sequence_length or self.length


@dataclass(frozen=True, slots=True)
class Plan:
    """``parameters``: of the whole model. ``role_bytes``: the weights of one rank by what they
    are, from the shapes. ``notes``: what the reader should know; ``remedies``: what would make
    room, empty if all fits."""

    request: Request
    parameters: int
    role_bytes: dict[str, int]
    budget: Budget
    fits: bool
    notes: tuple[str, ...]
    remedies: tuple[str, ...]

    @property
    def weights(self) -> Amount:
        """Of one rank."""
        return self.budget.spent["weights"]

    def loaded(self, *, fused: bool) -> allocator.Taken:
        """What PyTorch's allocator takes for the weights of one rank, as an engine loads them
        (``fused``, with RoPE tables) or as plain PyTorch does."""
        return _loaded(self.request, fused=fused)

    def kv_for(self, sequences: int, length: int) -> int:
        """Bytes of the cache for so many sequences."""
        return sequences * self.budget.cache.sequence_bytes(length)


def make(request: Request) -> Plan:
    """The plan. Raises UsageError for a request that contradicts itself or the model."""
    model = request.model.architecture
    budgets.check_inputs(request.memory, request.utilization, request.ranks, request.block_size)
    for name, value in (("--max-model-len", request.length), ("--sequences", request.sequences)):
        if not 1 <= value <= 1 << 40:
            raise UsageError(f"{name} is from 1 to 2^40, not {value}")
    if request.typical_length > request.length:
        raise UsageError(
            f"--sequence-length {request.typical_length:,} is more than --max-model-len "
            f"{request.length:,}"
        )
    parameters.check_parallel(model, request.ranks)
    budget = _budget(request)
    fits = budget.fits(request.length) and budget.fits(request.typical_length, request.sequences)
    return Plan(
        request,
        parameters.parameters(model),
        _weights(model, request).by_role,
        budget,
        fits,
        tuple(_notes(request, budget)),
        () if fits else tuple(_remedies(request, budget)),
    )


def _weights(model: Architecture, request: Request) -> parameters.Weights:
    return parameters.weights(
        model,
        request.ranks,
        dtype=request.dtype,
        scheme=request.scheme,
        draft=request.draft_layers > 0,
    )


def _budget(request: Request) -> Budget:
    model, ranks = request.model.architecture, request.ranks
    dtype = request.dtype or model.dtype
    amounts: dict[str, Callable[[], Amount]] = {
        "weights": lambda: _weight_amount(request),
        "RoPE tables": lambda: budgets.rope_tables(model, dtype),
        "blocks not split": lambda: _unsplit(request),
        "activations": lambda: budgets.activations(
            model, ranks, request.batched_tokens, request.max_sequences
        ),
        "outside PyTorch": lambda: budgets.outside_torch(ranks),
        "CUDA graphs": lambda: budgets.cuda_graphs(request.eager),
    }
    spent = {
        name: budgets.measured(request.given[name]) if name in request.given else amount()
        for name, amount in amounts.items()
    }
    if request.draft is not None:
        draft = request.draft.architecture
        parameters.check_parallel(draft, ranks)
        size = parameters.weights(draft, ranks).total
        spent["draft model"] = Amount(size, f"weights of {request.draft.name}")
    return Budget(request.memory, request.utilization, spent, _cache(request))


def _loaded(request: Request, *, fused: bool) -> allocator.Taken:
    model = request.model.architecture
    scheme = model.quantization if request.scheme is None else request.scheme
    dtype = request.dtype or model.dtype
    return allocator.allocate(loading.sizes(model, request.ranks, dtype, scheme, fused=fused))


def _unsplit(request: Request) -> Amount:
    if "weights" in request.given:
        return Amount(0, "in the weights as measured")
    taken = _loaded(request, fused=True)
    return Amount(
        taken.allocated - taken.requested,
        "rests of at most 1 MiB that PyTorch's allocator leaves in the weights' blocks",
    )


def _cache(request: Request) -> KVCache:
    cache = kv_cache(
        request.model.architecture,
        request.ranks,
        dtype=_kv_dtype(request),
        block_size=request.block_size,
        draft_layers=request.draft_layers,
    )
    if request.draft is None:
        return cache
    draft = kv_cache(
        request.draft.architecture, request.ranks, dtype=request.kv_dtype,
        block_size=request.block_size,
    )  # fmt: skip
    # The draft's layers, counted in layers of the model: rounded up to whole ones.
    layers = -(-draft.token_bytes // cache.layer_bytes)
    return replace(cache, windows=(*cache.windows, *[None] * layers))


def _kv_dtype(request: Request) -> str:
    if request.kv_dtype == "auto" and request.dtype is not None:
        return request.dtype
    return request.kv_dtype


def _weight_amount(request: Request) -> Amount:
    model = request.model.architecture
    computed = _weights(model, request)
    checkpoint = request.model.checkpoint
    if (
        checkpoint is not None
        and checkpoint.tensors
        and request.dtype is None
        and request.scheme is None
    ):
        share = _stored(request)
        return Amount(
            share.total + computed.padding,
            f"headers of {len(checkpoint.files)} safetensors files, on {request.ranks} ranks",
        )
    bits = dtypes.BITS[request.dtype or model.dtype] / 8
    scheme = model.quantization if request.scheme is None else request.scheme
    count = parameters.parameters(model)
    formula = f"{count:,} parameters × {bits:g} bytes"
    if scheme:
        formula = f"{count:,} parameters, of which matrices take {scheme.formula}"
    if request.ranks > 1:
        formula += f"; on {request.ranks} ranks, {computed.replicated:,} bytes on every one"
    return Amount(computed.total, formula)


def _stored(request: Request) -> stored.Share:
    model, checkpoint = request.model.architecture, request.model.checkpoint
    assert checkpoint is not None
    skip = ["lm_head.", "language_model.lm_head."] if model.tied else []
    if not request.draft_layers:
        skip += [f"model.layers.{model.layers + i}." for i in range(model.draft_layers)]
    heads = model.attention.kv_heads if isinstance(model.attention, Attention) else request.ranks
    return stored.share(checkpoint.tensors, request.ranks, heads, skip=skip)


def _notes(request: Request, budget: Budget) -> list[str]:
    model = request.model.architecture
    notes = []
    if request.length > model.max_positions:
        notes.append(
            f"--max-model-len {request.length:,} is more than the {model.max_positions:,} "
            "positions the model was made for"
        )
    cache = budget.cache
    if cache.full_layers < len(cache.windows):
        least = min(window for window in cache.windows if window is not None)
        notes.append(
            f"{len(cache.windows) - cache.full_layers} of {len(cache.windows)} layers keep at most "
            f"{least:,} tokens of a sequence; 'tokens' counts every layer in full"
        )
    if isinstance(model.attention, Attention) and request.ranks > model.attention.kv_heads:
        notes.append(
            f"{request.ranks} ranks share {model.attention.kv_heads} KV heads: each is kept "
            f"{request.ranks // model.attention.kv_heads} times"
        )
    checkpoint = request.model.checkpoint
    if checkpoint is not None and checkpoint.tensors and request.ranks == 1:
        computed, held = _weights(model, request), _stored(request)
        difference = held.total + computed.padding - computed.total
        if difference and request.dtype is None and request.scheme is None:
            notes.append(
                f"the files hold {difference:+,} bytes of what the config's shapes add up to "
                f"({computed.total:,})"
            )
    elif checkpoint is not None and not checkpoint.tensors:
        notes.append(
            f"the index tells of {checkpoint.size:,} bytes in all; its files are not here, "
            "so the weights are from the config's shapes"
        )
    return notes


def _remedies(request: Request, budget: Budget) -> list[str]:
    """What would fit: more of the GPU, more GPUs, shorter or fewer sequences, a smaller cache."""
    length, sequences = request.typical_length, request.sequences
    if not budget.fits(request.length):
        length, sequences = request.length, 1
    what = f"{sequences:,} × {length:,} tokens"
    found = []
    utilization = budget.utilization_for(length, sequences)
    if utilization is not None:
        found.append(f"--gpu-memory-utilization {utilization:.2f}")
    for ranks in budgets.parallel_sizes():
        if ranks <= request.ranks:
            continue
        try:
            parameters.check_parallel(request.model.architecture, ranks)
            wider = _budget(replace(request, ranks=ranks, given=_scaled(request, ranks)))
        except UsageError:
            continue
        if wider.fits(length, sequences):
            found.append(f"--tensor-parallel {ranks}")
            break
    longest = budget.length_for(sequences)
    if longest:
        found.append(f"--max-model-len {longest}" if sequences == 1 else f"{longest:,} tokens each")
    most = max(0, budget.available) // budget.cache.sequence_bytes(length)
    if 0 < most < sequences:
        found.append(f"{most:,} sequences")
    if dtypes.BITS[dtypes.name(_kv_name(request))] > 8:
        narrow = _budget(replace(request, kv_dtype="fp8"))
        if narrow.fits(length, sequences):
            found.append("--kv-cache-dtype fp8")
    if not found:
        found.append("a larger GPU, a smaller model or quantised weights")
    return [f"for {what}: {one}" for one in found]


def _kv_name(request: Request) -> str:
    kv = _kv_dtype(request)
    return request.model.architecture.dtype if kv == "auto" else kv


def _scaled(request: Request, ranks: int) -> dict[str, int]:
    """Measured weights of another number of ranks are not known: the exact ones are taken."""
    return {name: size for name, size in request.given.items() if name != "weights"}
