"""What `plan-serving` and `simulate-serving` take alike: lengths of a load, an objective, a replica's limits."""

from __future__ import annotations

import argparse

from mlsys_lab.cli.subject import add_wires
from mlsys_lab.configs.transformer import TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.flops import defaults
from mlsys_lab.flops.memory import BYTES, element_bytes
from mlsys_lab.inference.engine.scheduler import SchedulerConfig
from mlsys_lab.inference.simulator import Objective, Service, log_normal


def add_lengths(load: argparse._ArgumentGroup) -> None:
    """Add the options that say how long requests are, and the seed of their draw."""
    for name, tokens, words in (
        ("--prompt", defaults.PROMPT, "mean tokens of a prompt (%(default)g)"),
        ("--answer", defaults.ANSWER, "mean tokens of an answer (%(default)g)"),
    ):
        load.add_argument(name, type=float, default=tokens, metavar="N", help=words)
    load.add_argument("--seed", type=int, default=0, metavar="N", help="another draw of the same load (0)")


def add_objective(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how soon tokens have to come: --slo-ttft and --slo-tpot."""
    slo = parser.add_argument_group("objective")
    for name, time_s, words in (
        ("--slo-ttft", defaults.TTFT_S, "longest time to the first token (%(default)g)"),
        ("--slo-tpot", defaults.TPOT_S, "longest mean time per token after it (%(default)g)"),
    ):
        slo.add_argument(name, type=float, default=time_s, metavar="S", help=words)


def add_replica(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the options of a replica, and return their group."""
    replica = parser.add_argument_group("replica")
    add_wires(replica)
    expert = "ranks that divide the experts, each with texts of its own: limits hold for each (1)"
    replica.add_argument("--expert", type=int, default=1, metavar="N", help=expert)
    for name, most, words in (
        ("--sequences", defaults.SEQUENCES, "most sequences of a step (%(default)s)"),
        ("--step-tokens", defaults.STEP_TOKENS, "most tokens of a step (%(default)s)"),
    ):
        replica.add_argument(name, type=int, default=most, metavar="N", help=words)
    replica.add_argument("--weights", default="bf16", metavar="FORMAT", help=f"one of {', '.join(BYTES)}")
    replica.add_argument("--cache", default="bf16", metavar="FORMAT", help="of the KV cache")
    efficiency = "fraction of the peaks that steps reach (%(default)g)"
    replica.add_argument("--efficiency", type=float, default=defaults.SERVING_EFFICIENCY, metavar="E", help=efficiency)
    return replica


def read_service(args: argparse.Namespace, config: TransformerConfig, rate: float) -> Service:
    """The load, the objective and the formats of the command line, at a rate in requests a second.

    Raises InputError where the mean request is longer than the model's context.
    """
    if args.prompt + args.answer > config.context:
        got = f"{args.prompt:g} + {args.answer:g} tokens"
        raise InputError(
            "requests longer than the context", got=got, expected=f"up to {config.context} ({config.name})"
        )
    return Service(
        rate,
        log_normal(args.prompt, args.answer, longest=config.context),
        Objective(args.slo_ttft, args.slo_tpot),
        weight_bytes=element_bytes(args.weights),
        cache_bytes=element_bytes(args.cache),
        efficiency=args.efficiency,
    )


def read_scheduler_config(args: argparse.Namespace) -> SchedulerConfig:
    """Read how many sequences and tokens a step of one replica may hold."""
    return SchedulerConfig(max_num_seqs=args.sequences, max_num_batched_tokens=args.step_tokens)
