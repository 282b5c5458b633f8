"""What caches, masks and attention give back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from mlsys_checks.sandboxed.kv_cache.plans import OTHER, follow, kind_of_model, make_cache, tensors
from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.values import array, parts
from mlsys_lab.models.aging import AgingModel


def updates(artifact: Any, arrays: Arrays) -> Arrays:
    """Play a plan on `Contiguous` or `SlidingWindow`: what every update gives back from step `told` on.

    That is keys, values and positions, in the order of their positions, once the pass is over. The memory of new keys
    and values is used for something else as soon as the update has given back.
    """
    k, v = tensors(arrays, "k", "v")  # (L, K, tokens, H)
    model = AgingModel(**kind_of_model(arrays))
    model = model.float() if k.dtype == torch.float32 else model
    kept = make_cache(artifact, arrays, model, int(arrays["sequences"]))
    answers: Arrays = {}
    first = 0
    for step, new in follow(arrays["plan"], kept):
        given: dict[str, tuple[Any, ...]] = {}
        for layer in range(len(k)):
            start = first
            for sequence, count in new.items():
                fresh = [x[layer, :, start : start + count].clone() for x in (k, v)]
                got = parts("update", kept.update(layer, sequence, *fresh), "keys", "values", "positions")
                if step >= int(arrays["told"]):
                    given[f"of step {step}, layer {layer}, sequence {sequence}"] = got
                for x in fresh:
                    x.fill_(torch.nan)
                start += count
        for where, got in given.items():
            answers |= _found(where, got)
        for sequence, count in new.items():
            kept.advance(sequence, count)
        if not first and "between" in arrays:
            _disturb(artifact, arrays, model, kept, new)
        first += sum(new.values())
    return answers


def _disturb(artifact: Any, arrays: Arrays, model: Any, kept: Any, new: Mapping[int, int]) -> None:
    """Update the cache, or another one, with as many new tokens as in the first step, and count none of them in."""
    if arrays["between"] == OTHER:
        kept = make_cache(artifact, arrays, model, int(arrays["sequences"]))
        for _ in new:
            kept.start()
    k, v = (-x for x in tensors(arrays, "k", "v"))
    for layer in range(len(k)):
        start = 0
        for sequence, count in new.items():
            kept.update(layer, sequence, *(x[layer, :, start : start + count].clone() for x in (k, v)))
            start += count


def _found(where: str, got: tuple[Any, ...]) -> Arrays:
    keys, values, places = (array(name, x) for name, x in zip(("keys", "values", "positions"), got, strict=True))
    if places.ndim == 1 and places.dtype.kind in "iu" and keys.shape[1:2] == values.shape[1:2] == places.shape:
        order = np.argsort(places, kind="stable")
        keys, values, places = keys[:, order], values[:, order], places[order]
    return {f"positions {where}": places, f"keys {where}": keys, f"values {where}": values}


def visible(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `visible`: the mask."""
    return {"mask": array("mask", artifact.visible(*tensors(arrays, "queries", "keys")))}


def in_window(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `in_window`: the mask."""
    return {"mask": array("mask", artifact.in_window(*tensors(arrays, "queries", "keys"), int(arrays["window"])))}


def attend(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `attend`: the heads."""
    return {"heads": array("heads", artifact.attend(*tensors(arrays, "q", "keys", "values", "mask")))}


def attend_grouped(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `attend_grouped`: the heads."""
    return {"heads": array("heads", artifact.attend_grouped(*tensors(arrays, "q", "keys", "values", "mask")))}
