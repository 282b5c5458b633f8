"""Calls of task 1. An einsum crosses as the characters of its letters, and the shapes as rows filled up with -1."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlsys_lab.checks.spec import Arrays
from mlsys_lab.checks.transformer_arithmetic.calls.common import pair, whole
from mlsys_lab.errors import InputError


def einsums(arrays: Arrays) -> list[tuple[str, list[tuple[int, ...]]]]:
    """The einsums of a case: letters and shapes."""
    found = []
    for i in range(len(arrays) // 2):
        shapes = [tuple(size for size in row if size >= 0) for row in arrays[f"shapes {i}"].tolist()]
        found.append((arrays[f"spec {i}"].tobytes().decode(), shapes))
    return found


def parse(artifact: Any, arrays: Arrays) -> Arrays:
    """Letters and sizes as the learner reads them, or that they refuse."""
    got: Arrays = {}
    for spec, shapes in einsums(arrays):
        name = f"{spec} with {', '.join(map(str, shapes))}"
        try:
            parsed = artifact.parse_einsum(spec, *shapes)
        except ValueError:
            got[f"{name}: refused"] = np.array(True)
            continue
        if not isinstance(parsed, tuple) or len(parsed) != 3 or not isinstance(parsed[2], dict):
            expected = "(operands, output, sizes)"
            raise InputError("parse_einsum gives something else", got=repr(parsed)[:80], expected=expected)
        operands, output, sizes = parsed
        letters = f"{','.join(operands)}->{output}".encode()
        got[f"{name}: refused"] = np.array(False)
        got[f"{name}: letters"] = np.frombuffer(letters, np.uint8).copy()
        got[f"{name}: sizes"] = np.array([whole(letter, sizes[letter]) for letter in sorted(sizes)], dtype=np.int64)
    return got


def cost(artifact: Any, arrays: Arrays) -> Arrays:
    """FLOPs, and bytes at two widths of an element."""
    got = {}
    for spec, shapes in einsums(arrays):
        got[f"FLOPs of {spec}"] = whole("einsum_flops", artifact.einsum_flops(spec, *shapes))
        got[f"bytes of {spec}"] = whole("einsum_bytes", artifact.einsum_bytes(spec, *shapes))
        wide = artifact.einsum_bytes(spec, *shapes, element_bytes=4)
        got[f"bytes of {spec} at 4 bytes an element"] = whole("einsum_bytes", wide)
    return got


def order(artifact: Any, arrays: Arrays) -> Arrays:
    """The pair to begin with, and the FLOPs of both steps."""
    got = {}
    for spec, shapes in einsums(arrays):
        first, flops = pair("best_first_pair", artifact.best_first_pair(spec, *shapes))
        places = pair("the first pair", first)
        got[f"first pair of {spec}"] = np.array([whole("a place", place) for place in places], dtype=np.int64)
        got[f"FLOPs of {spec}"] = whole("FLOPs", flops)
    return got
