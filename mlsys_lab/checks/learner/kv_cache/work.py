"""FLOPs, bytes and seconds of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mlsys_lab.checks.learner.spec import Arrays
from mlsys_lab.checks.learner.values import number, pair, whole, word

SIZES = ("n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim", "d_ff", "vocab_size", "context")
"""A configuration is an int64 array of these, and of whether the head is tied."""
BOUNDS = ("compute", "memory")


def fields_of(config: np.ndarray) -> dict[str, Any]:
    """The sizes of a configuration's array by name, and whether its head is tied."""
    *sizes, tied = config.tolist()
    return dict(zip(SIZES, sizes, strict=True)) | {"tied": bool(tied)}


def _asked(artifact: Any, arrays: Arrays) -> tuple[Any, list[tuple[int, int]], int | None]:
    steps: list[Sequence[int]] = arrays["parts"].tolist()
    config = artifact.TransformerConfig("a model", **fields_of(arrays["config"]))
    return config, [(new, past) for new, past in steps], int(arrays["window"]) or None


def step_work(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `step_work`: FLOPs and bytes."""
    config, steps, window = _asked(artifact, arrays)
    flops, moved = pair("step_work", artifact.step_work(config, steps, window, int(arrays["element_bytes"])), "F", "B")
    return {"FLOPs": whole("FLOPs", flops), "bytes": whole("bytes", moved)}


def predict_step(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `predict_step_s`: seconds, and what binds."""
    config, steps, window = _asked(artifact, arrays)
    machine = artifact.Machine(float(arrays["flops_per_s"]), float(arrays["bytes_per_s"]))
    got = artifact.predict_step_s(config, steps, machine, window, int(arrays["element_bytes"]))
    seconds, bound = pair("predict_step_s", got, "seconds", "what binds")
    return {"seconds": number("seconds", seconds), "bound": word("what binds", bound, BOUNDS)}
