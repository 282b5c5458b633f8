"""FLOPs and minimum bytes of the puzzles."""

from __future__ import annotations

from math import prod

from mlsys_lab.kernels.puzzles import Shape, find

OPERATIONS = {
    "map": 2,
    "zip": 2,
    "guard": 1,
    "map_2d": 1,
    "broadcast": 1,
    "blocks": 2,
    "shared": 0,
    "pooling": 2,
}
"""Operations for each number of `out`, of puzzles where that is constant; comparisons and absolute values count one."""


def flops(name: str, *shapes: Shape) -> int:
    """Operations of a puzzle on inputs of these shapes; InputError for an unknown puzzle."""
    out = prod(find(name).shape(*shapes))
    if name == "dot":
        return max(2 * shapes[0][0] - 1, 0)
    if name == "convolution":
        return out * (2 * shapes[1][0] - 1)
    if name == "axis_sum":
        return out * max(shapes[0][1] - 1, 0)
    return out * OPERATIONS[name]


def min_bytes(name: str, *shapes: Shape, itemsize: int = 4) -> int:
    """Minimum bytes of a puzzle: every input read once and `out` written once. InputError for an unknown puzzle."""
    return itemsize * (sum(map(prod, shapes)) + prod(find(name).shape(*shapes)))
