"""The prediction sheet: what a run of the capstone costs, computed by the learner's own functions before it starts.

Labs 05, 07 and 10 do the counting; this module adds up ranks and steps, and turns bf16 into the float32 that the
capstone runs in. What each number is made of:

- Unchanged from the learner's function: FLOPs of a training step and parameters (lab 05), FLOPs and bytes of decode
  steps (lab 10, which takes the bytes of a number), elements that add up the loss (lab 07), and lab 05's fp32 master
  copy and moments, which are the optimizer's copy of its shard and its states here.
- Halved: lab 07's elements and steps of an all-reduce, as those of a reduce-scatter and of an all-gather.
- Times 2: lab 05's weights and gradients, which it counts in bf16, and its activations except the loss's fp32
  probabilities. Times 4: elements as bytes.
- Without the head: lab 05's prefill. It computes logits of every token of a prompt; a cache may do with the last.
- An estimate: activations. What a backward pass keeps depends on the engine; lab 05 counts fused norms and softmax,
  and the capstone's are made of the engine's elementary operations, which keep more. And what ranks send to share
  token counts and the gradients' norm, which lab 08 leaves to its functions.
- Seconds: lab 05's step, in which elementwise work is that of a model with ReLU and learned positions; lab 07's
  all-reduces; lab 10's bound. They are those of ranks that take turns on one thread.

Counts are of all ranks of a step, and of all decode steps; bytes that are kept are those of rank 0, whose shard is no
smaller than another's.

Dimension letters: B sequences of a batch, T tokens of a sequence, V vocabulary, p ranks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from mlsys_lab.capstone.calibration import Calibration, split_batch
from mlsys_lab.capstone.functions import Functions
from mlsys_lab.capstone.model import check_config
from mlsys_lab.capstone.stack import Stack
from mlsys_lab.configs import TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.parallel.train.trainer import TrainConfig
from mlsys_lab.validation import require_integer

Kind = Literal["count", "estimate", "seconds"]
ELEMENT_BYTES = 4
FP32 = {"weight_bytes": ELEMENT_BYTES, "cache_bytes": ELEMENT_BYTES}
GRADIENTS, WEIGHTS = "reduce-scatter of gradients", "all-gather of weights"
LOSS, SCALARS = "all-reduce of the loss", "tokens and gradient norm"
"""Phases of a training step in which ranks send."""
NUM_SCALARS = 3
"""Numbers that a step adds up over all ranks next to the gradients: tokens, squared norm of the gradients, and loss."""


@dataclass(frozen=True)
class Serving:
    """One sequence to generate: `prompt_tokens` in one prefill, `new_tokens`, of which the prefill gives the first."""

    prompt_tokens: int
    new_tokens: int

    def check(self, config: TransformerConfig) -> None:
        """Raise InputError for sizes below one, and for a sequence that exceeds the context."""
        require_integer("prompt_tokens", self.prompt_tokens)
        require_integer("new_tokens", self.new_tokens)
        length = self.prompt_tokens + self.new_tokens
        if length > config.context:
            raise InputError("prompt and new tokens exceed the context", got=length, expected=f"up to {config.context}")

    def decode_steps(self) -> list[tuple[int, int]]:
        """(new, cached) tokens of each step after the prefill."""
        return [(1, self.prompt_tokens + step) for step in range(self.new_tokens - 1)]


def check_run(config: TransformerConfig, train_config: TrainConfig, world_size: int, serving: Serving) -> None:
    """Raise InputError for a run that the capstone cannot make: another model, idle ranks, a sequence too long."""
    check_config(config)
    require_integer("world_size", world_size)
    if train_config.batch_size < world_size:
        raise InputError("a rank without sequences", got=f"{train_config.batch_size} for {world_size} ranks")
    serving.check(config)


@dataclass(frozen=True)
class Row:
    """A predicted number. `kind` says whether a count must equal it; `source` is the layer's function behind it."""

    name: str
    unit: str
    predicted: float
    kind: Kind
    source: str


@dataclass(frozen=True)
class Sheet:
    """Predicted rows, by name."""

    rows: tuple[Row, ...]

    def __getitem__(self, name: str) -> Row:
        for row in self.rows:
            if row.name == name:
                return row
        raise InputError("an incomplete sheet", got=f"no row {name!r}")


def predict(
    stack: Stack,
    config: TransformerConfig,
    train_config: TrainConfig,
    world_size: int,
    calibration: Calibration,
    *,
    serving: Serving,
) -> Sheet:
    """Fill in the sheet for a training step of p ranks and for one generated sequence, without running either.

    Counts depend on the configurations alone, seconds also on the calibration. Raises InputError for a configuration
    other than the capstone's, for fewer sequences in a batch than ranks, for a layer whose function is missing, raises
    or returns no number, and for a calibration that was made for products of other shapes.
    """
    check_run(config, train_config, world_size, serving)
    functions = Functions(stack)
    return Sheet(
        (
            *training_rows(functions, config, train_config, world_size),
            *message_rows(functions, functions.number("arithmetic", "count_parameters", config), world_size),
            *serving_rows(functions, config, serving),
            *seconds_rows(functions, config, train_config, world_size, calibration, serving),
        )
    )


def training_rows(
    functions: Functions, config: TransformerConfig, train_config: TrainConfig, world_size: int
) -> list[Row]:
    """FLOPs of a step of all ranks, and bytes that rank 0 keeps."""
    B, T = train_config.batch_size, train_config.seq_len
    products = functions.call("arithmetic", "step_products", config, T, B)
    flops = functions.number("arithmetic", "flops_of", products)
    parameters = functions.number("arithmetic", "count_parameters", config)
    rows = [
        Row("FLOPs of a training step", "FLOP", flops, "count", "arithmetic.step_products"),
        Row("parameters", "elements", parameters, "count", "arithmetic.count_parameters"),
    ]
    for name, of, factor in (
        ("weights", "weights", ELEMENT_BYTES // 2),
        ("gradients", "gradients", ELEMENT_BYTES // 2),
        ("optimizer's copy of its shard", "master", 1),
        ("optimizer states", "moments", 1),
    ):
        size = functions.number("arithmetic", "states", parameters, data=world_size, zero_stage=1, of=of)
        rows.append(Row(f"{name}, rank 0", "bytes", factor * size, "count", "arithmetic.states"))
    batch = split_batch(B, world_size)[0]
    kept = functions.number("arithmetic", "activation_bytes", config, T, batch)
    kept = 2 * kept - batch * T * ELEMENT_BYTES * config.vocab_size  # the loss's probabilities are in fp32 already
    return [*rows, Row("activations, rank 0", "bytes", kept, "estimate", "arithmetic.activation_bytes")]


def message_rows(functions: Functions, parameters: int, world_size: int) -> list[Row]:
    """What all ranks send in a step: a ring's reduce-scatter, its all-gather, and all-reduces of single numbers.

    Lab 07 counts an all-reduce. Over all ranks, each of its two halves sends half of the elements. Over a link with a
    latency of one second and no limit of bandwidth, its seconds are the messages that a rank sends. How the ranks share
    tokens and norm is up to lab 08's functions, so that what they send is an estimate.
    """
    ring = "collectives.ring_elements"
    each = functions.total("collectives", "ring_elements", parameters, world_size) / 2
    scalar = functions.total("collectives", "ring_elements", 1, world_size)
    link = functions.call("collectives", "LinkCost", 1.0, math.inf)
    messages = world_size * functions.number("collectives", "all_reduce_s", "ring", world_size, ELEMENT_BYTES, link)
    rows = []
    for phase in (GRADIENTS, WEIGHTS):
        rows += [
            Row(f"{phase}: elements sent", "elements", each, "count", ring),
            Row(f"{phase}: bytes sent", "bytes", ELEMENT_BYTES * each, "count", ring),
            Row(f"{phase}: messages", "messages", messages / 2, "count", "collectives.all_reduce_s"),
        ]
    return [
        *rows,
        Row(f"{LOSS}: elements sent", "elements", scalar, "count", ring),
        Row(f"{SCALARS}: elements sent", "elements", (NUM_SCALARS - 1) * scalar, "estimate", ring),
    ]


def serving_rows(functions: Functions, config: TransformerConfig, serving: Serving) -> list[Row]:
    """FLOPs of prefill and decode steps, and bytes of weights and KV cache that all decode steps move."""
    products = functions.call("arithmetic", "forward_products", config, serving.prompt_tokens)
    prefill = functions.number("arithmetic", "flops_of", products)
    prefill -= 2 * config.d_model * config.vocab_size * serving.prompt_tokens
    rows = [Row("FLOPs of the prefill's layers", "FLOP", prefill, "count", "arithmetic.forward_products")]
    for name, unit, of in (
        ("FLOPs of the decode steps", "FLOP", "flops"),
        ("weights read by the decode steps", "bytes", "weight_bytes"),
        ("KV cache read by the decode steps", "bytes", "cache_read_bytes"),
        ("KV cache written by the decode steps", "bytes", "cache_written_bytes"),
    ):
        total = sum(
            functions.number("cache", "step_cost", config, [part], of=of, **FP32) for part in serving.decode_steps()
        )
        rows.append(Row(name, unit, total, "count", "cache.step_cost"))
    return rows


def seconds_rows(
    functions: Functions,
    config: TransformerConfig,
    train_config: TrainConfig,
    world_size: int,
    calibration: Calibration,
    serving: Serving,
) -> list[Row]:
    """Seconds of a training step's products, of its communication and of all of it, and the bound of decoding."""
    T, sizes = train_config.seq_len, split_batch(train_config.batch_size, world_size)
    for batch in dict.fromkeys(sizes):
        for _, _, m, k, n in functions.call("arithmetic", "step_products", config, T, batch):
            if (m, k, n) not in calibration.rates:
                got = f"no rate of a ({m}, {k}) by a ({k}, {n}) matrix"
                raise InputError("a calibration of another shape", got=got, help="calibrate for this configuration")

    def compute_s(unit_s: float) -> float:
        name = "predict_training_step_s"
        parts = (functions.number("arithmetic", name, config, T, size, calibration.rates, unit_s) for size in sizes)
        return sum(parts, 0.0)

    products_s, computed_s = compute_s(0.0), compute_s(calibration.unit_s)
    parameters = functions.number("arithmetic", "count_parameters", config)
    link = functions.call("collectives", "LinkCost", calibration.latency_s, calibration.bytes_per_s)
    all_reduces = [ELEMENT_BYTES * parameters, *[ELEMENT_BYTES] * NUM_SCALARS]
    communication_s = world_size * sum(
        functions.number("collectives", "all_reduce_s", "ring", world_size, size, link) for size in all_reduces
    )
    machine = functions.call("cache", "Machine", calibration.peak_flops_per_s, calibration.memory_bytes_per_s)
    decode_s = 0.0
    for part in serving.decode_steps():
        work = functions.call("cache", "step_cost", config, [part], **FP32)
        decode_s += functions.number("cache", "least_time", work, machine, of="time_s")
    step = "arithmetic.predict_training_step_s"
    return [
        Row("products of a training step", "s", products_s, "seconds", step),
        Row("communication of a training step", "s", communication_s, "seconds", "collectives.all_reduce_s"),
        Row("training step", "s", computed_s + communication_s, "seconds", f"{step}, collectives.all_reduce_s"),
        Row("decode steps, at least", "s", decode_s, "seconds", "cache.least_time"),
    ]
