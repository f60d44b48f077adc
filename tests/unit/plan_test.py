"""Planning: what ranks share, what the cache takes, what fits, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gpumemprof.cli.plan import plan as command
from gpumemprof.errors import UsageError
from gpumemprof.plan import config, models, quantization
from gpumemprof.plan.kv_cache import kv_cache
from gpumemprof.plan.parameters import check_parallel, parameters, weights
from gpumemprof.plan.tensor import Split
from gpumemprof.plan.tensors import tensors
from gpumemprof.snapshot.allocator import allocate, segment_size
from tests.unit.plan_examples import GIB, LLAMA, MIB, llama, plan

EVERY = sorted(models.presets())


def possible(name: str) -> list[int]:
    """Ranks that can share a model."""
    found = []
    for ranks in (1, 2, 4, 8, 16):
        try:
            check_parallel(models.find(name).architecture, ranks)
        except UsageError:
            continue
        found.append(ranks)
    return found


def test_every_known_model_can_be_shared_by_two() -> None:
    assert all(possible(name)[:2] == [1, 2] for name in EVERY)


@pytest.mark.parametrize(("name", "ranks"), [(n, r) for n in EVERY for r in possible(n)])
def test_the_shards_of_all_ranks_add_up_to_the_whole(name: str, ranks: int) -> None:
    model = models.find(name).architecture
    for tensor in tensors(model):
        whole, shard = _elements(tensor.shape), _elements(tensor.sharded(ranks, model.attention))
        if tensor.split is Split.WHOLE:
            assert shard == whole
        elif tensor.split is Split.VOCAB:
            assert 0 <= shard * ranks - whole < 64 * tensor.shape[1]
        elif tensor.split is Split.KV_HEADS:
            assert shard * ranks >= whole
            assert shard * min(ranks, model.attention.kv_heads) == whole  # type: ignore[union-attr]
        else:
            assert shard * ranks == whole


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for side in shape:
        count *= side
    return count


@pytest.mark.parametrize("name", EVERY)
def test_bytes_on_one_rank_are_the_parameters_and_the_padding(name: str) -> None:
    model = models.find(name).architecture
    found = weights(model, dtype="bfloat16", scheme=quantization.NONE)
    assert found.total == 2 * parameters(model) + found.padding
    assert found.padding < 2 * 2 * 64 * model.hidden


@given(st.integers(1, 100_000), st.integers(1, 100_000), st.sampled_from(EVERY))
def test_a_longer_sequence_never_takes_less(a: int, b: int, name: str) -> None:
    cache = kv_cache(models.find(name).architecture)
    short, long = sorted((a, b))
    assert cache.sequence_bytes(short) <= cache.sequence_bytes(long)
    assert cache.sequence_bytes(long) <= -(-long // 16) * cache.block_bytes


@given(st.integers(0, 1 << 42), st.sampled_from(EVERY), st.integers(1, 64))
def test_the_longest_length_fits_and_one_more_block_does_not(
    available: int, name: str, sequences: int
) -> None:
    cache = kv_cache(models.find(name).architecture)
    longest = cache.longest(available, sequences)
    if longest is None:
        assert cache.full_layers == 0
        return
    assert sequences * cache.sequence_bytes(longest) <= available
    assert sequences * cache.sequence_bytes(longest + 16) > available


def test_more_ranks_than_kv_heads_keep_each_head_several_times() -> None:
    model = llama(num_attention_heads=8, num_key_value_heads=2)
    sizes = [kv_cache(model, ranks).token_bytes for ranks in (1, 2, 4, 8)]
    assert sizes == [sizes[0], sizes[0] // 2, sizes[0] // 2, sizes[0] // 2]


def test_latent_attention_is_cached_on_every_rank_alike() -> None:
    model = models.find("DeepSeek-V3").architecture
    assert kv_cache(model, 1).token_bytes == kv_cache(model, 8).token_bytes == 61 * 576 * 2


def test_sliding_layers_keep_their_window_only() -> None:
    cache = kv_cache(models.find("gpt-oss-20b").architecture)
    assert cache.full_layers == 12
    assert cache.kept(100_000) == 12 * 100_000 + 12 * 128
    assert cache.kept(64) == 24 * 64


def test_draft_layers_and_draft_models_add_to_the_cache() -> None:
    plain = plan("Llama-3.1-8B")
    mtp = plan("DeepSeek-V3", 8000 * GIB, draft_layers=1)
    assert mtp.budget.cache.token_bytes == 62 * 576 * 2
    assert mtp.weights.bytes > plan("DeepSeek-V3", 8000 * GIB).weights.bytes
    draft = plan("Llama-3.1-8B", draft=models.find("Llama-3.2-1B"))
    assert draft.budget.cache.token_bytes == (32 + 8) * 4096  # 16 layers of half the size
    assert draft.budget.spent["draft model"].bytes == 2 * 1_235_814_400
    assert plain.budget.available > draft.budget.available


@pytest.mark.parametrize(
    ("scheme", "size"),
    [
        ("fp8", 1024 * 4096 + 4),
        ("fp8-block", 1024 * 4096 + 4 * 8 * 32),
        ("int8", 1024 * 4096 + 2 * 1024),
        ("gptq", 1024 * 4096 // 2 + 2 * 1024 * 32 + 1024 * 32 // 2 + 4 * 4096),
        ("awq", 1024 * 4096 // 2 + 2 * 1024 * 32 + 1024 * 32 // 2),
        ("mxfp4", 1024 * 4096 // 2 + 1024 * 128),
        ("nvfp4", 1024 * 4096 // 2 + 1024 * 256),
    ],
)
def test_a_quantised_matrix_has_its_scales_with_it(scheme: str, size: int) -> None:
    assert quantization.SCHEMES[scheme].size(1024, 4096) == size


def test_embeddings_head_and_norms_stay_as_they_are() -> None:
    model = models.find("Llama-3.1-8B").architecture
    plain, packed = weights(model), weights(model, scheme=quantization.SCHEMES["awq"])
    for role in ("embedding", "head", "norm"):
        assert packed.by_role[role] == plain.by_role[role]
    assert packed.by_role["mlp"] < plain.by_role["mlp"] * 0.27
    assert packed.total / GIB == pytest.approx(5.33, rel=0.01)


def test_modules_that_a_checkpoint_left_alone_are_not_quantised() -> None:
    def attention(*untouched: str) -> int:
        model = llama(
            quantization_config={"quant_method": "fp8", "modules_to_not_convert": [*untouched]}
        )
        return weights(model).by_role["attention"]

    none, every = attention(), attention("self_attn")
    assert none < every == weights(llama()).by_role["attention"]
    assert attention("model.layers.0.self_attn") == (none + every) // 2
    assert attention("re:.*self_attn.*") == attention("model.layers.*.self_attn") == every
    assert attention("re:(a+)+$", "model.layers.77.self_attn", "attn") == none


def test_what_fits_and_what_would() -> None:
    small = plan("Llama-3.1-8B", 24 * GIB)
    assert not small.fits
    said = " / ".join(small.remedies)
    assert "--tensor-parallel 2" in said
    assert "--max-model-len" in said
    longest = small.budget.length_for(1)
    assert longest is not None
    assert plan("Llama-3.1-8B", 24 * GIB, max_model_len=longest).fits
    assert not plan("Llama-3.1-8B", 24 * GIB, max_model_len=longest + 16).fits


def test_the_least_utilisation_is_enough_and_a_hundredth_less_is_not() -> None:
    made = plan("Qwen3-4B", 40 * GIB)
    least = made.budget.utilization_for(made.request.length)
    assert least is not None
    assert plan("Qwen3-4B", 40 * GIB, utilization=least).fits
    assert not plan("Qwen3-4B", 40 * GIB, utilization=least - 0.01).fits


def test_estimates_say_so_and_can_be_given_as_measured() -> None:
    guessed = plan("Llama-3.1-8B")
    estimated = {name for name, amount in guessed.budget.spent.items() if amount.estimated}
    assert estimated == {"activations", "outside PyTorch", "CUDA graphs"}
    low, high = guessed.budget.available_range
    assert low < guessed.budget.available < high
    known = plan("Llama-3.1-8B", given=dict.fromkeys(estimated, 1 << 30))
    assert known.budget.available_range == (known.budget.available,) * 2


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model_type": "mamba"}, "the model type 'mamba' is not known"),
        ({"model_type": None}, "no model_type"),
        ({"model_type": ["llama"]}, "no model_type"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": 0}, "hidden_size is from 1"),
        ({"hidden_size": -5}, "hidden_size is from 1"),
        ({"hidden_size": "256"}, "hidden_size is a whole number"),
        ({"hidden_size": True}, "hidden_size is a whole number"),
        ({"hidden_size": 1e3}, "hidden_size is a whole number"),
        ({"hidden_size": 10**5000}, "hidden_size is from 1"),
        ({"hidden_size": 250}, "no multiple of num_attention_heads"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is from 1 to 1,000"),
        ({"num_key_value_heads": 3}, "no multiple of num_key_value_heads"),
        ({"num_key_value_heads": 16}, "no multiple of num_key_value_heads"),
        ({"tie_word_embeddings": "yes"}, "true or false"),
        ({"torch_dtype": "int3"}, "number format 'int3' is not known"),
        ({"torch_dtype": "int8"}, "need a quantization_config"),
        ({"torch_dtype": 7}, "torch_dtype is a name"),
        ({"layer_types": ["full_attention"]}, "one type for each of 2 layers"),
        ({"layer_types": ["sliding_attention"] * 2}, "sliding_window is missing"),
        ({"layer_types": ["linear_attention"] * 2}, "'linear_attention' are not known"),
        ({"rope_scaling": {"type": "yarn", "factor": "4"}}, "RoPE factor"),
        ({"rope_scaling": {"type": "yarn", "factor": 1e300}}, "RoPE factor"),
        ({"partial_rotary_factor": 7}, "partial_rotary_factor"),
        ({"quantization_config": []}, "quantization_config is an object"),
        ({"quantization_config": {}}, "no quant_method"),
        ({"quantization_config": {"quant_method": "x"}}, "method 'x' is not known"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 5}}, "makes no sense"),
        ({"quantization_config": {"quant_method": "awq", "group_size": "g"}}, "makes no sense"),
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [0, 1]}}, "sense"),
        ({"model_type": "mixtral"}, "num_local_experts is missing"),
        (
            {"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 3},
            "is more than num_local_experts",
        ),
        ({"model_type": "gemma3"}, "needs a text_config"),
        ({"model_type": "deepseek_v3"}, "kv_lora_rank is missing"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused_with_the_reason(
    changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        llama(**changes)


@given(
    st.dictionaries(
        st.sampled_from([*LLAMA, "head_dim", "sliding_window", "rope_scaling", "layer_types",
                         "quantization_config", "attention_bias", "num_local_experts"]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
        | st.lists(st.integers(), max_size=3) | st.dictionaries(st.text(max_size=5), st.integers()),
    ),
    st.sampled_from(sorted(config.FAMILIES)),
)  # fmt: skip
def test_any_config_is_planned_or_refused(changes: dict[str, Any], kind: str) -> None:
    try:
        model = config.architecture({**LLAMA, "model_type": kind, **changes})
    except UsageError:
        return
    assert weights(model).total > 0
    assert kv_cache(model).token_bytes > 0


@pytest.mark.parametrize(
    ("ranks", "why"),
    [(3, "8 attention heads .possible: 1, 2, 4, 8."), (16, "8 attention heads"), (5, "possible")],
)
def test_ranks_that_do_not_divide_are_refused_with_those_that_do(ranks: int, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        check_parallel(llama(), ranks)


def test_the_allocators_rounding() -> None:
    assert [segment_size(size) for size in (512, MIB, MIB + 512, 10 * MIB, 21 * MIB)] == [
        2 * MIB, 2 * MIB, 20 * MIB, 10 * MIB, 22 * MIB,
    ]  # fmt: skip
    taken = allocate([8 * MIB, 8 * MIB, 3 * MIB + 100])
    assert taken.requested == 19 * MIB + 100
    assert taken.allocated == 20 * MIB  # the rest of the segment is less than 1 MiB
    assert taken.reserved == 20 * MIB


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(command, list(arguments))
    if isinstance(result.exception, UsageError):
        return 2, str(result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    code = result.return_value if isinstance(result.return_value, int) else result.exit_code
    return code, result.output


def test_the_command_shows_formulas_and_units() -> None:
    _, text = run("Llama-3-8B", "--gpu", "h100", "--activations", "1.26GiB")
    assert "79.220 GiB" in text
    assert "16,060,522,496 bytes" in text
    assert "8,030,261,248 parameters × 2 bytes" in text
    assert "2 × max(1, 8 KV heads / 1) × 128 × 2 bytes" in text
    assert "estimate, 0.12 to 1.80 GiB" in text
    assert " GB" not in text


def test_no_line_ends_with_blanks() -> None:
    _, text = run("Llama-3-8B", "--gpu", "h100")
    assert [line for line in text.splitlines() if line != line.rstrip()] == []


def test_no_sequence_is_longer_than_the_model_takes() -> None:
    _, text = run("Llama-3-8B", "--gpu", "h100", "--format", "json")
    (longest,) = (row for row in json.loads(text)["lines"] if row["name"] == "longest sequence")
    assert longest["value"] == 8192
    assert longest["formula"].startswith("the model's maximum; the KV cache has room for ")


def test_options_have_the_names_that_engines_give_them() -> None:
    ours = run("Llama-3-8B", "--gpu", "h100", "--tensor-parallel", "2", "--json")
    assert run("Llama-3-8B", "--gpu", "h100", "--tensor-parallel-size", "2", "--json") == ours
    assert json.loads(ours[1])["tensor_parallel"] == 2


def test_json_has_every_line_with_exact_bytes() -> None:
    _, text = run("Qwen3-4B", "--gpu-memory", "24112MiB", "--json")
    told = json.loads(text)
    assert told["parameters"] == 4_022_468_096
    values = {line["name"]: line["value"] for line in told["lines"]}
    assert values["weights"] == 2 * 4_022_468_096
    assert values["KV bytes per token"] == 147_456


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["Llama-3-8B"], "--gpu NAME"),
        (["Llama-3-8B", "--gpu", "H100", "--gpu-memory", "1GiB"], "one of"),
        (["Llama-3-8B", "--gpu", "Voodoo"], "'Voodoo' is not known"),
        (["llama3-8b", "--gpu", "H100"], "did you mean Llama-3-8B"),
        (["Llama-3-8B", "--gpu", "H100", "--gpu-memory-utilization", "nan"], "above 0"),
        (["Llama-3-8B", "--gpu", "H100", "--gpu-memory-utilization", "1.5"], "above 0"),
        (["Llama-3-8B", "--gpu", "H100", "--tensor-parallel", "3"], "does not divide"),
        (["Llama-3-8B", "--gpu-memory", "1"], "does not exist"),
        (["Llama-3-8B", "--gpu", "H100", "--group-size", "64"], "goes with --quantization"),
        (["Llama-3-8B", "--gpu", "H100", "--sequence-length", "9000"], "more than --max-model"),
        (["/dev/null/x\0", "--gpu", "H100"], "no known model"),
    ],
)
def test_a_wrong_request_is_one_sentence(arguments: list[str], why: str) -> None:
    code, text = run(*arguments)
    assert code == 2
    assert why in text
    assert "\n" not in text


def test_a_config_from_a_directory(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    _, text = run(str(tmp_path), "--gpu-memory", "8GiB", "--json")
    assert json.loads(text)["parameters"] == parameters(llama())


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[" * 100_000, b"\xff\xfe", b"5", b'{"a": 1' + b"0" * 9000 + b"}"]
)
def test_a_config_that_is_not_json_is_one_sentence(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "config.json").write_bytes(data)
    with pytest.raises(UsageError, match=r"config\.json"):
        config.load(tmp_path / "config.json")
