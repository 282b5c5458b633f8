"""Eleven small kernel puzzles, from one thread per element to shared memory: each adds one idea."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from mlsys_lab.errors import InputError
from mlsys_lab.kernels import arguments
from mlsys_lab.kernels.numba_launch import Launcher, launch
from mlsys_lab.kernels.puzzles.numba_steps import KERNELS
from mlsys_lab.kernels.puzzles.sizes import MAX_TAPS, SIDE, THREADS

Shape = tuple[int, ...]
Plan = tuple[Shape, Shape]
"""Launch configuration: grid and block extents, x first."""


@dataclass(frozen=True)
class Puzzle:
    """One puzzle: what its kernel has to compute, and how the kernel is launched."""

    task: str
    inputs: tuple[str, ...]  # the kernel's parameters before `out`
    ranks: tuple[int, ...]  # dimensions of each input
    reference: Callable[..., torch.Tensor]
    shape: Callable[..., Shape]  # of `out`, from the shapes of the inputs
    plan: Callable[..., Plan]  # the launch, from the shapes of the inputs
    fits: Callable[..., bool]  # whether the shapes of the inputs go with the launch
    sizes: str  # which do, in words


def _shape_of_x(x: Shape, *_: Shape) -> Shape:
    return x


def _one_block(x: Shape, *_: Shape) -> Plan:
    return (1,), (max(x[0], 1),)


def _blocks(x: Shape, *_: Shape) -> Plan:
    return (math.ceil(x[0] / THREADS),), (THREADS,)


def _square_block(*_: Shape) -> Plan:
    return (1,), (SIDE, SIDE)


def _accept_any(*_: Shape) -> bool:
    return True


def _reverse_blocks(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([part.flip(0) for part in torch.split(x, THREADS)])


def _max_pool(x: torch.Tensor) -> torch.Tensor:
    return functional.max_pool1d(x.view(1, -1), 3, stride=1, padding=1).view(-1) if len(x) else x.clone()


def _convolve(x: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    return x.unfold(0, len(taps), 1) @ taps


PUZZLES = {
    "map": Puzzle(
        "`x` holds temperatures in degrees Celsius; write each in Fahrenheit, 1.8·x + 32, to `out`. One block, with "
        "exactly one thread a number.",
        ("x",),
        (1,),
        lambda x: 1.8 * x + 32,
        _shape_of_x,
        _one_block,
        lambda x: x[0] <= 1024,
        "at most 1024 numbers",
    ),
    "zip": Puzzle(
        "Two thermometers, one reading of each a thread: write how far apart they are, |x − y|, to `out`.",
        ("x", "y"),
        (1, 1),
        lambda x, y: (x - y).abs(),
        _shape_of_x,
        _one_block,
        lambda x, y: x == y and x[0] <= 1024,
        "two arrays of one length, at most 1024",
    ),
    "guard": Puzzle(
        f"Square each number. There are always {THREADS} threads and often fewer numbers: a thread that has none must "
        "touch nothing.",
        ("x",),
        (1,),
        lambda x: x * x,
        _shape_of_x,
        lambda x: ((1,), (THREADS,)),
        lambda x: x[0] <= THREADS,
        f"at most {THREADS} numbers",
    ),
    "map_2d": Puzzle(
        f"Turn a picture into its negative, 1 − x. The block is {SIDE} threads wide and {SIDE} high, the picture may "
        "be smaller either way. Let neighbouring threads take neighbouring columns.",
        ("x",),
        (2,),
        lambda x: 1 - x,
        _shape_of_x,
        _square_block,
        lambda x: max(x) <= SIDE,
        f"at most {SIDE} rows and columns",
    ),
    "broadcast": Puzzle(
        "From prices `x` and costs `y`, a table of all margins: `out[row, column]` is x[column] − y[row]. One thread "
        "an entry of the table, which may be smaller than the block.",
        ("x", "y"),
        (1, 1),
        lambda x, y: x[None, :] - y[:, None],
        lambda x, y: (y[0], x[0]),
        _square_block,
        lambda x, y: max(x[0], y[0]) <= SIDE,
        f"at most {SIDE} numbers each",
    ),
    "blocks": Puzzle(
        f"Clip each number to [0, 1]. Now there are more numbers than a block has threads: as many blocks of {THREADS} "
        "as it takes, and the last may have threads to spare.",
        ("x",),
        (1,),
        lambda x: x.clamp(0, 1),
        _shape_of_x,
        _blocks,
        _accept_any,
        "any",
    ),
    "shared": Puzzle(
        f"Turn the numbers of each block round: its {THREADS} numbers (the last block may have fewer) come out last "
        "one first. Fetch them into shared memory, wait for the others, and write; threads that are neighbours must "
        "read neighbours from `x` and write neighbours to `out`.",
        ("x",),
        (1,),
        _reverse_blocks,
        _shape_of_x,
        _blocks,
        _accept_any,
        "any",
    ),
    "pooling": Puzzle(
        "The largest of each number and its two neighbours; the ends have one. A block may read each number that it "
        "needs once from `x`: the rest comes from shared memory.",
        ("x",),
        (1,),
        _max_pool,
        _shape_of_x,
        _blocks,
        _accept_any,
        "any",
    ),
    "dot": Puzzle(
        f"The dot product of `x` and `y`, by one block of {THREADS} threads, however long they are: each thread adds "
        "up its share, then half of the threads add the other half's sums, then a quarter, until one is left.",
        ("x", "y"),
        (1, 1),
        lambda x, y: (x * y).sum().view(1),
        lambda x, y: (1,),
        lambda x, y: ((1,), (THREADS,)),
        lambda x, y: x == y,
        "two arrays of one length",
    ),
    "convolution": Puzzle(
        f"Slide a filter of at most {MAX_TAPS} weights along `x`: out[i] = Σ_k x[i + k]·taps[k], wherever the filter "
        "lies on `x` as a whole. A block may read each number of either once.",
        ("x", "taps"),
        (1, 1),
        _convolve,
        lambda x, taps: (x[0] - taps[0] + 1,),
        lambda x, taps: _blocks((x[0] - taps[0] + 1,)),
        lambda x, taps: 1 <= taps[0] <= min(MAX_TAPS, x[0]),
        f"1 to {MAX_TAPS} taps, and no more than numbers",
    ),
    "axis_sum": Puzzle(
        f"The sum of every row, a block of {THREADS} threads a row, however long the rows are. Neighbouring threads "
        "must read neighbouring numbers.",
        ("x",),
        (2,),
        lambda x: x.sum(1),
        lambda x: x[:1],
        lambda x: ((x[0],), (THREADS,)),
        _accept_any,
        "any",
    ),
}
"""The eleven puzzles by name, in the order in which to solve them."""


def find(name: str) -> Puzzle:
    """Look up a puzzle by its name; InputError for an unknown one."""
    if name not in PUZZLES:
        raise InputError("unknown puzzle", got=name, expected="one of " + ", ".join(PUZZLES))
    return PUZZLES[name]


def reference(name: str, *inputs: torch.Tensor) -> torch.Tensor:
    """The tensor that a puzzle's `out` must equal, computed by torch. Raises InputError for an unknown puzzle."""
    return find(name).reference(*inputs)


def solve(name: str, *inputs: torch.Tensor, kernel: Any = None, launch: Launcher = launch) -> torch.Tensor:
    """Launch a puzzle on fp32 inputs and return its `out`; `kernel` is the course's own if none is given.

    Raises InputError for an unknown puzzle, and for inputs that it is not launched for.
    """
    puzzle = find(name)
    if len(inputs) != len(puzzle.inputs):
        raise InputError(f"inputs of puzzle {name!r}", got=len(inputs), expected=", ".join(puzzle.inputs))
    arguments.check_contiguous((torch.float32,), **dict(zip(puzzle.inputs, inputs, strict=True)))
    for one, rank, tensor in zip(puzzle.inputs, puzzle.ranks, inputs, strict=True):
        arguments.check_rank(rank, **{one: tensor})
    shapes = [tuple(tensor.shape) for tensor in inputs]
    if not puzzle.fits(*shapes):
        raise InputError(f"sizes of puzzle {name!r}", got=" and ".join(map(str, shapes)), expected=puzzle.sizes)
    out = inputs[0].new_empty(puzzle.shape(*shapes))
    if out.numel():
        grid, block = puzzle.plan(*shapes)
        launch(kernel or KERNELS[name], grid, block, *inputs, out, outputs=("out",))
    return out
