"""FLOPs, bytes and seconds of a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.values import number, pair, whole, word

SIZES = ("n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim", "d_ff", "vocab_size", "context")
"""A configuration is an int64 array of these, and of whether the head is tied."""
BOUNDS = ("compute", "memory")


def fields_of(config: np.ndarray) -> dict[str, Any]:
    """The sizes of a configuration's array by name, and whether its head is tied."""
    *sizes, tied = config.tolist()
    return dict(zip(SIZES, sizes, strict=True)) | {"tied": bool(tied)}


def each_call(arrays: Arrays) -> Iterator[tuple[str, Arrays]]:
    """The calls of a case, each with what its answers' names end in: as it is, then with one array in another's place.

    An array called "window of call 2" is the window of that call, whose other arrays are those of the first.
    """
    yield "", arrays
    for key, value in arrays.items():
        name, of, call = key.partition(" of ")
        if of:
            yield of + call, {**arrays, name: value}


def _asked(artifact: Any, arrays: Arrays) -> tuple[Any, list[tuple[int, int]], int | None]:
    steps: list[Sequence[int]] = arrays["parts"].tolist()
    config = artifact.TransformerConfig("a model", **fields_of(arrays["config"]))
    return config, [(new, past) for new, past in steps], int(arrays["window"]) or None


def step_work(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `step_work`: FLOPs and bytes of each call."""
    answers: Arrays = {}
    for call, given in each_call(arrays):
        config, steps, window = _asked(artifact, given)
        got = artifact.step_work(config, steps, window, int(given["element_bytes"]))
        flops, moved = pair("step_work", got, "FLOPs", "bytes")
        answers |= {f"FLOPs{call}": whole("FLOPs", flops), f"bytes{call}": whole("bytes", moved)}
    return answers


def predict_step(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `predict_step_s`: seconds of each call, and what binds."""
    answers: Arrays = {}
    for call, given in each_call(arrays):
        config, steps, window = _asked(artifact, given)
        machine = artifact.Machine(float(given["flops_per_s"]), float(given["bytes_per_s"]))
        got = artifact.predict_step_s(config, steps, machine, window, int(given["element_bytes"]))
        seconds, bound = pair("predict_step_s", got, "seconds", "what binds")
        answers |= {f"seconds{call}": number("seconds", seconds), f"bound{call}": word("what binds", bound, BOUNDS)}
    return answers
