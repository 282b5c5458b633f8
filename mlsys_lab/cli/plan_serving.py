"""Find the devices that serve a load within an objective: replicas, layout, batch, cost, and what binds.

MODEL is as for `mlsys-lab estimate`. Requests come independently, with lengths drawn about the given means. A replica
is simulated with the course's own scheduler; a step takes the longest of its compute, memory and link times, over the
efficiency. Figures are as good as that assumption: measure one replica before you buy many. The objective is kept where
95 % of the requests meet both of its times.

examples:
  mlsys-lab plan-serving llama3-70b --device H100 --slo-ttft 0.5 --slo-tpot 0.05 --rate 20
  mlsys-lab plan-serving llama3-8b --device "A100 80GB" --rate 5 --prompt 4000 --answer 300 --weights fp8 --price 2
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mlsys_lab.cli.subject import add_model, add_wires, read_machine, read_model
from mlsys_lab.errors import InputError
from mlsys_lab.flops.memory import BYTES, element_bytes
from mlsys_lab.inference.engine.scheduler import Limits
from mlsys_lab.inference.simulator import Objective, Service, ServingPlan, log_normal, plan_serving

MISSED = {"ttft": "time to the first token", "tpot": "time per token"}
BINDS = {"compute": "compute", "memory": "memory bandwidth", "link": "links", "network": "network"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `mlsys-lab plan-serving`: the model, the device, the load, the objective."""
    add_model(parser)
    load = parser.add_argument_group("load")
    load.add_argument("--rate", type=float, required=True, metavar="R", help="requests a second")
    load.add_argument("--prompt", type=float, default=1000, metavar="N", help="mean tokens of a prompt (1000)")
    load.add_argument("--answer", type=float, default=200, metavar="N", help="mean tokens of an answer (200)")
    load.add_argument("--seed", type=int, default=0, metavar="N", help="another draw of the same load (0)")
    slo = parser.add_argument_group("objective")
    slo.add_argument("--slo-ttft", type=float, default=1.0, metavar="S", help="longest time to the first token (1)")
    slo.add_argument("--slo-tpot", type=float, default=0.1, metavar="S", help="longest mean time per token after (0.1)")
    replica = parser.add_argument_group("replica")
    add_wires(replica)
    replica.add_argument("--sequences", type=int, default=256, metavar="N", help="most sequences of a step (256)")
    replica.add_argument("--step-tokens", type=int, default=1024, metavar="N", help="most tokens of a step (1024)")
    replica.add_argument("--weights", default="bf16", metavar="FORMAT", help=f"one of {', '.join(BYTES)}")
    replica.add_argument("--cache", default="bf16", metavar="FORMAT", help="of the KV cache")
    replica.add_argument("--efficiency", type=float, default=0.6, metavar="E", help="share of the peaks reached (0.6)")
    parser.add_argument("--price", type=float, metavar="P", help="of one device an hour, in any currency")
    parser.add_argument("--json", action="store_true", help="print the plans as JSON, in seconds")


def run(args: argparse.Namespace) -> int:
    """Print a plan for each degree of tensor parallelism, fewest devices first; returns exit code 0."""
    config, skipped = read_model(args.model)
    service = Service(
        args.rate,
        log_normal(args.prompt, args.answer),
        Objective(args.slo_ttft, args.slo_tpot),
        weight_bytes=element_bytes(args.weights),
        cache_bytes=element_bytes(args.cache),
        efficiency=args.efficiency,
    )
    if args.price is not None and not 0 <= args.price < float("inf"):
        raise InputError("a price cannot be so", got=args.price, expected="0 or more an hour and device")
    limits = Limits(sequences=args.sequences, tokens=args.step_tokens)
    plans = plan_serving(config, read_machine(args, args.weights), service, limits=limits, seed=args.seed)
    if args.json:
        print(json.dumps({"plans": [_as_dict(one, args) for one in plans], "not_counted": skipped}, indent=1))
    else:
        _print(config.name, args, plans, skipped)
    return 0


def _cost(one: ServingPlan, args: argparse.Namespace) -> float | None:
    return None if args.price is None else one.cost_per_million_tokens(args.price, args.rate)


def _as_dict(one: ServingPlan, args: argparse.Namespace) -> dict[str, object]:
    return {
        "tensor": one.tensor,
        "replicas": one.replicas,
        "devices": one.devices,
        "cache_pages": one.pages,
        "mean_sequences": one.simulation.mean_sequences,
        "mean_step_tokens": one.simulation.mean_tokens,
        "preemptions": one.simulation.preemptions,
        "binds": one.binds,
        "one_replica_less_misses": one.short,
        "cost_per_million_tokens": _cost(one, args),
        "replica": asdict(one.report),
    }


def _print(name: str, args: argparse.Namespace, plans: Sequence[ServingPlan], skipped: Sequence[str]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    load = f"{args.rate:g} requests/s of {args.prompt:g} + {args.answer:g} tokens"
    console.print(f"[bold]{escape(name)}[/] on {escape(args.device)}: {load}")
    console.print(f"95 % within {args.slo_ttft:g} s to the first token and {args.slo_tpot:g} s a token after it")
    for phrase in skipped:
        console.print(f"not counted: {escape(phrase)}")
    table = Table(box=None, pad_edge=False)
    columns = ("tp", "replicas", "devices", "batch", "TTFT p95", "TPOT p95", "good")
    for column in (*columns, *(["cost/M"] if args.price is not None else [])):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("bound by", no_wrap=True)
    for one in plans:
        figures, cost = one.report, _cost(one, args)
        times = (figures.ttft_s.get(95), figures.tpot_s.get(95))
        costs = [] if args.price is None else ["–" if cost is None else f"{cost:.3g}"]
        table.add_row(
            str(one.tensor),
            *("–" if count is None else str(count) for count in (one.replicas, one.devices)),
            f"{one.simulation.mean_sequences:.1f}",
            *("–" if time_s is None else f"{time_s * 1e3:.3g} ms" for time_s in times),
            f"{figures.good:.1%}",
            *costs,
            BINDS[one.binds],
        )
    console.print()
    console.print(table)
    legend = (
        "tp tensor-parallel devices of a replica, batch its mean sequences a step, cost of a million written tokens"
    )
    console.print(f"\n{legend if args.price is not None else legend.rpartition(',')[0]}")
    console.print(_advice(plans[0]))


def _advice(best: ServingPlan) -> str:
    if best.replicas is None:
        missed = MISSED[best.short]
        return f"[red]no number of replicas keeps the objective[/]: {missed} is missed even by a replica almost idle"
    groups = f"{best.replicas} × tensor parallel {best.tensor}" if best.tensor > 1 else f"{best.replicas}"
    less = f"; one replica less misses the {MISSED[best.short]}" if best.short else ""
    devices = f"{best.devices} device{'s' if best.devices != 1 else ''}"
    return f"[green]{devices}[/] as {groups}: steps are bound by {BINDS[best.binds]}{less}"
