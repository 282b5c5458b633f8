"""What `plan-serving` and `simulate-serving` take alike: lengths of a load, an objective, a replica's limits."""

from __future__ import annotations

import argparse

from mlsys_lab.cli.subject import add_wires
from mlsys_lab.flops.memory import BYTES, element_bytes
from mlsys_lab.inference.engine.scheduler import Limits
from mlsys_lab.inference.simulator import Objective, Service, log_normal


def add_lengths(load: argparse._ArgumentGroup) -> None:
    """Add the options that say how long requests are, and the seed of their draw."""
    load.add_argument("--prompt", type=float, default=1000, metavar="N", help="mean tokens of a prompt (1000)")
    load.add_argument("--answer", type=float, default=200, metavar="N", help="mean tokens of an answer (200)")
    load.add_argument("--seed", type=int, default=0, metavar="N", help="another draw of the same load (0)")


def add_objective(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how soon tokens have to come: --slo-ttft and --slo-tpot."""
    slo = parser.add_argument_group("objective")
    slo.add_argument("--slo-ttft", type=float, default=1.0, metavar="S", help="longest time to the first token (1)")
    slo.add_argument("--slo-tpot", type=float, default=0.1, metavar="S", help="longest mean time per token after (0.1)")


def add_replica(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the options of a replica, and return their group."""
    replica = parser.add_argument_group("replica")
    add_wires(replica)
    expert = "ranks that divide the experts, each with texts of its own: limits hold for each (1)"
    replica.add_argument("--expert", type=int, default=1, metavar="N", help=expert)
    replica.add_argument("--sequences", type=int, default=256, metavar="N", help="most sequences of a step (256)")
    replica.add_argument("--step-tokens", type=int, default=1024, metavar="N", help="most tokens of a step (1024)")
    replica.add_argument("--weights", default="bf16", metavar="FORMAT", help=f"one of {', '.join(BYTES)}")
    replica.add_argument("--cache", default="bf16", metavar="FORMAT", help="of the KV cache")
    replica.add_argument("--efficiency", type=float, default=0.6, metavar="E", help="share of the peaks reached (0.6)")
    return replica


def read_service(args: argparse.Namespace, rate: float) -> Service:
    """The load, the objective and the formats of the command line, at a rate in requests a second."""
    return Service(
        rate,
        log_normal(args.prompt, args.answer),
        Objective(args.slo_ttft, args.slo_tpot),
        weight_bytes=element_bytes(args.weights),
        cache_bytes=element_bytes(args.cache),
        efficiency=args.efficiency,
    )


def read_limits(args: argparse.Namespace) -> Limits:
    """Read the most tokens and sequences that a step of one replica may hold."""
    return Limits(sequences=args.sequences, tokens=args.step_tokens)
