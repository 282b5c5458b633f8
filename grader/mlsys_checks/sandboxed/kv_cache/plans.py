"""Plans of what comes to a cache and goes, and the models and caches on which they are played."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from mlsys_checks.sandboxed.spec import Arrays
from mlsys_lab.models.aging import AgingModel

START, DROP, CUT = -1, -2, -10
"""What a plan does with the sequence of a column: begin it, drop it, or with CUT - n keep its first n tokens."""
SHAPE = ("n_layers", "kv_heads", "window")
"""What a case may ask of its aging model, as numbers."""
FAILED, OTHER = 1, 2
"""What can come between a plan's first step and the next: a pass that is not counted, or one on another cache."""


def follow(plan: np.ndarray, cache: Any) -> Iterator[tuple[int, dict[int, int]]]:
    """Play a plan (steps, columns) on a cache: the steps in which tokens come, with how many by sequence.

    An entry above 0 is a number of new tokens, 0 is none, and the others are START, DROP and CUT - n.
    """
    numbers: dict[int, int] = {}
    for step, row in enumerate(plan.tolist()):
        for place, what in enumerate(row):
            if what == START:
                numbers[place] = cache.start()
            elif what == DROP:
                cache.drop(numbers.pop(place))
            elif what <= CUT:
                cache.truncate(numbers[place], CUT - what)
        if new := {numbers[place]: what for place, what in enumerate(row) if what > 0}:
            yield step, new


def kind_of_model(arrays: Arrays) -> dict[str, Any]:
    """How the case's aging model is built, as far as that is not as usual."""
    asked: dict[str, Any] = {name: int(arrays[name]) for name in SHAPE if name in arrays}
    return asked | ({"position": "learned"} if "learned" in arrays else {})


def make_model(arrays: Arrays) -> AgingModel:
    """The case's model, as old as it begins: the course's own, for one of the notebook's could hide passes."""
    return AgingModel(torch.from_numpy(arrays["weights"]), **kind_of_model(arrays))


def make_cache(artifact: Any, arrays: Arrays, model: Any, sequences: int) -> Any:
    """An empty cache for a model: a ring where the case names a chunk."""
    if "chunk" in arrays:
        return artifact.SlidingWindow(model, sequences=sequences, chunk=int(arrays["chunk"]))
    return artifact.Contiguous(model, sequences=sequences, capacity=int(arrays["capacity"]))


def tensors(arrays: Arrays, *names: str) -> list[torch.Tensor]:
    """Inputs as tensors on the arrays' own memory, so that changes show."""
    return [torch.from_numpy(arrays[name]) for name in names]
