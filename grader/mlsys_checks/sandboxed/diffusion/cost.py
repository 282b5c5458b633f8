"""How lab 12's checks call the cost of a step and of an image: sizes and rates in, numbers out."""

from __future__ import annotations

from typing import Any

from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.values import number, pair, whole, word

SOLVERS = ("ddim", "heun")
"""Names of solvers, which cross as their places here."""
USUAL = ("ddim", False, 1, 2)
"""What `predict_image_s` takes by default, and is not told: solver, guidance, requests, bytes of a number."""
DIT = ("n_layers", "d_model", "size", "patch", "channels", "out_channels")
"""Sizes of a model, in the order in which they cross."""


def dit_of(artifact: Any, arrays: Arrays) -> Any:
    """The case's sizes as the notebook's own record."""
    return artifact.DiT(**dict(zip(DIT, arrays["config"].tolist(), strict=True)))


def machine_of(artifact: Any, arrays: Arrays) -> Any:
    """The case's machine as the notebook's own record."""
    return artifact.Machine(*arrays["rates"].tolist())


def dit_work(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `dit_work`: FLOPs and bytes."""
    got = artifact.dit_work(dit_of(artifact, arrays), int(arrays["images"]), int(arrays["element_bytes"]))
    flops, moved = pair("dit_work", got, "FLOPs", "bytes")
    return {"FLOPs": whole("FLOPs", flops), "bytes": whole("bytes", moved)}


def predict_step(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `predict_step`: seconds, and what binds."""
    given = (dit_of(artifact, arrays), int(arrays["images"]), machine_of(artifact, arrays))
    got = artifact.predict_step(*given, int(arrays["element_bytes"]))
    seconds, bound = pair("predict_step", got, "seconds", "what binds")
    return {"seconds": number("seconds", seconds), "bound": word("what binds", bound, ("compute", "memory"))}


def least_batch(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `least_batch`: a number of images."""
    got = artifact.least_batch(dit_of(artifact, arrays), machine_of(artifact, arrays), int(arrays["element_bytes"]))
    return {"images": whole("images", got)}


def predict_image(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `predict_image_s`: seconds."""
    given = (dit_of(artifact, arrays), machine_of(artifact, arrays), int(arrays["steps"]))
    sizes = int(arrays["requests"]), int(arrays["element_bytes"])
    how = (SOLVERS[int(arrays["solver"])], bool(arrays["guided"]), *sizes)
    got = artifact.predict_image_s(*given, *(() if how == USUAL else how))
    return {"seconds": number("seconds", got)}
