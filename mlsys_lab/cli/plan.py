"""Rank the layouts of a training step on many devices, and show what costs each of them more than the best.

MODEL is as for `mlsys-lab estimate`. You may give a part of the layout; the rest is searched. Times and MFU "at best"
are those of a step in which everything overlaps. "Expected" ones are 0.65 of the speed at which nothing overlaps, the
median of published runs (flops.published_runs; they reach 0.49 to 0.81). What a layout loses by is in times of a step
in which nothing overlaps.

examples:
  mlsys-lab plan llama3-70b --device H100 --devices 512 --batch 512
  mlsys-lab plan bloom-176b --device "A100 80GB" --devices 384 --batch 2048 --network 6.25 --recompute full --zero 1
  mlsys-lab plan mixtral-8x7b --devices 64 --batch 256 --tensor 4 --no-sequence-parallel --json
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mlsys_lab.cli.app import flag, option
from mlsys_lab.cli.options import GB, RANKS, ModelOptions, rank_option, read_machine, read_model, read_tokens
from mlsys_lab.errors import InputError
from mlsys_lab.flops.defaults import RECIPE
from mlsys_lab.flops.layout import Layout
from mlsys_lab.flops.memory import RECIPES, recipe
from mlsys_lab.flops.planner import Plan, plan

PARTS = {
    "model": "uneven stages",
    "recomputation": "recompute",
    "bubble": "bubble",
    "memory": "memory",
    "link": "links",
    "network": "network",
}
"""What a layout can lose by: `model`, where its slowest stage computes more than that of another layout."""
SHORT = {"data": "dp", "tensor": "tp", "pipeline": "pp", "expert": "ep", "context": "cp"}
LEGEND = "b sequences of a micro-batch, v chunks of a stage, Z ZeRO stage, SP sequence parallel, R full recomputation"


@dataclass(kw_only=True)
class Arguments(ModelOptions):
    """The model, the devices, the batch, and as much of the layout as is given."""

    devices: Annotated[int, option("devices to divide the step among", "N")]
    batch: Annotated[int, option("sequences per step", "N")]
    sequence: Annotated[int | None, option("tokens of each (by default the model's context, at most 8192)", "T")] = None
    recipe: Annotated[str, option(f"bytes per parameter: {', '.join(RECIPES)}", "NAME")] = RECIPE
    all_pairs: Annotated[bool, flag("--all-pairs", "count attention without its causal mask")] = False
    top: Annotated[int, option("how many layouts to print", "N")] = 10
    json: Annotated[bool, flag("--json", "print all layouts as JSON, in bytes and seconds")] = False
    reserve: Annotated[float, option("memory of each device to leave free", "GB", "Devices")] = 0.0
    data: Annotated[int | None, rank_option("data")] = None
    tensor: Annotated[int | None, rank_option("tensor")] = None
    pipeline: Annotated[int | None, rank_option("pipeline")] = None
    expert: Annotated[int | None, rank_option("expert")] = None
    context: Annotated[int | None, rank_option("context")] = None
    zero_stage: Annotated[int | None, option("ZeRO stage, 0 to 3", "STAGE", "Layout", name="--zero")] = None
    sequence_parallel: Annotated[bool | None, option("shard activations among tensor ranks", panel="Layout")] = None
    recomputation: Annotated[str | None, option("none, selective or full", "WHAT", "Layout", name="--recompute")] = None
    micro_batch: Annotated[int | None, option("sequences per micro-batch of a data-parallel rank", "N", "Layout")] = (
        None
    )
    interleave: Annotated[int | None, option("model chunks per pipeline stage (virtual stages)", "N", "Layout")] = None


def run(args: Arguments) -> int:
    """Print the layouts, the fastest first; returns exit code 0 whether or not any fits."""
    config, skipped = read_model(args.model)
    one = recipe(args.recipe)
    on = read_machine(args, one.compute)
    if not 0 <= args.reserve * GB < on.memory_bytes:
        raise InputError("--reserve out of range", got=args.reserve, expected=f"0 to {on.memory_bytes / GB:.4g} GB")
    if args.top < 1:
        raise InputError("--top out of range", got=args.top, expected="at least 1 layout")
    names = asdict(Layout())
    tokens = read_tokens(args.sequence, config)
    try:
        plans = plan(
            config,
            replace(on, memory_bytes=on.memory_bytes - args.reserve * GB),
            one,
            devices=args.devices,
            batch=args.batch,
            tokens=tokens,
            causal=not args.all_pairs,
            given={name: value for name in names if (value := getattr(args, name)) is not None},
        )
    except OverflowError:
        raise InputError("sizes too large to compute with", expected="fewer than 10³⁰⁰ FLOPs and bytes") from None
    if args.json:
        print(json.dumps({"plans": [_as_dict(each, plans[0]) for each in plans], "not_counted": skipped}, indent=1))
    else:
        title = f"[bold]{escape(config.name)}[/] training on {args.devices} × {escape(args.device)}"
        _print(f"{title}, {args.batch} sequences of {tokens} tokens", plans, skipped, top=args.top)
    return 0


def _as_dict(one: Plan, best: Plan) -> dict[str, object]:
    part, time_s = one.loss(best)
    return one.as_dict() | {"loss": None if one is best else {"part": part, "time_s": time_s}}


def _print(title: str, plans: Sequence[Plan], skipped: Sequence[str], *, top: int) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(title)
    for phrase in skipped:
        console.print(f"not counted: {escape(phrase)}")
    best = plans[0]
    if best.missing_bytes:
        console.print(f"[red]nothing fits[/]: {best.missing_bytes / GB:.2f} GB too much on a device, at least")
    console.print()
    console.print(_table(plans[:top], best))
    fitting = sum(not one.missing_bytes for one in plans)
    counts = f"{len(plans)} layout{'s' * (len(plans) != 1)}, of which {fitting} fit{'s' * (fitting == 1)}"
    console.print(f"\n{LEGEND}")
    console.print(f"{counts}; --top {len(plans)} prints all" if len(plans) > top else counts)


def _table(plans: Sequence[Plan], best: Plan) -> Table:
    table = Table(box=None, pad_edge=False)
    ranks = [name for name in RANKS if any(getattr(one.layout, name) > 1 for one in plans)]
    for name in (*(SHORT[name] for name in ranks), "GB", "at best", "expected", "MFU, %"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("settings", no_wrap=True)
    table.add_column("loses by")
    for one in plans:
        fits = not one.missing_bytes
        mfu = f"{100 * one.best_mfu:.0f}, {100 * one.expected_mfu:.0f}"
        figures = [f"{one.memory.total / GB:.1f}", _seconds(one.bound.time_s), _seconds(one.expected_s), mfu]
        degrees = [str(getattr(one.layout, name)) for name in ranks]
        reason = _reason(one, best) if fits else f"[red]{one.missing_bytes / GB:.1f} GB too much[/]"
        table.add_row(*degrees, *figures, _settings(one.layout), reason)
    return table


def _settings(layout: Layout) -> str:
    """Settings of a layout, in the letters of `LEGEND`."""
    words = [
        f"b{layout.micro_batch}",
        f"v{layout.interleave}" if layout.interleave > 1 else "",
        f"Z{layout.zero_stage}" if layout.zero_stage else "",
        "SP" if layout.sequence_parallel else "",
        {"none": "", "selective": "selective", "full": "R"}[layout.recomputation],
    ]
    return " ".join(word for word in words if word)


def _reason(one: Plan, best: Plan) -> str:
    """What a layout that fits loses by; for the best one, what takes most of its time."""
    if one is best:
        part, time_s = max(one.parts.items(), key=lambda each: each[1])
        words = "compute" if part == "model" else PARTS[part]
        return f"[green]best[/], {time_s / one.time_s:.0%} {words}"
    part, time_s = one.loss(best)
    return f"{PARTS[part]} +{_seconds(time_s)}"


def _seconds(time_s: float) -> str:
    return f"{time_s:.3g} s" if time_s >= 1 else f"{time_s * 1e3:.3g} ms"
