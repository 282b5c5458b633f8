"""What a prediction sheet predicted, counted and timed in the run itself, and both next to each other.

Counts and seconds come from separate runs: counting takes time.

Dimension letters: D tokens of the data.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch

from mlsys_lab.benchmark.memory import track_memory
from mlsys_lab.capstone.calibration import split_batch
from mlsys_lab.capstone.counting import CountingTransformer, RankCounts, count_rank
from mlsys_lab.capstone.job import Serving, TrainJob
from mlsys_lab.capstone.sheet import (
    COSTS,
    GRADIENTS,
    LOSS,
    NUM_SCALARS,
    SCALARS,
    WEIGHTS,
    Cost,
    Sheet,
    check_training,
)
from mlsys_lab.capstone.stack import Stack
from mlsys_lab.capstone.swaps import replace_names
from mlsys_lab.capstone.weights import check_weights
from mlsys_lab.comm import Rank, run
from mlsys_lab.configs import TrainConfig, TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.models import Transformer
from mlsys_lab.models.training import Batches, Tokens, one_thread, windows

TIMED_STEPS = 3


@dataclass(frozen=True)
class Comparison:
    """A predicted number next to the measured one. `is_equal` is of counts, None of estimates and seconds."""

    key: str
    predicted: float
    measured: float

    @property
    def cost(self) -> Cost:
        """What the number is."""
        return COSTS[self.key]

    @property
    def is_equal(self) -> bool | None:
        """Whether prediction and count are the same number."""
        return self.predicted == self.measured if self.cost.kind == "count" else None

    def __str__(self) -> str:
        cost, digits = self.cost, ",.6g" if self.cost.kind == "seconds" else ",.0f"
        verdict = {True: "equal", False: "DIFFERS", None: cost.kind}[self.is_equal]
        return f"{cost.name:44} {self.predicted:>16{digits}} {self.measured:>16{digits}} {cost.unit:8}  {verdict}"


def compare(sheet: Sheet, measured: Mapping[str, float]) -> list[Comparison]:
    """Numbers of a sheet next to those that were measured, in the sheet's order."""
    return [Comparison(key, sheet[key], measured[key]) for key in COSTS]


def measure(
    stack: Stack,
    config: TransformerConfig,
    weights: Mapping[str, torch.Tensor],
    ids: Tokens,
    train_config: TrainConfig,
    world_size: int,
    *,
    serving: Serving,
) -> dict[str, float]:
    """Run a few training steps on p ranks and generate one sequence; return what the numbers of a sheet predicted.

    Ranks are threads that take turns. Raises InputError for weights that are not float32, and as `predict` does.
    """
    check_training(config, train_config, world_size)
    serving.check(config)
    check_weights(config, weights)
    if dtypes := sorted({str(one.dtype) for one in weights.values()} - {"torch.float32"}):
        raise InputError("the sheet is of float32 weights", got=dtypes[0])
    job = TrainJob(stack, config, weights, ids, replace(train_config, steps=1), None, 1)
    timed = replace(job, train=replace(train_config, steps=TIMED_STEPS), until=TIMED_STEPS)
    with one_thread():
        counts, _ = run(count_rank, [job] * world_size)
        activation_bytes, pass_bytes = _measure_memory(job, world_size)
        counted = _counted(counts, weights)
        states = sum(counted[f"{name}_bytes"] for name in ("weight", "master", "optimizer"))
        return {
            **counted,
            "activation_bytes": activation_bytes,
            "peak_bytes": states + pass_bytes,
            **measure_serving(stack, config, weights, ids, serving),
            "products_s": sum(one.products_s for one in counts),
            "communication_s": run(time_communication, [job] * world_size).results[0],
            "training_step_s": run(time_steps, [timed] * world_size).results[0],
        }


def _counted(counts: list[RankCounts], weights: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """Counts of all ranks, by the keys of the sheet."""
    measured: dict[str, float] = {
        "training_flops": sum(one.flops for one in counts),
        "parameters": sum(one.numel() for one in weights.values()),
        **counts[0].kept,
    }
    for phase in (GRADIENTS, WEIGHTS, LOSS, SCALARS):
        sent = [array for one in counts for array in one.sent if array.phase == phase]
        measured[f"{phase}_elements_sent"] = sum(array.elements for array in sent)
        if phase in (GRADIENTS, WEIGHTS):
            measured[f"{phase}_bytes_sent"] = sum(array.size_bytes for array in sent)
            measured[f"{phase}_messages"] = len(sent)
    return measured


def _measure_memory(job: TrainJob, world_size: int) -> tuple[int, int]:
    """Bytes of rank 0 that the engine keeps of a forward pass, and the most that both passes allocate."""
    batches = Batches(len(job.ids), job.train.batch_size, job.train.seq_len, job.train.seed)
    sequences = windows(job.ids, next(iter(batches)), job.train.seq_len)
    sequences = sequences[: split_batch(job.train.batch_size, world_size)[0]]
    model = job.stack.capstone.GPT(job.stack.engine, job.config, job.weights)
    with track_memory() as memory:
        loss = model.loss(sequences)
        kept: int = memory.current_bytes
        loss.backward()
    return kept, memory.peak_bytes


def time_steps(rank: Rank, given: TrainJob) -> float:
    """Median seconds between the starts of this rank's steps."""
    starts, layer = [], given.stack.data_parallel

    def loss_weights(*args: Any) -> Any:
        starts.append(time.perf_counter())
        return layer.loss_weights(*args)

    stack = replace_names(given.stack, "data_parallel", loss_weights=loss_weights)
    given.stack.capstone.train_rank(rank, replace(given, stack=stack))
    return statistics.median(end - start for start, end in pairwise(starts))


def time_communication(rank: Rank, given: TrainJob) -> float:
    """Seconds of a step's collectives alone, the least of a few."""
    collectives, seconds = given.stack.collectives, []
    gradients, scalar = torch.zeros(sum(one.numel() for one in given.weights.values())), torch.zeros(1)
    for _ in range(TIMED_STEPS):
        start = time.perf_counter()
        collectives.all_gather(rank, collectives.reduce_scatter(rank, gradients))
        for _ in range(NUM_SCALARS):
            collectives.all_reduce(rank, scalar)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def measure_serving(
    stack: Stack, config: TransformerConfig, weights: Mapping[str, torch.Tensor], ids: Tokens, serving: Serving
) -> dict[str, float]:
    """Generate a sequence through the stack's KV cache: once counted, once timed."""
    counting, plain = CountingTransformer(config).eval(), Transformer(config).eval()
    for model in (counting, plain):
        for name, weight in model.named_parameters():
            weight.data = weights[name].detach()
    prompt, num_steps = [int(token) for token in ids[: serving.prompt_tokens]], len(serving.decode_steps())

    def start(model: Transformer) -> tuple[Any, int]:
        cache = stack.cache.Contiguous(model, sequences=1, capacity=serving.prompt_tokens + serving.new_tokens)
        return cache, cache.start()

    def extend(model: Transformer, cache: Any, sequence: int, tokens: list[int]) -> list[int]:
        return [int(stack.cache.extend(model, cache, {sequence: tokens})[-1].argmax())]

    cache, sequence = start(counting)
    counting.reset(cache, sequence)
    with counting.counted():
        tokens = extend(counting, cache, sequence, prompt)
    prefill_flops = counting.flops
    counting.reset(cache, sequence)
    with counting.counted():
        for _ in range(num_steps):
            tokens = extend(counting, cache, sequence, tokens)

    cache, sequence = start(plain)
    tokens = extend(plain, cache, sequence, prompt)
    started_s = time.perf_counter()
    for _ in range(num_steps):
        tokens = extend(plain, cache, sequence, tokens)
    decode_s = time.perf_counter() - started_s
    embedding = 0 if config.tied else plain.embedding.weight.nbytes
    weight_bytes = sum(one.nbytes for one in plain.parameters()) - embedding
    return {
        "prefill_flops": prefill_flops,
        "decode_flops": counting.flops + counting.head_flops,
        "decode_weight_bytes": num_steps * weight_bytes,
        "decode_cache_read_bytes": counting.read_bytes,
        "decode_cache_written_bytes": counting.written_bytes,
        "decode_s": decode_s,
    }
