"""Find the devices that serve a load within an SLO: replicas, layout, batch, cost, and the bottleneck.

MODEL is as for `mlsys-lab estimate`. Requests arrive independently, with lengths drawn around the given means. The
search starts at the number of replicas whose compute, memory and links can carry the load; from there on a replica is
simulated in steady state, with the course's own scheduler. A step takes the longest of its compute, memory and link
times, over the efficiency. Figures are as good as that assumption: measure one replica before you buy many. The SLO is
met where 95 % of the requests meet both of its times.

With --clock a step takes what `mlsys-lab calibrate` has measured on this machine's server, and replicas are machines
like it: the search is over batch limits up to --sequences and the given numbers of --blocks. MODEL then only says how
long requests may be, and options of devices do not apply. The server's steps have up to 256 tokens: give
--step-tokens 256.

examples:
  mlsys-lab plan-serving llama3-70b --device H100 --slo-ttft 0.5 --slo-tpot 0.05 --rate 20
  mlsys-lab plan-serving llama3-8b --device "A100 80GB" --rate 5 --prompt 4000 --answer 300 --weights fp8 --price 2
  mlsys-lab plan-serving deepseek-v3 --device H200 --weights fp8 --expert 8 --rate 40 --slo-tpot 0.05
  mlsys-lab plan-serving llama3-8b --rate 5 --prompt 40 --answer 30 --clock clock.json --blocks 64 256 --sequences 16 \\
    --step-tokens 256
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mlsys_lab.cli.app import flag, option
from mlsys_lab.cli.options import read_machine, read_model
from mlsys_lab.cli.serving_options import ServingOptions, read_scheduler_config, read_service
from mlsys_lab.cli.spinner import spinner
from mlsys_lab.errors import InputError
from mlsys_lab.inference.simulator import ServingPlan, plan_measured, plan_serving
from mlsys_lab.inference.simulator.clock import load_clock
from mlsys_lab.inference.simulator.planner import BLOCK_SIZE
from mlsys_lab.validation import require_at_least_one

MISSED = {"ttft": "time to the first token", "tpot": "time per token"}
RESOURCES = {
    "compute": "compute",
    "memory": "memory bandwidth",
    "link": "links",
    "network": "network",
    "cache": "KV cache",
    "engine": "engine",
}


@dataclass(kw_only=True)
class Arguments(ServingOptions):
    """The model, the devices, the load and the SLO."""

    rate: Annotated[float, option("requests per second", "R", "Load")]
    clock: Annotated[Path | None, option("measured step times, in place of the devices'", "FILE", "Replica")] = None
    blocks: Annotated[
        list[int] | None, option(f"cache blocks of {BLOCK_SIZE} tokens, with --clock", "N...", "Replica")
    ] = None
    price: Annotated[float | None, option("of one device per hour, in any currency", "P")] = None
    json: Annotated[bool, flag("--json", "print the plans as JSON, in seconds")] = False


def run(args: Arguments) -> int:
    """Print a plan for each degree of tensor parallelism, or batch limit, fewest devices first; returns exit code 0."""
    config, skipped = read_model(args.model)
    service, scheduler_config = read_service(args, config, args.rate), read_scheduler_config(args)
    if args.price is not None and not 0 <= args.price < float("inf"):
        raise InputError("a price cannot be so", got=args.price, expected="0 or more an hour and device")
    if (args.clock is None) != (args.blocks is None):
        raise InputError("--clock and --blocks go together", help="give both, or neither")
    if args.clock and args.expert > 1:
        raise InputError("a clock is of replicas without expert parallelism", help="leave out --expert")
    require_at_least_one(blocks=min(args.blocks or [1]))
    with spinner("simulating replicas") as say:
        if args.clock:
            clock, blocks = load_clock(args.clock), args.blocks or []
            plans = plan_measured(
                clock, service, blocks=blocks, scheduler_config=scheduler_config, seed=args.seed, log=say
            )
        else:
            machine = read_machine(args, args.weights)
            plans = plan_serving(
                config, machine, service, scheduler_config=scheduler_config, expert=args.expert, seed=args.seed, log=say
            )
    if args.json:
        print(json.dumps({"plans": [_as_dict(one, args) for one in plans], "not_counted": skipped}, indent=1))
    else:
        _print(config.name, args, plans, skipped)
    return 0


def _cost(one: ServingPlan, args: Arguments) -> float | None:
    return None if args.price is None else one.cost_per_million_tokens(args.price, args.rate)


def _as_dict(one: ServingPlan, args: Arguments) -> dict[str, object]:
    return {
        "tensor": one.layout.tensor,
        "expert": one.layout.expert,
        "replicas": one.replicas,
        "devices": one.devices,
        "cache_blocks": one.num_blocks,
        "max_num_seqs": one.max_num_seqs,
        "mean_sequences": one.simulation.mean_sequences,
        "mean_step_tokens": one.simulation.mean_tokens,
        "preemptions": one.simulation.preemptions,
        "utilisation": one.utilisation,
        "binds": one.binds,
        "one_replica_less_misses": one.shortage,
        "cost_per_million_tokens": _cost(one, args),
        "replica": asdict(one.report),
    }


def _print(name: str, args: Arguments, plans: Sequence[ServingPlan], skipped: Sequence[str]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    load = f"{args.rate:g} requests/s of {args.prompt:g} + {args.answer:g} tokens"
    on = f"clock {args.clock}" if args.clock else args.device
    console.print(f"[bold]{escape(name)}[/] on {escape(on)}: {load}")
    console.print(f"95 % within {args.slo_ttft:g} s to the first token and {args.slo_tpot:g} s a token after it")
    for phrase in skipped:
        console.print(f"not counted: {escape(phrase)}")
    table = Table(box=None, pad_edge=False)
    columns = ("tp", "replicas", "devices", "batch", "TTFT p95", "TPOT p95", "good")
    if args.clock:
        columns = ("blocks", "replicas", "sequences", *columns[3:])
    for column in (*columns, *(["cost/M"] if args.price is not None else [])):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("utilisation", no_wrap=True)
    for one in plans:
        figures, cost = one.report, _cost(one, args)
        times = (figures.ttft_s.get(95), figures.tpot_s.get(95))
        most_used = max(one.utilisation, key=one.utilisation.__getitem__)
        costs = [] if args.price is None else ["–" if cost is None else f"{cost:.3g}"]
        keys = (one.layout.tensor, one.replicas, one.devices)
        if args.clock:
            keys = (one.num_blocks, one.replicas, one.max_num_seqs)
        table.add_row(
            *("–" if count is None else str(count) for count in keys),
            f"{one.simulation.mean_sequences:.1f}",
            *("–" if time_s is None else f"{time_s * 1e3:.3g} ms" for time_s in times),
            f"{figures.slo_attainment:.1%}",
            *costs,
            f"{RESOURCES[most_used]} {one.utilisation[most_used]:.0%}",
        )
    console.print()
    console.print(table)
    of = (
        "blocks and sequences of a replica: --blocks and --sequences"
        if args.clock
        else "tp tensor-parallel devices of a replica"
    )
    console.print(f"\n{of}, batch its mean sequences a step, utilisation: what the")
    priced = ", cost of a million output tokens" if args.price is not None else ""
    at = "" if args.clock else f", at {args.efficiency:g} of its peak"
    console.print(f"load takes of the most used resource{at}{priced}")
    console.print(_advice(plans[0]))


def _advice(best: ServingPlan) -> str:
    if best.replicas is None:
        missed = MISSED[best.shortage]
        return f"[red]no number of replicas keeps the objective[/]: {missed} is missed even by a replica almost idle"
    tensor, expert = best.layout.tensor, best.layout.expert
    ways = [f"tensor parallel {tensor}"] * (tensor > 1) + [f"expert parallel {expert}"] * (expert > 1)
    groups = " × ".join([str(best.replicas), *ways])
    less = ""
    if best.shortage:
        lacks = (
            f"misses the {MISSED[best.shortage]}"
            if best.shortage in MISSED
            else f"has too little {RESOURCES[best.shortage]}"
        )
        less = f"; one replica less {lacks}"
    if best.binds == "engine":
        limits = f"--blocks {best.num_blocks} --sequences {best.max_num_seqs}"
        return f"[green]{best.replicas} replica{'s' * (best.replicas > 1)}[/] with {limits}{less}"
    devices = f"{best.devices} device{'s' if best.devices != 1 else ''}"
    return f"[green]{devices}[/] as {groups}: steps are bound by {RESOURCES[best.binds]}{less}"
