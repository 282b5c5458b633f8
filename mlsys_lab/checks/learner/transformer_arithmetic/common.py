"""What the calls of lab 05 share: a model's sizes out of an array, and the learner's numbers into arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from mlsys_lab.errors import InputError

SIZES = ("n_layers", "d_model", "n_heads", "d_ff", "vocab_size", "context", "n_kv_heads", "head_dim")
FLAGS = ("qkv_bias", "out_bias", "mlp_bias", "norm_bias", "tied")
CHOICES = {"position": ("learned", "rotary"), "norm": ("rms", "layer"), "activation": ("swiglu", "gelu", "relu")}
FIELDS = (*SIZES, *FLAGS, *CHOICES)
"""A model is an int64 array of these: sizes, flags as 0 or 1, and choices by their place."""
RECOMPUTE = ("none", "selective", "full")


def fields_of(model: np.ndarray) -> dict[str, Any]:
    """The named sizes, flags and choices of a model's array."""
    values = dict(zip(FIELDS, model.tolist(), strict=True))
    flags = {name: bool(values[name]) for name in FLAGS}
    choices = {name: kinds[values[name]] for name, kinds in CHOICES.items()}
    return {**values, **flags, **choices}


def config_of(artifact: Any, model: np.ndarray) -> Any:
    """The learner's record of a model."""
    return artifact.TransformerConfig("a model", **fields_of(model))


def whole(name: str, got: Any) -> np.ndarray:
    """A whole number as an int64 array of no axes."""
    if isinstance(got, bool) or not isinstance(got, int | np.integer):
        raise InputError(f"{name} is not a whole number", got=f"{type(got).__name__} {got!r}"[:80], expected="int")
    if abs(int(got)) >= 2**63:
        raise InputError(f"{name} is out of range", got=got, expected="less than 2**63")
    return np.array(got, dtype=np.int64)


def number(name: str, got: Any) -> np.ndarray:
    """A real number as a float64 array of no axes."""
    if isinstance(got, bool) or not isinstance(got, int | float | np.floating):
        raise InputError(f"{name} is not a plain number", got=type(got).__name__, expected="float")
    return np.array(float(got))


def wholes(name: str, got: Any, keys: Sequence[str]) -> dict[str, np.ndarray]:
    """A dictionary of whole numbers with exactly these keys."""
    if not isinstance(got, dict) or set(got) != set(keys):
        told = ", ".join(map(str, got)) if isinstance(got, dict) else type(got).__name__
        raise InputError(f"{name} is not a dictionary of what was asked for", got=told, expected=", ".join(keys))
    return {key: whole(f"{name}[{key!r}]", got[key]) for key in keys}


def text(said: object) -> np.ndarray:
    """A short text as the bytes of its letters, the way in which it crosses."""
    return np.frombuffer(str(said).encode(), np.uint8).copy()


def pair(name: str, got: Any) -> tuple[Any, Any]:
    """A tuple of two."""
    if not isinstance(got, tuple) or len(got) != 2:
        raise InputError(f"{name} gives no pair", got=type(got).__name__, expected="tuple of two")
    return got


def product_rows(name: str, got: Any) -> dict[str, list[list[int]]]:
    """A list of products as rows [times, m, k, n] by the product's name; rows of one shape are added up."""
    if not isinstance(got, list | tuple):
        raise InputError(f"{name} gives no list", got=type(got).__name__, expected="list of (name, times, m, k, n)")
    found: dict[str, dict[tuple[int, ...], int]] = {}
    for entry in got:
        if not isinstance(entry, tuple) or len(entry) != 5 or not isinstance(entry[0], str):
            given = f"{type(entry).__name__} {entry!r}"[:80]
            raise InputError(f"{name} lists no product", got=given, expected="tuple (name, times, m, k, n)")
        times, *shape = (int(whole(f"a number of {entry[0]!r}", value)) for value in entry[1:])
        rows = found.setdefault(entry[0], {})
        rows[tuple(shape)] = rows.get(tuple(shape), 0) + times
    return {called: [[times, *shape] for shape, times in sorted(rows.items())] for called, rows in found.items()}


def rows_as_text(rows: Iterable[Sequence[int]]) -> np.ndarray:
    """Rows [times, m, k, n] as the text that a learner reads."""
    return text("; ".join(f"{times} times ({m}, {k}) by ({k}, {n})" for times, m, k, n in rows))
