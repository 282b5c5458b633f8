"""What lab 05 tells a model by: its sizes out of an array, the learner's record of them, and lists of products."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from mlsys_checks.sandboxed.values import describe_value, encode_text, whole
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


def other_config(artifact: Any, model: np.ndarray) -> Any:
    """The learner's record of another model of the same name, whose lengths of a sequence are the same."""
    fields = fields_of(model)
    grown = {name: fields[name] + 1 for name in ("n_layers", "d_model", "head_dim", "d_ff", "vocab_size")}
    return artifact.TransformerConfig("a model", **fields | grown)


def other_kind(recompute: str) -> str:
    """Another kind of recomputation."""
    return RECOMPUTE[RECOMPUTE.index(recompute) - 1]


def product_rows(name: str, got: Any) -> dict[str, list[list[int]]]:
    """A list of products as rows [times, m, k, n] by the product's name; rows of one shape are added up."""
    if not isinstance(got, list | tuple):
        raise InputError(f"{name} gives no list", got=describe_value(got), expected="list of (name, times, m, k, n)")
    found: dict[str, dict[tuple[int, ...], int]] = {}
    for entry in got:
        if not isinstance(entry, tuple | list) or len(entry) != 5 or not isinstance(entry[0], str):
            given = f"{type(entry).__name__} {entry!r}"[:80]
            raise InputError(f"{name} lists no product", got=given, expected="tuple (name, times, m, k, n)")
        times, *shape = (int(whole(f"a number of {entry[0]!r}", value)) for value in entry[1:])
        rows = found.setdefault(entry[0], {})
        rows[tuple(shape)] = rows.get(tuple(shape), 0) + times
    return {called: [[times, *shape] for shape, times in sorted(rows.items())] for called, rows in found.items()}


def rows_as_text(rows: Iterable[Sequence[int]]) -> np.ndarray:
    """Rows [times, m, k, n] as the text that a learner reads."""
    return encode_text("; ".join(f"{times} times ({m}, {k}) by ({k}, {n})" for times, m, k, n in rows))
