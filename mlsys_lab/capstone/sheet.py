"""The prediction sheet: what a run of the capstone costs, computed by the learner's own functions before it starts.

Lab 16's functions fill it in from those of labs 05, 07 and 10. `COSTS` says what each of their numbers is, and whether
a count of the run must equal it:

- A count must.
- An estimate need not: what a backward pass keeps depends on the engine, and what ranks send to share token counts and
  the gradients' norm on lab 08's functions.
- Seconds are those of ranks that take turns on one thread, and stand next to the clock.

Counts are of all ranks of a step, and of all decode steps; bytes that are kept are those of rank 0, whose shard is no
smaller than another's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, NamedTuple

from mlsys_lab.capstone.functions import call
from mlsys_lab.capstone.job import Calibration, Serving
from mlsys_lab.capstone.stack import Stack
from mlsys_lab.capstone.weights import check_config
from mlsys_lab.configs import TrainConfig, TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.validation import require_integer

Kind = Literal["count", "estimate", "seconds"]
GRADIENTS, WEIGHTS, LOSS, SCALARS = "gradient", "weight", "loss", "scalar"
"""Phases of a training step in which ranks send: the reduce-scatter, the all-gather, and all-reduces of numbers."""
NUM_SCALARS = 3
"""Numbers that a step adds up over all ranks next to the gradients: tokens, squared norm of the gradients, and loss."""


class Cost(NamedTuple):
    """A number of the sheet: what it is, its unit, its kind, and the layer's function behind it."""

    name: str
    unit: str
    kind: Kind
    source: str


COSTS: dict[str, Cost] = {
    "training_flops": Cost("FLOPs of a training step", "FLOP", "count", "arithmetic.step_products"),
    "parameters": Cost("parameters", "elements", "count", "arithmetic.count_parameters"),
    "weight_bytes": Cost("weights, rank 0", "bytes", "count", "arithmetic.states"),
    "gradient_bytes": Cost("gradients, rank 0", "bytes", "count", "arithmetic.states"),
    "master_bytes": Cost("optimizer's copy of its shard, rank 0", "bytes", "count", "arithmetic.states"),
    "optimizer_bytes": Cost("optimizer states, rank 0", "bytes", "count", "arithmetic.states"),
    "activation_bytes": Cost("activations, rank 0", "bytes", "estimate", "arithmetic.activation_bytes"),
    "peak_bytes": Cost("peak memory, rank 0", "bytes", "estimate", "arithmetic.states, activation_bytes"),
    **{
        f"{phase}_{key}": Cost(f"{collective}: {what}", unit, "count", source)
        for phase, collective in ((GRADIENTS, "reduce-scatter of gradients"), (WEIGHTS, "all-gather of weights"))
        for key, what, unit, source in (
            ("elements_sent", "elements sent", "elements", "collectives.ring_elements"),
            ("bytes_sent", "bytes sent", "bytes", "collectives.ring_elements"),
            ("messages", "messages", "messages", "collectives.ring_elements"),
        )
    },
    "loss_elements_sent": Cost(
        "all-reduce of the loss: elements sent", "elements", "count", "collectives.ring_elements"
    ),
    "scalar_elements_sent": Cost(
        "tokens and gradient norm: elements sent", "elements", "estimate", "collectives.ring_elements"
    ),
    "prefill_flops": Cost("FLOPs of the prefill's layers", "FLOP", "count", "arithmetic.forward_products"),
    "decode_flops": Cost("FLOPs of the decode steps", "FLOP", "count", "cache.step_cost"),
    "decode_weight_bytes": Cost("weights read by the decode steps", "bytes", "count", "cache.step_cost"),
    "decode_cache_read_bytes": Cost("KV cache read by the decode steps", "bytes", "count", "cache.step_cost"),
    "decode_cache_written_bytes": Cost("KV cache written by the decode steps", "bytes", "count", "cache.step_cost"),
    "products_s": Cost("products of a training step", "s", "seconds", "arithmetic.predict_training_step_s"),
    "communication_s": Cost("communication of a training step", "s", "seconds", "collectives.all_reduce_s"),
    "training_step_s": Cost("training step", "s", "seconds", "arithmetic.predict_training_step_s"),
    "decode_s": Cost("decode steps, at least", "s", "seconds", "cache.least_time"),
}
"""The numbers of a sheet by key, in the order in which they are shown."""


@dataclass(frozen=True)
class Sheet:
    """Predicted numbers, by the keys of `COSTS`; InputError for a missing one, an unknown one, or no number."""

    numbers: Mapping[str, float]

    def __post_init__(self) -> None:
        if missing := [key for key in COSTS if key not in self.numbers]:
            raise InputError("an incomplete sheet", got=f"no {missing[0]!r}")
        if extra := [key for key in self.numbers if key not in COSTS]:
            raise InputError("a sheet with an unknown number", got=repr(extra[0]))
        for key, value in self.numbers.items():
            if not isinstance(value, Real) or isinstance(value, bool) or not math.isfinite(value):
                raise InputError(f"the sheet's {key} is no number", got=repr(value))

    def __getitem__(self, key: str) -> float:
        return self.numbers[key]

    def to_json(self) -> str:
        """All numbers as JSON."""
        return json.dumps(dict(self.numbers), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Sheet:
        """Read what `to_json` wrote; InputError for anything else."""
        try:
            return cls(dict(json.loads(text)))
        except (ValueError, TypeError) as error:
            raise InputError("not a prediction sheet", got=" ".join(str(error).split())) from None


def check_training(config: TransformerConfig, train_config: TrainConfig, world_size: int) -> None:
    """Raise InputError for a training run that the capstone cannot make: another model, idle ranks, long sequences."""
    check_config(config)
    require_integer("world_size", world_size)
    if train_config.batch_size < world_size:
        raise InputError("a rank without sequences", got=f"{train_config.batch_size} for {world_size} ranks")
    if train_config.seq_len > config.context:
        raise InputError("tokens exceed the context", got=train_config.seq_len, expected=f"up to {config.context}")


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
    check_training(config, train_config, world_size)
    serving.check(config)
    numbers: dict[str, Any] = {}
    numbers |= call(stack, "capstone", "predict_training", stack, config, train_config, world_size)
    numbers |= call(stack, "capstone", "predict_messages", stack, numbers.get("parameters"), world_size)
    numbers |= call(stack, "capstone", "predict_serving", stack, config, serving)
    numbers |= call(stack, "capstone", "predict_seconds", stack, config, train_config, world_size, calibration, serving)
    return Sheet(numbers)
