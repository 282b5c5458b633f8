"""Simulate replicas under a load: TTFT, TPOT, throughput and goodput against the rate of requests.

MODEL is as for `mlsys-lab estimate`. Requests arrive independently, in bursts, or as in a trace: a line of JSON for
each, with time_s, prompt (token ids) and num_output_tokens. At a rate, the steady state is measured: a run is several
times as long as a request stays, without warm-up and drain, and if the queue grows the replicas are overloaded.
A trace is served once, and all of it counts. Replicas get requests in turn; each runs the course's own scheduler, and
a step takes the longest of its compute, memory and link times, over the efficiency. With --clock a step takes what
`mlsys-lab calibrate` has measured on a server of --blocks cache blocks; MODEL then only says how long requests may be,
and options of devices and formats do not apply. The server has --step-tokens 256, and the largest request must fit
into its blocks: set --prompt and --answer. With --readers, as many of the replicas only compute prompts and send their
KV cache to the others, which only decode; both arrangements of the same devices are shown under the same load.

examples:
  mlsys-lab simulate-serving llama3-70b --tensor 8 --rate 8 16 24 32 --slo-ttft 0.5 --slo-tpot 0.05
  mlsys-lab simulate-serving llama3-70b --tensor 8 --rate 60 80 --replicas 4 --readers 3 --plot latency.html
  mlsys-lab simulate-serving llama3-8b --rate 10 --burst 16 --json
  mlsys-lab simulate-serving llama3-8b --trace requests.jsonl
  mlsys-lab simulate-serving llama3-8b --trace trace.jsonl --clock clock.json --blocks 256 --step-tokens 256
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from mlsys_lab.cli.app import flag, option
from mlsys_lab.cli.options import read_machine, read_model
from mlsys_lab.cli.serving_options import ServingOptions, read_scheduler_config, read_service
from mlsys_lab.configs.transformer import TransformerConfig
from mlsys_lab.errors import InputError, UsageError
from mlsys_lab.flops.cache import bytes_per_token
from mlsys_lab.flops.layout import Layout
from mlsys_lab.inference.simulator import (
    Arrival,
    KVTransferLink,
    Objective,
    Pool,
    Report,
    Served,
    Service,
    disaggregate,
    read_trace,
    report,
)
from mlsys_lab.inference.simulator.clock import load_clock
from mlsys_lab.inference.simulator.planner import BLOCK_SIZE, MAX_REPLICAS, build_pool, mean_demand
from mlsys_lab.inference.simulator.plot import plot_latencies
from mlsys_lab.inference.simulator.steady import DEFAULT_REQUESTS, Steady, measure_steady_state

MIXED = "mixed"

ServeLoad = Callable[[Sequence[Arrival]], Sequence[Served]]


@dataclass(kw_only=True)
class Arguments(ServingOptions):
    """The model, the devices, the load and the replicas."""

    rate: Annotated[list[float] | None, option("requests per second, each in a run of its own", "R...", "Load")] = None
    trace: Annotated[Path | None, option("the requests of a trace", "FILE", "Load")] = None
    requests: Annotated[int, option("requests of the shortest run", "N", "Load")] = DEFAULT_REQUESTS
    burst: Annotated[int, option("requests that arrive at once", "N", "Load")] = 1
    tensor: Annotated[int, option("tensor-parallel devices", "N", "Replica")] = 1
    replicas: Annotated[int, option("replicas that share the load", "N")] = 1
    readers: Annotated[int | None, option("compare with as many of the replicas that only prefill", "N")] = None
    clock: Annotated[Path | None, option("measured step times, in place of the devices'", "FILE", "Replica")] = None
    blocks: Annotated[int | None, option(f"cache blocks of {BLOCK_SIZE} tokens, with --clock", "N", "Replica")] = None
    plot: Annotated[Path | None, option("write latency against the rate as a page of HTML", "FILE")] = None
    json: Annotated[bool, flag("--json", "print the figures as JSON, in seconds")] = False


def run(args: Arguments) -> int:
    """Print a table of each rate and arrangement; returns exit code 0."""
    if (args.rate is None) == (args.trace is None):
        got = "both" if args.trace else "neither"
        raise UsageError("the load is --rate or --trace", got=got, help="see `mlsys-lab simulate-serving --help`")
    if not 0 < args.replicas <= MAX_REPLICAS:
        raise InputError("--replicas out of range", got=args.replicas, expected=f"1 to {MAX_REPLICAS}")
    if args.readers is not None and not 0 < args.readers < args.replicas:
        expected = f"at least 1, fewer than the {args.replicas} replicas"
        raise InputError("--readers out of range", got=args.readers, expected=expected)
    if args.plot and args.trace:
        raise InputError("a trace has no rates to plot", help="leave out --plot, or give --rate")
    if (args.clock is None) != (args.blocks is None):
        raise InputError("--clock and --blocks go together", help="give both, or neither")
    if args.clock and args.readers:
        raise InputError("a clock is of replicas that do both", help="leave out --readers")
    config, _ = read_model(args.model)
    services = {rate: read_service(args, config, rate) for rate in args.rate or [1.0]}
    service = next(iter(services.values()))
    mixed = _pool(args, config, service, args.replicas)
    arrangements = _arrangements(args, config, service, mixed)
    busy_s = None if args.clock else mean_demand(mixed, service, seed=args.seed).time_s / args.replicas
    slots, trace = args.replicas * mixed.scheduler_config.max_num_seqs, read_trace(args.trace) if args.trace else []

    def measure(name: str, key: float | str) -> Steady:
        serve = arrangements[name]
        if isinstance(key, str):
            served = serve(trace)
            return Steady(tuple(served), report(served, service.objective), False)
        return measure_steady_state(
            serve,
            key,
            service.lengths,
            service.objective,
            max_num_seqs=slots,
            requests=args.requests,
            burst=args.burst,
            seed=args.seed,
            capacity=1 / busy_s if name == MIXED and busy_s else math.inf,
        )

    console = Console(stderr=True)
    runs = [(name, key) for key in ([args.trace.name] if args.trace else services) for name in arrangements]
    reports: dict[str, dict[float | str, Steady]] = {name: {} for name in arrangements}
    for name, key in track(runs, "simulating", console=console, transient=True, disable=not console.is_terminal):
        reports[name][key] = measure(name, key)
    if args.plot:
        curves = {name: {float(rate): one.report for rate, one in each.items()} for name, each in reports.items()}
        plot_latencies(curves, service.objective).write_html(args.plot, include_plotlyjs=True)
    rows = [(name, key, reports[name][key]) for name, key in runs]
    if args.json:
        print(json.dumps({"runs": [_as_dict(*row, busy_s) for row in rows]}, indent=1))
    else:
        _print(args, service.objective, rows, busy_s)
    return 0


def _as_dict(name: str, key: float | str, one: Steady, busy_s: float | None) -> dict[str, object]:
    state = {"overloaded": one.is_overloaded, "utilisation": _utilisation(name, key, busy_s)}
    return {"arrangement": name, "load": key, **state, **asdict(one.report)}


def _utilisation(name: str, key: float | str, busy_s: float | None) -> float | None:
    """Utilisation of the replicas' most used resource; None for a trace, a clock, and prefill and decode replicas."""
    return key * busy_s if name == MIXED and busy_s and not isinstance(key, str) else None


def _pool(args: Arguments, config: TransformerConfig, service: Service, count: int) -> Pool:
    if args.clock is not None:
        return Pool(load_clock(args.clock), args.blocks or 0, read_scheduler_config(args), count, BLOCK_SIZE)
    layout = Layout(data=args.expert, tensor=args.tensor, expert=args.expert)
    machine = read_machine(args, args.weights)
    found = build_pool(config, machine, service, read_scheduler_config(args), layout, count=count)
    if not found.num_blocks:
        got = f"{layout.devices} devices of {machine.memory_bytes / 1e9:.0f} GB"
        raise InputError(f"{config.name} fits on no replica", got=got, help="divide it: --tensor, --expert")
    return found


def _arrangements(args: Arguments, config: TransformerConfig, service: Service, mixed: Pool) -> dict[str, ServeLoad]:
    """Arrangements of the replicas by name: all alike, and with --readers prefill and decode replicas."""
    if args.readers is None:
        return {MIXED: mixed.serve}
    readers, writers = (_pool(args, config, service, count) for count in (args.readers, args.replicas - args.readers))
    network = args.tensor * read_machine(args, args.weights).network_bytes_per_s
    wire = KVTransferLink(bytes_per_token(config, service.cache_bytes), network)

    def separate(load: Sequence[Arrival]) -> Sequence[Served]:
        return disaggregate(load, readers, writers, wire).served

    return {MIXED: mixed.serve, f"{args.readers} + {args.replicas - args.readers}": separate}


def _print(
    args: Arguments, objective: Objective, runs: Sequence[tuple[str, float | str, Steady]], busy_s: float | None
) -> None:
    console = Console(highlight=False, soft_wrap=True)
    devices = args.replicas * args.tensor * args.expert
    replicas = f"{args.replicas} replica{'s' * (args.replicas > 1)}"
    on = f"clock {args.clock}" if args.clock else f"{devices} × {args.device}"
    console.print(f"[bold]{escape(args.model)}[/]: {replicas}, {escape(on)}")
    console.print(f"good: {objective.ttft_s:g} s to the first token at most, {objective.tpot_s:g} s a token after it")
    console.print("times in ms: p50/p95/p99; goodput in requests per second")
    console.print()
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    figures = ("TTFT", "TPOT", "ITL", "tokens/s", "good", "goodput", "used")
    groups = () if args.readers is None else ("replicas",)
    for column in ("load", *groups, *figures):
        table.add_column(column, justify="right", no_wrap=True)
    for name, key, steady in runs:
        one, used = steady.report, _utilisation(name, key, busy_s)
        table.add_row(
            escape(key) if isinstance(key, str) else f"{key:g}/s",
            *(name for _ in groups),
            *("/".join(f"{1e3 * time_s:.3g}" for time_s in each.values()) or "–" for each in _times(one)),
            f"{one.tokens_per_s:.4g}",
            f"{one.slo_attainment:.1%}",
            f"{one.goodput:.3g}",
            "–" if used is None else f"{used:.0%}",
        )
    console.width = max(console.width, console.measure(table, options=console.options.update(width=1000)).maximum)
    console.print(table)  # a narrow terminal breaks its lines: no column is lost
    for name, key, steady in runs:
        if steady.is_overloaded:
            console.print(f"[red]overloaded[/] at {key:g}/s, {escape(name)}: the queue grows as long as requests come")


def _times(one: Report) -> tuple[dict[int, float], ...]:
    return one.ttft_s, one.tpot_s, one.itl_s
