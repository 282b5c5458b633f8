"""Simulate replicas under a load: times to tokens, throughput, and what keeps an objective, as more requests come.

MODEL is as for `mlsys-lab estimate`. Requests come independently, in bursts, or as a trace has them: a line of JSON for
each, with time_s, prompt (token ids) and writes. Replicas get them in turn; each runs the course's own scheduler, and a
step takes the longest of its compute, memory and link times, over the efficiency. With --readers, so many of the
replicas only read prompts and send keys and values to the others, which only write; both arrangements of the same
devices are shown under the same load.

examples:
  mlsys-lab simulate-serving llama3-70b --tensor 8 --rate 8 16 24 32 --slo-ttft 0.5 --slo-tpot 0.05
  mlsys-lab simulate-serving llama3-70b --tensor 8 --rate 60 80 --replicas 4 --readers 3 --plot latency.html
  mlsys-lab simulate-serving llama3-8b --rate 10 --burst 16 --json
  mlsys-lab simulate-serving llama3-8b --trace requests.jsonl
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from mlsys_lab.cli.load import add_lengths, add_objective, add_replica, read_limits, read_service
from mlsys_lab.cli.subject import add_model, read_machine, read_model
from mlsys_lab.errors import InputError
from mlsys_lab.flops.cache import bytes_per_token
from mlsys_lab.flops.layout import Layout
from mlsys_lab.inference.simulator import (
    Arrival,
    Objective,
    Pool,
    Report,
    Service,
    Wire,
    bursts,
    disaggregate,
    read_trace,
    report,
)
from mlsys_lab.inference.simulator.planner import build_pool
from mlsys_lab.inference.simulator.plot import plot_latencies

Serve = Callable[[Sequence[Arrival]], Report]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `mlsys-lab simulate-serving`: the model, the device, the load, the replicas."""
    add_model(parser)
    load = parser.add_argument_group("load")
    which = load.add_mutually_exclusive_group(required=True)
    which.add_argument("--rate", type=float, nargs="+", metavar="R", help="requests a second, each in a run of its own")
    which.add_argument("--trace", type=Path, metavar="FILE", help="the requests of a trace")
    load.add_argument("--requests", type=int, default=200, metavar="N", help="requests of a run (200)")
    load.add_argument("--burst", type=int, default=1, metavar="N", help="requests that come at once (1)")
    add_lengths(load)
    add_objective(parser)
    replica = add_replica(parser)
    replica.add_argument("--tensor", type=int, default=1, metavar="N", help="tensor-parallel devices (1)")
    parser.add_argument("--replicas", type=int, default=1, metavar="N", help="replicas that share the load (1)")
    parser.add_argument("--readers", type=int, metavar="N", help="compare with as many of them that only read prompts")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write the times against the rate as a page of HTML")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, in seconds")


def run(args: argparse.Namespace) -> int:
    """Print a table of each rate and arrangement; returns exit code 0."""
    if args.readers is not None and not 0 < args.readers < args.replicas:
        expected = f"at least 1, fewer than the {args.replicas} replicas"
        raise InputError("--readers out of range", got=args.readers, expected=expected)
    if args.plot and args.trace:
        raise InputError("a trace has no rates to plot", help="leave out --plot, or give --rate")
    service = read_service(args, 1.0)
    arrangements = _arrangements(args, service)
    loads = _loads(args, service)
    console = Console(stderr=True)
    runs = [(name, key) for key in loads for name in arrangements]
    reports: dict[str, dict[float | str, Report]] = {name: {} for name in arrangements}
    for name, key in track(runs, "simulating", console=console, transient=True, disable=not console.is_terminal):
        reports[name][key] = arrangements[name](loads[key])
    if args.plot:
        curves = {name: {float(rate): one for rate, one in each.items()} for name, each in reports.items()}
        plot_latencies(curves, service.objective).write_html(args.plot, include_plotlyjs=True)
    if args.json:
        plain = [{"arrangement": name, "load": key, **asdict(reports[name][key])} for name, key in runs]
        print(json.dumps({"runs": plain}, indent=1))
    else:
        _print(args, service.objective, [(name, key, reports[name][key]) for name, key in runs])
    return 0


def _loads(args: argparse.Namespace, service: Service) -> dict[float | str, list[Arrival]]:
    if args.trace:
        return {args.trace.name: read_trace(args.trace)}
    return {rate: bursts(rate, args.requests, service.lengths, size=args.burst, seed=args.seed) for rate in args.rate}


def _arrangements(args: argparse.Namespace, service: Service) -> dict[str, Serve]:
    """What serves a load, by name: all replicas alike, and if asked for, readers and writers."""
    config, _ = read_model(args.model)
    machine, limits = read_machine(args, args.weights), read_limits(args)
    layout = Layout(data=args.expert, tensor=args.tensor, expert=args.expert)

    def pool(count: int) -> Pool:
        found = build_pool(config, machine, service, limits, layout, count=count)
        if not found.pages:
            got = f"{layout.devices} devices of {machine.memory_bytes / 1e9:.0f} GB"
            raise InputError(f"{config.name} fits on no replica", got=got, help="divide it: --tensor, --expert")
        return found

    def mixed(load: Sequence[Arrival]) -> Report:
        return report(pool(args.replicas).serve(load), service.objective)

    def apart(load: Sequence[Arrival]) -> Report:
        wire = Wire(bytes_per_token(config, service.cache_bytes), layout.tensor * machine.network_bytes_per_s)
        parted = disaggregate(load, pool(args.readers), pool(args.replicas - args.readers), wire)
        return report(parted.served, service.objective)

    both: dict[str, Serve] = {"mixed": mixed}
    return both if args.readers is None else {**both, f"{args.readers} + {args.replicas - args.readers}": apart}


def _print(args: argparse.Namespace, objective: Objective, runs: Sequence[tuple[str, float | str, Report]]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    devices = args.replicas * args.tensor * args.expert
    console.print(f"[bold]{escape(args.model)}[/]: {args.replicas} replicas, {devices} × {escape(args.device)}")
    console.print(f"good: {objective.ttft_s:g} s to the first token at most, {objective.tpot_s:g} s a token after it")
    console.print()
    table = Table(box=None, pad_edge=False)
    times = ("TTFT", "TPOT", "ITL")
    for column in ("load", "replicas", *(f"{name} p50/p95/p99, ms" for name in times), "tokens/s", "good", "goodput/s"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, key, one in runs:
        table.add_row(
            escape(key) if isinstance(key, str) else f"{key:g}/s",
            name,
            *("/".join(f"{1e3 * time_s:.3g}" for time_s in each.values()) or "–" for each in _times(one)),
            f"{one.tokens_per_s:.4g}",
            f"{one.good:.1%}",
            f"{one.goodput:.3g}",
        )
    console.print(table)


def _times(one: Report) -> tuple[dict[int, float], ...]:
    return one.ttft_s, one.tpot_s, one.itl_s
