"""``gpumemprof plan``: what fits on a GPU, before anything runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from gpumemprof.cli.sizes import size
from gpumemprof.errors import UsageError
from gpumemprof.plan import check as checks
from gpumemprof.plan import dtypes, lines, models, render
from gpumemprof.plan import plan as plans
from gpumemprof.plan import quantization as schemes
from gpumemprof.profile import files

_COUNT = click.IntRange(min=1)


def _show_known(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    for name, (count, source) in models.presets().items():
        click.echo(f"{name:24} {count:>18,} parameters  {source}")
    for gpu in models.gpus():
        click.echo(f"{gpu.name:24} {gpu.memory:>18,} bytes       {gpu.source}")
    ctx.exit()


@click.command()
@click.argument("model", metavar="MODEL")
@click.option("--gpu", metavar="NAME", help="A known GPU, such as H100 (--list shows them).")
@click.option(
    "--gpu-memory",
    type=size,
    metavar="SIZE",
    help="What CUDA tells as its total, such as 79.22GiB.",
)
@click.option("--gpu-memory-utilization", type=float, default=0.9, show_default=True)
@click.option(
    "--tensor-parallel", "--tensor-parallel-size", "tensor_parallel",
    type=_COUNT, default=1, show_default=True, metavar="N", help="GPUs that share the model.",
)  # fmt: skip
@click.option("--dtype", type=click.Choice(dtypes.WEIGHT_DTYPES), help="[default: the model's]")
@click.option(
    "--quantization",
    type=click.Choice(list(schemes.SCHEMES)),
    help="How matrices are stored.  [default: as the model's config says]",
)
@click.option("--group-size", type=_COUNT, metavar="N", help="Inputs that share a scale.")
@click.option("--kv-cache-dtype", type=click.Choice(dtypes.KV_DTYPES), default="auto")
@click.option("--max-model-len", type=_COUNT, metavar="N", help="[default: the model's]")
@click.option(
    "--sequence-length", type=_COUNT, metavar="N", help="Of typical sequences.  [default: the most]"
)
@click.option("--sequences", type=_COUNT, default=1, metavar="N", help="That must fit at once.")
@click.option("--block-size", type=_COUNT, default=16, show_default=True, metavar="N")
@click.option("--batched-tokens", type=_COUNT, default=8192, show_default=True, metavar="N")
@click.option("--max-num-seqs", type=_COUNT, default=256, show_default=True, metavar="N")
@click.option("--enforce-eager", is_flag=True, help="Without CUDA graphs.")
@click.option("--speculative-model", metavar="MODEL", help="A draft model beside it.")
@click.option(
    "--speculative-layers", type=click.IntRange(0, 64), default=0, metavar="N",
    help="Layers of its own that draft (multi-token prediction).",
)  # fmt: skip
@click.option("--weights", type=size, metavar="SIZE", help="As measured, of one rank.")
@click.option(
    "--activations", type=size, metavar="SIZE", help="As measured, instead of the estimate."
)
@click.option(
    "--outside-torch", type=size, metavar="SIZE", help="As measured: context, NCCL, workspaces."
)
@click.option("--cuda-graphs", type=size, metavar="SIZE", help="As measured.")
@click.option(
    "--check", "profile", metavar="PROFILE", help="Set the plan beside this recorded profile."
)
@click.option(
    "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True,
    help="Table for people, JSON for scripts.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option(
    "--list", is_flag=True, is_eager=True, expose_value=False, callback=_show_known,
    help="Show the known models and GPUs.",
)  # fmt: skip
def plan(
    model: str,
    *,
    gpu: str | None,
    gpu_memory: int | None,
    gpu_memory_utilization: float,
    tensor_parallel: int,
    dtype: str | None,
    quantization: str | None,
    group_size: int | None,
    kv_cache_dtype: str,
    max_model_len: int | None,
    sequence_length: int | None,
    sequences: int,
    block_size: int,
    batched_tokens: int,
    max_num_seqs: int,
    enforce_eager: bool,
    speculative_model: str | None,
    speculative_layers: int,
    weights: int | None,
    activations: int | None,
    outside_torch: int | None,
    cuda_graphs: int | None,
    profile: str | None,
    form: str,
    as_json: bool,
) -> int:
    """Tell how much GPU memory MODEL needs, and how many tokens and sequences fit beside it.

    MODEL is a directory with a config.json (and safetensors, whose headers give exact sizes), a
    config.json, or a known model's name. Nothing is downloaded. The exit code is 1 if it does not
    fit.
    """
    name, memory = _gpu(gpu, gpu_memory)
    given = zip(plans.GIVEN, (weights, activations, outside_torch, cuda_graphs), strict=True)
    request = plans.Request(
        model=models.find(model),
        gpu=name,
        memory=memory,
        utilization=gpu_memory_utilization,
        ranks=tensor_parallel,
        dtype=dtype,
        scheme=_scheme(quantization, group_size),
        kv_dtype=kv_cache_dtype,
        max_model_len=max_model_len,
        sequence_length=sequence_length,
        sequences=sequences,
        block_size=block_size,
        batched_tokens=batched_tokens,
        max_sequences=max_num_seqs,
        eager=enforce_eager,
        draft=models.find(speculative_model) if speculative_model else None,
        draft_layers=speculative_layers,
        given={line: size for line, size in given if size is not None},
    )
    made = plans.make(request)
    checked = None
    if profile is not None:
        checked = checks.check(made, files.load(profile), Path(profile).name)
    if as_json or form == "json":
        answer = lines.as_json(made)
        if checked is not None:
            answer["check"] = checks.as_json(checked)
        sys.stdout.write(json.dumps(answer, indent=2, ensure_ascii=False) + "\n")
    else:
        console = render.make_console()
        render.render(made, console)
        if checked is not None:
            render.render_check(checked, console)
    return 0 if made.fits else 1


def _gpu(name: str | None, memory: int | None) -> tuple[str, int]:
    if (name is None) == (memory is None):
        raise UsageError("give one of --gpu NAME and --gpu-memory BYTES")
    if name is None:
        assert memory is not None
        return "as given (--gpu-memory)", memory
    gpu = models.gpu(name)
    return f"{gpu.name}: {gpu.source}", gpu.memory


def _scheme(name: str | None, group: int | None) -> schemes.Scheme | None:
    if name is None:
        if group is not None:
            raise UsageError("--group-size goes with --quantization")
        return None
    scheme = schemes.SCHEMES[name]
    return scheme if group is None else schemes.with_group(scheme, group)
