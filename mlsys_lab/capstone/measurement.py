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
from mlsys_lab.capstone.counting import CountingTransformer, RankCounts, count_rank, replace_names
from mlsys_lab.capstone.model import GPT, check_weights
from mlsys_lab.capstone.sheet import GRADIENTS, LOSS, NUM_SCALARS, SCALARS, WEIGHTS, Kind, Serving, Sheet, check_run
from mlsys_lab.capstone.stack import Stack
from mlsys_lab.capstone.training import RankInput, train_rank
from mlsys_lab.comm import Rank, run
from mlsys_lab.configs import TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.models import Transformer
from mlsys_lab.models.training import Batches, Tokens, one_thread, windows
from mlsys_lab.parallel.train.trainer import TrainConfig

TIMED_STEPS = 3


@dataclass(frozen=True)
class Comparison:
    """A predicted number next to the measured one. `is_equal` is of counts, None of estimates and seconds."""

    name: str
    unit: str
    kind: Kind
    predicted: float
    measured: float
    source: str

    @property
    def is_equal(self) -> bool | None:
        """Whether prediction and count are the same number."""
        return self.predicted == self.measured if self.kind == "count" else None

    def __str__(self) -> str:
        digits = ",.6g" if self.kind == "seconds" else ",.0f"
        verdict = {True: "equal", False: "DIFFERS", None: self.kind}[self.is_equal]
        return f"{self.name:44} {self.predicted:>16{digits}} {self.measured:>16{digits}} {self.unit:8}  {verdict}"


def compare(sheet: Sheet, measured: Mapping[str, float]) -> list[Comparison]:
    """Rows of a sheet with what was measured; InputError for a sheet without a row that was measured, or one more."""
    rows = {row.name: row for row in sheet.rows}
    if missing := [name for name in measured if name not in rows]:
        raise InputError("an incomplete sheet", got=f"no row {missing[0]!r}")
    if extra := [name for name in rows if name not in measured]:
        raise InputError("a sheet with a row that was not measured", got=repr(extra[0]))
    return [Comparison(name, r.unit, r.kind, r.predicted, measured[name], r.source) for name, r in rows.items()]


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
    """Run a few training steps on p ranks and generate one sequence; return what the rows of a sheet predicted.

    Ranks are threads that take turns. Raises InputError for weights that are not float32, and as `predict` does.
    """
    check_run(config, train_config, world_size, serving)
    check_weights(config, weights)
    if dtypes := sorted({str(one.dtype) for one in weights.values()} - {"torch.float32"}):
        raise InputError("the sheet is of float32 weights", got=dtypes[0])
    inputs = [RankInput(stack, config, weights, ids, replace(train_config, steps=1), None, 1)] * world_size
    timed = [replace(one, train=replace(train_config, steps=TIMED_STEPS), until=TIMED_STEPS) for one in inputs]
    with one_thread():
        counts, _ = run(count_rank, inputs)
        return {
            **_counted(counts, weights),
            "activations, rank 0": _activation_bytes(inputs[0], world_size),
            **measure_serving(stack, config, weights, ids, serving),
            "products of a training step": sum(one.products_s for one in counts),
            "communication of a training step": run(time_communication, [inputs[0]] * world_size).results[0],
            "training step": run(time_steps, timed).results[0],
        }


def _counted(counts: list[RankCounts], weights: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """Counts of all ranks, by the names of the sheet."""
    measured: dict[str, float] = {
        "FLOPs of a training step": sum(one.flops for one in counts),
        "parameters": sum(one.numel() for one in weights.values()),
        **{f"{name}, rank 0": size for name, size in counts[0].kept.items()},
    }
    for phase in (GRADIENTS, WEIGHTS, LOSS, SCALARS):
        sent = [array for one in counts for array in one.sent if array.phase == phase]
        measured[f"{phase}: elements sent"] = sum(array.elements for array in sent)
        if phase in (GRADIENTS, WEIGHTS):
            measured[f"{phase}: bytes sent"] = sum(array.size_bytes for array in sent)
            measured[f"{phase}: messages"] = len(sent)
    return measured


def _activation_bytes(given: RankInput, world_size: int) -> int:
    """Bytes that the engine keeps of a forward pass of rank 0 for the backward pass."""
    batches = Batches(len(given.ids), given.train.batch_size, given.train.seq_len, given.train.seed)
    sequences = windows(given.ids, next(iter(batches)), given.train.seq_len)
    sequences = sequences[: split_batch(given.train.batch_size, world_size)[0]]
    model = GPT(given.stack.engine, given.config, given.weights)
    with track_memory() as memory:
        loss = model.loss(sequences)
        kept: int = memory.current_bytes
    del loss
    return kept


def time_steps(rank: Rank, given: RankInput) -> float:
    """Median seconds between the starts of this rank's steps."""
    starts, layer = [], given.stack.data_parallel

    def loss_weights(*args: Any) -> Any:
        starts.append(time.perf_counter())
        return layer.loss_weights(*args)

    train_rank(rank, replace(given, stack=replace_names(given.stack, loss_weights=loss_weights)))
    return statistics.median(end - start for start, end in pairwise(starts))


def time_communication(rank: Rank, given: RankInput) -> float:
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
        "FLOPs of the prefill's layers": prefill_flops,
        "FLOPs of the decode steps": counting.flops + counting.head_flops,
        "weights read by the decode steps": num_steps * weight_bytes,
        "KV cache read by the decode steps": counting.read_bytes,
        "KV cache written by the decode steps": counting.written_bytes,
        "decode steps, at least": decode_s,
    }
