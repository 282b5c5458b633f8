"""Calls of task 1. An einsum crosses as the characters of its letters, and the shapes as rows filled up with -1."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from mlsys_checks.sandboxed.repeated_calls import call_twice
from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.transformer_arithmetic.given import call_with_given
from mlsys_checks.sandboxed.values import count, decode_text, describe_value, encode_text, pair, whole
from mlsys_lab.errors import InputError

TUPLES, LISTS = "tuples", "lists"
"""What the shapes of an einsum are to be made, by the name under which they cross."""


def einsums(arrays: Arrays) -> list[tuple[str, list[Any]]]:
    """The einsums of a case: letters, and shapes as tuples or lists."""
    found = []
    for i in range(sum(name.startswith("spec ") for name in arrays)):
        made, kind = (list, LISTS) if f"{LISTS} {i}" in arrays else (tuple, TUPLES)
        shapes = [made(size for size in row if size >= 0) for row in arrays[f"{kind} {i}"].tolist()]
        found.append((arrays[f"spec {i}"].tobytes().decode(), shapes))
    return found


def arguments(spec: str, shapes: Iterable[Sequence[int]]) -> str:
    """An einsum as the arguments of a call: an answer is named by the call that it came from."""
    return ", ".join([f'"{spec}"', *map(str, shapes)])


def write_reading(operands: Iterable[str], output: str, sizes: Mapping[str, int]) -> np.ndarray:
    """What `parse_einsum` gives back, as text that crosses."""
    return encode_text((list(operands), output, dict(sorted(sizes.items()))))


def parse(artifact: Any, arrays: Arrays) -> Arrays:
    """Letters and sizes as the learner reads them, or that they refuse."""
    got: Arrays = {}
    for spec, shapes in einsums(arrays):
        name = f"parse_einsum({arguments(spec, shapes)})"
        try:
            parsed = call_twice("parse_einsum", partial(artifact.parse_einsum, spec, *shapes))
        except ValueError:
            got[name] = encode_text("ValueError")
            continue
        except Exception as error:
            error.add_note(f"a ValueError from {name} if letters and shapes do not fit, else an answer")
            raise
        if not isinstance(parsed, tuple | list) or len(parsed) != 3 or not isinstance(parsed[2], dict):
            expected = "(operands, output, sizes)"
            raise InputError("parse_einsum gives something else", got=describe_value(parsed), expected=expected)
        operands, output, sizes = parsed
        got[name] = write_reading(operands, output, {x: int(whole(f"the size of {x}", sizes[x])) for x in sizes})
    return got


def widths(shapes: Sequence[Sequence[int]]) -> tuple[int, int]:
    """The widths of an element asked for beside the default: others where there are more operands than are shown."""
    return 1, 4 if len(shapes) < 4 else 8


def cost(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `einsum_flops` and `einsum_bytes`: FLOPs, and bytes at two widths of an element."""
    got = {}
    for spec, shapes in einsums(arrays):
        given = arguments(spec, shapes)
        flops = call_with_given(partial(artifact.einsum_flops, spec, *shapes), artifact, arrays)
        got[f"einsum_flops({given})"] = count("einsum_flops", flops)
        for told in ({}, *({"element_bytes": width} for width in widths(shapes))):
            moved = call_with_given(partial(artifact.einsum_bytes, spec, *shapes, **told), artifact, arrays)
            named = "".join(f", {name}={value}" for name, value in told.items())
            got[f"einsum_bytes({given}{named})"] = whole("einsum_bytes", moved)
    return got


def order(artifact: Any, arrays: Arrays) -> Arrays:
    """The pair to begin with, and the FLOPs of both steps."""
    got = {}
    for spec, shapes in einsums(arrays):
        name = f"best_first_pair({arguments(spec, shapes)})"
        try:
            best = call_with_given(partial(artifact.best_first_pair, spec, *shapes), artifact, arrays)
        except Exception as error:
            error.add_note(f"an answer to {name}; if parse_einsum refuses, best_first_pair made an einsum of two that")
            error.add_note("does not fit: look at the letters and the shape that it gives the intermediate")
            raise
        first, flops = pair("best_first_pair", best, "first pair", "FLOPs")
        places = tuple(int(whole("a place", place)) for place in pair("the first pair", first, "i", "j"))
        got[name] = encode_text((places, int(decode_text(count("FLOPs", flops)))))
    return got
