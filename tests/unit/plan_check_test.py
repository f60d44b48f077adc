"""The plan beside a recorded profile: what each stack's memory is for, and how far off it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpumemprof.cli.plan import plan as command
from gpumemprof.errors import UsageError
from gpumemprof.plan.check import GRAPHS, KV, OPTIMIZER, OUTSIDE, REST, WEIGHTS, category, check
from gpumemprof.profile import pprof
from gpumemprof.profile.model import Profile, Sample, Values
from gpumemprof.stack.frames import Frame, FrameKind, Stack
from tests.unit.plan_examples import GIB, MIB, plan

SITE = "/usr/lib/python3/dist-packages/"


def python(*frames: str) -> Stack:
    """``file:function``, innermost first, under the driver's call."""
    made = [Frame("cudaMalloc", module="/usr/lib/libcudart.so.12")]
    for text in frames:
        file, _, name = text.partition(":")
        made.append(Frame(name, FrameKind.PYTHON, SITE + file, 1))
    return tuple(made)


FORWARD = "torch/nn/modules/module.py:Module._call_impl"
RUNNER = "vllm/v1/worker/gpu_model_runner.py:GPUModelRunner."
STACKS: dict[str, tuple[Stack, str, str]] = {
    "vLLM loads a model": (
        python("torch/nn/modules/linear.py:Linear.__init__", RUNNER + "load_model"),
        WEIGHTS, "PyTorch",
    ),
    "vLLM makes quantised weights": (
        python("vllm/model_executor/layers/quantization/fp8.py:Fp8LinearMethod.create_weights"),
        WEIGHTS, "vLLM",
    ),
    "vLLM's cache": (python(RUNNER + "_allocate_kv_cache_tensors"), KV, "vLLM"),
    "vLLM profiles": (
        python(FORWARD, RUNNER + "_dummy_run", RUNNER + "profile_run"), REST, "vLLM",
    ),
    "vLLM captures": (python(FORWARD, RUNNER + "capture_model"), GRAPHS, "vLLM"),
    "SGLang's cache": (
        python("sglang/srt/mem_cache/memory_pool.py:MHATokenToKVPool._create_buffers"),
        KV, "SGLang",
    ),
    "SGLang loads": (
        python("sglang/srt/model_executor/model_runner.py:ModelRunner.load_model"),
        WEIGHTS, "SGLang",
    ),
    "a cache that a forward allocates": (
        python("transformers/cache_utils.py:StaticLayer.lazy_initialization", FORWARD,
               "transformers/generation/utils.py:GenerationMixin.generate"),
        KV, "transformers",
    ),
    "a cache that grows": (
        python("transformers/cache_utils.py:DynamicLayer.update", FORWARD), KV, "transformers",
    ),
    "model.to": (
        python("torch/nn/modules/module.py:Module.to.<locals>.convert",
               "torch/nn/modules/module.py:Module._apply", "torch/nn/modules/module.py:Module.to"),
        WEIGHTS, "PyTorch",
    ),
    "without qualified names": (python("torch/nn/modules/module.py:_apply"), WEIGHTS, "PyTorch"),
    "an optimizer": (python("torch/optim/adamw.py:AdamW.step"), OPTIMIZER, "PyTorch"),
    "NCCL": (
        (Frame("cuMemCreate", module="/x/libcuda.so.1"), Frame("y", module="/x/libnccl.so.2")),
        OUTSIDE, "PyTorch",
    ),
    "a forward": (python(FORWARD, "app.py:main"), REST, ""),
    "the user's own load_model": (python("app.py:load_model"), REST, ""),
    "a note that imitates": ((Frame.note("vllm/load_model"),), REST, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", STACKS)
def test_what_memory_is_for_is_told_by_the_stack(name: str) -> None:
    stack, kind, engine = STACKS[name]
    assert category(stack) == (kind, engine)


def profile(*held: tuple[str, int], pid: int = 1, peak_only: bool = False) -> Profile:
    samples = tuple(
        Sample(
            STACKS[name][0],
            (("comm", "python"), ("device", "0"), ("kind", "device"), ("pid", str(pid))),
            Values(1, size, 0 if peak_only else 1, 0 if peak_only else size, size),
        )
        for name, size in held
    )
    return Profile(samples, 0, 0)


def test_the_plan_of_a_server_is_set_beside_its_profile() -> None:
    made = plan("Llama-3.1-8B", 40 * GIB)
    kv = made.budget.blocks * made.budget.cache.block_bytes
    loaded = made.loaded(fused=True).reserved
    found = check(
        made,
        profile(("vLLM makes quantised weights", loaded), ("vLLM's cache", kv + 5 * MIB)),
        "a profile",
    )
    rows = {row.name: row for row in found.rows}
    assert found.engine == "vLLM"
    assert rows[WEIGHTS].planned == rows[WEIGHTS].measured == loaded
    assert rows[KV].planned == kv
    assert rows[KV].measured - kv == 5 * MIB
    assert rows[KV].share.startswith("+0.0")
    assert rows["all"].measured == loaded + kv + 5 * MIB


def test_a_cache_of_transformers_is_that_of_its_sequences() -> None:
    made = plan("Llama-3.2-1B", sequences=4, sequence_length=1000)
    found = check(made, profile(("a cache that a forward allocates", 5)), "a profile")
    rows = {row.name: row for row in found.rows}
    one_tensor = 4 * 1000 * 8 * 64 * 2
    assert rows[KV].planned is not None
    assert 16 * 2 * one_tensor <= rows[KV].planned <= 16 * 2 * (one_tensor + 20 * MIB)


def test_of_a_program_that_ended_the_peak_is_taken() -> None:
    found = check(plan("Llama-3.2-1B"), profile(("model.to", 7), peak_only=True), "a profile")
    assert found.when.endswith("at the peak")
    assert {row.name: row.measured for row in found.rows}[WEIGHTS] == 7


def test_the_rank_that_holds_most_is_shown_and_the_others_are_mentioned() -> None:
    small, large = profile(("model.to", 7)), profile(("model.to", 9), pid=2)
    both = Profile(small.samples + large.samples, 0, 0)
    found = check(plan("Llama-3.2-1B", ranks=4), both, "a profile")
    assert "(2)" in found.process
    assert any("hold 7 to 9 bytes" in note for note in found.notes)
    assert any("4 ranks, the profile has 2" in note for note in found.notes)


def test_a_profile_without_gpu_memory_is_refused() -> None:
    with pytest.raises(UsageError, match="no GPU memory"):
        check(plan("Llama-3.2-1B"), profile(), "a profile")


def test_the_command_sets_a_file_beside_the_plan(tmp_path: Path) -> None:
    path = tmp_path / "a.pb.gz"
    path.write_bytes(pprof.encode(profile(("model.to", GIB), ("a cache that grows", 3 * MIB))))
    arguments = ["Llama-3.2-1B", "--gpu", "A100-40GB", "--check", str(path)]
    text = CliRunner().invoke(command, arguments).output
    assert "Set beside a.pb.gz, what was in use at the end" in text
    assert "names of transformers" in text
    told = json.loads(CliRunner().invoke(command, [*arguments, "--json"]).output)
    rows = {row["name"]: row["measured"] for row in told["check"]["rows"]}
    assert (rows["weights"], rows["KV cache"]) == (GIB, 3 * MIB)
