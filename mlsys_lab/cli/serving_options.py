"""Options of `plan-serving` and `simulate-serving`: lengths of requests, the SLO, a replica's limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mlsys_lab.cli.app import option
from mlsys_lab.cli.options import ModelOptions
from mlsys_lab.configs.transformer import TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.flops import defaults
from mlsys_lab.flops.memory import BYTES, element_bytes
from mlsys_lab.inference.engine.scheduler import SchedulerConfig
from mlsys_lab.inference.simulator import Objective, Service, log_normal


@dataclass(kw_only=True)
class ServingOptions(ModelOptions):
    """What serves, how long requests are, and how soon tokens must come."""

    prompt: Annotated[float, option("mean prompt tokens", "N", "Load")] = defaults.PROMPT
    answer: Annotated[float, option("mean output tokens", "N", "Load")] = defaults.ANSWER
    seed: Annotated[int, option("seed of the load that is drawn", "N", "Load")] = 0
    slo_ttft: Annotated[float, option("longest time to the first token", "S", "SLO")] = defaults.TTFT_S
    slo_tpot: Annotated[float, option("longest mean time per token after it", "S", "SLO")] = defaults.TPOT_S
    expert: Annotated[int, option("expert-parallel ranks; the limits hold for each", "N", "Replica")] = 1
    sequences: Annotated[int, option("maximum number of sequences per step", "N", "Replica")] = defaults.SEQUENCES
    step_tokens: Annotated[int, option("maximum number of tokens per step", "N", "Replica")] = defaults.STEP_TOKENS
    weights: Annotated[str, option(f"one of {', '.join(BYTES)}", "FORMAT", "Replica")] = "bf16"
    cache: Annotated[str, option("format of the KV cache", "FORMAT", "Replica")] = "bf16"
    efficiency: Annotated[float, option("fraction of the peaks that steps reach", "E", "Replica")] = (
        defaults.SERVING_EFFICIENCY
    )


def read_service(args: ServingOptions, config: TransformerConfig, rate: float) -> Service:
    """Read the load, the SLO and the formats, at a rate in requests per second.

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


def read_scheduler_config(args: ServingOptions) -> SchedulerConfig:
    """Read the limits of one replica's step."""
    return SchedulerConfig(max_num_seqs=args.sequences, max_num_batched_tokens=args.step_tokens)
