"""Estimate what a model needs on given devices: memory, least time, tokens per second, cost, and whether it fits.

MODEL is a preset (llama3-8b, gemma2-9b, mixtral-8x7b, ...; all are below), a config.json of Hugging Face, or the folder
that holds one.
Times are lower bounds; "expected" is what a real step takes, at 0.65 of the speed at which nothing overlaps (training:
the median of flops.published_runs) or 0.6 of the bound (serving: an assumption). GB are 10⁹ bytes.

examples:
  mlsys-lab estimate llama3-8b --device H100 --data 8 --zero 3 --batch 64 --sequence 8192 --price 2.5
  mlsys-lab estimate llama3-70b --serve --device H100 --tensor 4 --batch 32 --sequence 8192
  mlsys-lab estimate path/to/config.json --device "A100 80GB" --recompute full --json
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mlsys_lab.cli.app import flag, option
from mlsys_lab.cli.options import GB, RANKS, ModelOptions, rank_option, read_machine, read_model, read_tokens
from mlsys_lab.configs.presets import PUBLISHED_ACTIVE
from mlsys_lab.configs.transformer import TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.flops.bounds import Machine
from mlsys_lab.flops.defaults import RECIPE
from mlsys_lab.flops.estimate import Estimate, estimate_serving, estimate_training
from mlsys_lab.flops.fitting import nearest_layout
from mlsys_lab.flops.layout import Layout
from mlsys_lab.flops.memory import BYTES, RECIPES, element_bytes, recipe

PARTS = {"compute_s": "compute", "memory_s": "memory", "link_s": "links in the node", "network_s": "network"}
TRAINING = ("zero", "sequence_parallel", "recompute", "interleave", "recipe", "all_pairs")
SERVING = ("weights", "cache")
"""Options that only `--serve` uses; those of `TRAINING` are used only without it."""


@dataclass(kw_only=True)
class Arguments(ModelOptions):
    """The model, the devices, the layout, and the form of the output."""

    serve: Annotated[bool, flag("--serve", "serve the model; without it, train it")] = False
    batch: Annotated[
        int | None, option("sequences per step, or served at once (by default one per data-parallel rank)", "N")
    ] = None
    sequence: Annotated[int | None, option("tokens of each (by default the model's context, at most 8192)", "T")] = None
    all_pairs: Annotated[bool, flag("--all-pairs", "training: count attention without its causal mask")] = False
    price: Annotated[float | None, option("of one device per hour, in any currency", "P")] = None
    json: Annotated[bool, flag("--json", "print the figures as JSON, in bytes, seconds and FLOPs")] = False
    data: Annotated[int, rank_option("data")] = 1
    tensor: Annotated[int, rank_option("tensor")] = 1
    pipeline: Annotated[int, rank_option("pipeline")] = 1
    expert: Annotated[int, rank_option("expert")] = 1
    context: Annotated[int, rank_option("context")] = 1
    zero: Annotated[int, option("ZeRO stage, 0 to 3", "STAGE", "Layout")] = 0
    sequence_parallel: Annotated[
        bool, flag("--sequence-parallel", "shard activations among tensor ranks", "Layout")
    ] = False
    recompute: Annotated[str, option("none, selective or full", "WHAT", "Layout")] = "none"
    micro_batch: Annotated[int, option("sequences per micro-batch of a data-parallel rank", "N", "Layout")] = 1
    interleave: Annotated[int, option("model chunks per pipeline stage (virtual stages)", "N", "Layout")] = 1
    recipe: Annotated[str, option(f"training: {', '.join(RECIPES)}", "NAME", "Formats")] = RECIPE
    weights: Annotated[str, option(f"serving: {', '.join(BYTES)}", "FORMAT", "Formats")] = "bf16"
    cache: Annotated[str, option("serving: format of the KV cache", "FORMAT", "Formats")] = "bf16"


def run(args: Arguments) -> int:
    """Print the estimate of training or serving; returns exit code 0 whether or not the model fits."""
    config, skipped = read_model(args.model)
    layout = Layout(
        **{name: getattr(args, name) for name in RANKS},
        zero_stage=args.zero,
        sequence_parallel=args.sequence_parallel,
        recomputation=args.recompute,
        micro_batch=args.micro_batch,
        interleave=args.interleave,
    )
    _refuse_ignored(args)
    on = read_machine(args, args.weights if args.serve else recipe(args.recipe).compute)
    try:
        estimate = _estimate(args, config, on, layout)
        fix = "" if estimate.fits else _fix(args, config, on, layout)
    except OverflowError:
        raise InputError("sizes too large to compute with", expected="fewer than 10³⁰⁰ FLOPs and bytes") from None
    if args.json:
        print(json.dumps(estimate.as_dict() | {"fix": fix, "not_counted": list(skipped)}, indent=1))
    else:
        _print(f"{layout.devices} × {args.device}", layout, estimate, fix, skipped)
    return 0


def _refuse_ignored(args: Arguments) -> None:
    """Raise InputError for an option that would change nothing: of training with `--serve`, of serving without it."""
    unset = {field.name: field.default for field in fields(args)}
    for name in TRAINING if args.serve else SERVING:
        if getattr(args, name) != unset[name]:
            given = "--" + name.replace("_", "-")
            did, other = ("serving", "training") if args.serve else ("training", "serving")
            raise InputError(
                f"{given} means nothing when {did}", got=given, help=f"leave it out: it belongs to {other}"
            )


def _estimate(args: Arguments, config: TransformerConfig, on: Machine, layout: Layout) -> Estimate:
    tokens = read_tokens(args.sequence, config)
    batch = layout.data * layout.micro_batch if args.batch is None else args.batch
    if args.serve:
        return estimate_serving(
            config,
            on,
            layout,
            batch=batch,
            tokens=tokens,
            weight_bytes=element_bytes(args.weights),
            cache_bytes=element_bytes(args.cache),
            price_per_hour=args.price,
        )
    return estimate_training(
        config,
        on,
        layout,
        recipe(args.recipe),
        batch=batch,
        tokens=tokens,
        causal=not args.all_pairs,
        price_per_hour=args.price,
    )


def _fix(args: Arguments, config: TransformerConfig, on: Machine, layout: Layout) -> str:
    """Describe the fewest changes of the layout with which the model fits; "" if there are none."""
    found = nearest_layout(config, layout, lambda one: _estimate(args, config, on, one).fits, training=not args.serve)
    if found is None:
        return ""
    words, smaller = found
    return f"{words}, on {smaller.devices} device{'s' if smaller.devices > 1 else ''}"


def _print(devices: str, layout: Layout, estimate: Estimate, fix: str, skipped: Sequence[str]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    ways = [f"{name} {getattr(layout, name)}" for name in RANKS if getattr(layout, name) > 1]
    divided = f" ({', '.join(ways)})" if ways else ""
    console.print(f"[bold]{escape(estimate.model)}[/] {estimate.mode} on {escape(devices)}{divided}")
    for phrase in skipped:
        console.print(f"not counted: {escape(phrase)}")
    billions = f"parameters {estimate.parameters / 1e9:.4g} billion"
    if estimate.active_parameters < estimate.parameters:
        billions += f", of which a token uses {estimate.active_parameters / 1e9:.4g} (embedding and head counted whole"
        if estimate.model in PUBLISHED_ACTIVE:
            printed, counted, _ = PUBLISHED_ACTIVE[estimate.model]
            billions += f"; published: {printed:g}, {counted}"
        billions += ")"
    console.print(f"{billions}; on a device {estimate.parameters_per_device / 1e9:.4g}\n")
    console.print(_memory_table(estimate))
    room = (estimate.capacity_bytes - estimate.memory.total) / GB
    if estimate.fits:
        console.print(f"[green]fits[/], with {room:.2f} GB of {estimate.capacity_bytes / GB:.2f} to spare\n")
    else:
        advice = f"it fits with {fix}" if fix else "no three changes of the layout make it fit"
        over = f"{-room:.2f} GB more than {estimate.capacity_bytes / GB:.2f}, most of it {estimate.memory.largest}"
        console.print(f"[red]does not fit[/]: {over}; {advice}\n")
    console.print(_time_table(estimate))
    for name, bound in estimate.bounds.items():
        ahead = f", {bound.margin:.3g} × the next" if bound.margin else ""
        console.print(f"{name}: bound by {PARTS[bound.binds + '_s']}{ahead}")
    if estimate.mfu is not None:
        console.print(f"highest possible MFU {estimate.mfu:.1%}, expected {estimate.expected_mfu:.1%}")


def _memory_table(estimate: Estimate) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("memory of the fullest device")
    table.add_column("GB", justify="right")
    kinds = estimate.as_dict()["memory"]
    for kind, size in kinds.items():
        if kind not in ("total", "largest") and size:
            table.add_row(kind, f"{size / GB:.2f}")
    table.add_row("[bold]total[/]", f"[bold]{kinds['total'] / GB:.2f}[/]")
    return table


def _time_table(estimate: Estimate) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("at best")
    for name in estimate.bounds:
        table.add_column(name, justify="right")
    for part, words in PARTS.items():
        table.add_row(words, *(_seconds(getattr(bound, part)) for bound in estimate.bounds.values()))
    table.add_row("[bold]time[/]", *(f"[bold]{_seconds(bound.time_s)}[/]" for bound in estimate.bounds.values()))
    table.add_row("expected time", *map(_seconds, estimate.expected_s.values()))
    table.add_row("tokens/s", *(f"{speed:,.0f}" for speed in estimate.tokens_per_s.values()))
    if estimate.cost_per_million_tokens:
        costs = estimate.cost_per_million_tokens.values()
        table.add_row("cost of a million tokens", *(f"{cost:.4g}" for cost in costs))
    return table


def _seconds(time_s: float) -> str:
    if time_s == 0:
        return "–"
    return f"{time_s:.3g} s" if time_s >= 1 else f"{time_s * 1e3:.3g} ms"
