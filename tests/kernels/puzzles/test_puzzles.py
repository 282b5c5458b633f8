"""The puzzles: every solution on every size that it is launched for, and what each idea saves."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.numba_launch import Recorder
from mlsys_lab.kernels.puzzles import PUZZLES, cost, reference, solve
from mlsys_lab.kernels.puzzles.numba_steps import KERNELS
from mlsys_lab.kernels.puzzles.sizes import MAX_TAPS, SIDE, THREADS
from mlsys_lab.kernels.trace.banks import conflicts
from mlsys_lab.kernels.trace.barriers import divergences
from mlsys_lab.kernels.trace.faults import faults
from mlsys_lab.kernels.trace.races import races
from mlsys_lab.kernels.trace.sectors import coalescing
from mlsys_lab.kernels.trace.traffic import traffic

FEW = [0, 1, 31, THREADS]
MANY = [0, 1, 2, THREADS - 1, THREADS, THREADS + 1, 3 * THREADS + 7]
PICTURES = [(1, 1), (7, 13), (SIDE, SIDE), (0, 3), (3, 0)]
SHAPES = {
    "map": [((n,),) for n in FEW],
    "zip": [((n,), (n,)) for n in FEW],
    "guard": [((n,),) for n in FEW],
    "map_2d": [(shape,) for shape in PICTURES],
    "broadcast": [((n,), (m,)) for n, m in PICTURES],
    "blocks": [((n,),) for n in MANY],
    "shared": [((n,),) for n in MANY],
    "pooling": [((n,),) for n in MANY],
    "dot": [((n,), (n,)) for n in MANY],
    "convolution": [((n,), (k,)) for n in MANY for k in (1, 3, MAX_TAPS) if n >= k],
    "axis_sum": [(shape,) for shape in [(1, 1), (3, 2 * THREADS + 5), (2, THREADS), (0, 4), (4, 0)]],
}
CASES = [(name, shapes) for name in PUZZLES for shapes in SHAPES[name]]


def drawn(shapes, device="cpu"):
    generator = torch.Generator().manual_seed(13)
    return [torch.randn(shape, generator=generator).to(device) for shape in shapes]


@pytest.mark.parametrize("name, shapes", CASES)
def test_each_solution(name, shapes, device):
    inputs = drawn(shapes, device)
    out = solve(name, *inputs)
    torch.testing.assert_close(out, reference(name, *inputs))


def test_the_references_by_hand():
    tensor = partial(torch.tensor, dtype=torch.float32)
    count = torch.arange(THREADS + 2.0)
    for name, inputs, wanted in [
        ("map", [tensor([0, 100])], [32, 212]),
        ("zip", [tensor([1, 5]), tensor([4, 3])], [3, 2]),
        ("guard", [tensor([3, -2])], [9, 4]),
        ("map_2d", [tensor([[0, 1]])], [[1, 0]]),
        ("broadcast", [tensor([5, 7]), tensor([1])], [[4, 6]]),
        ("blocks", [tensor([-1, 0.5, 2])], [0, 0.5, 1]),
        ("shared", [count], [*range(THREADS - 1, -1, -1), THREADS + 1, THREADS]),
        ("pooling", [tensor([1, 5, 2, 0, -1])], [5, 5, 5, 2, 0]),
        ("dot", [tensor([1, 2]), tensor([3, 4])], [11]),
        ("convolution", [tensor([1, 2, 3, 4]), tensor([1, 0, -1])], [-2, -2]),
        ("axis_sum", [tensor([[1, 2, 3], [4, 5, 6]])], [6, 15]),
    ]:
        torch.testing.assert_close(reference(name, *inputs), tensor(wanted), rtol=1e-6, atol=0)


def test_there_is_a_solution_and_a_task_for_each():
    assert list(PUZZLES) == list(KERNELS) == list(SHAPES)
    assert all(puzzle.task.endswith(".") for puzzle in PUZZLES.values())


def traced(name, shapes):
    recorder = Recorder()
    solve(name, *drawn(shapes), launch=recorder)
    return recorder.traces[0]


LARGE = {
    "map": ((64,),),
    "zip": ((64,), (64,)),
    "guard": ((37,),),
    "map_2d": ((7, 13),),
    "broadcast": ((13,), (7,)),
    "blocks": ((200,),),
    "shared": ((200,),),
    "pooling": ((200,),),
    "dot": ((200,), (200,)),
    "convolution": ((200,), (5,)),
    "axis_sum": ((3, 200),),
}


@pytest.mark.parametrize("name", PUZZLES)
def test_nothing_is_wrong(name):
    trace = traced(name, LARGE[name])
    assert not faults(trace) and not races(trace) and not divergences(trace)


EXACT = [name for name in PUZZLES if name not in ("broadcast", "pooling", "convolution")]


@pytest.mark.parametrize("name", EXACT)
def test_each_number_moves_once(name):
    flows = traffic(traced(name, LARGE[name]))
    assert sum(one.both.asked_bytes for one in flows) == cost.min_bytes(name, *LARGE[name])


@pytest.mark.parametrize("name, reach", [("pooling", 2), ("convolution", 4)])
def test_a_block_reads_a_number_that_it_shares_with_a_neighbour_again(name, reach):
    x, *_, out = traffic(traced(name, LARGE[name]))
    blocks = 4
    assert x.read.asked_bytes == 4 * (200 + reach * (blocks - 1))
    assert out.written.ratio == 1


def test_each_entry_of_a_table_reads_both_of_its_numbers():
    x, y, out = traffic(traced("broadcast", LARGE["broadcast"]))
    assert (x.max_reads, y.max_reads, out.max_writes) == (7, 13, 1)


@pytest.mark.parametrize("name", ["shared", "axis_sum", "dot", "blocks"])
def test_neighbours_touch_neighbours(name):
    sizes = {"axis_sum": ((2, 128),), "dot": ((128,), (128,))}.get(name, ((128,),))
    trace = traced(name, sizes)
    assert all(one.efficiency == 1 for one in coalescing(trace))
    assert all(one.efficiency == 1 for one in conflicts(trace))


def test_a_kernel_of_ones_own():
    def wrong(x, out):
        out[0] = x[0]

    x = torch.tensor([2.0])
    assert solve("guard", x, kernel=wrong).item() == 2 and solve("guard", x).item() == 4


def test_what_is_refused():
    x = torch.ones(3)
    with pytest.raises(InputError, match="unknown puzzle: got sudoku, expected one of map, zip"):
        solve("sudoku", x)
    with pytest.raises(InputError, match="inputs of puzzle 'zip': got 1, expected x, y"):
        solve("zip", x)
    with pytest.raises(InputError, match=r"sizes of puzzle 'guard': got \(65,\), expected at most 64 numbers"):
        solve("guard", torch.ones(65))
    with pytest.raises(InputError, match=r"sizes of puzzle 'zip': got \(3,\) and \(2,\), expected two arrays of one"):
        solve("zip", x, x[:2])
    with pytest.raises(InputError, match=r"dimensions of x: got shape \(3,\), expected 2"):
        solve("axis_sum", x)
    with pytest.raises(InputError, match=r"dtype of x: got torch.int64, expected torch.float32"):
        solve("map", torch.arange(3))
    with pytest.raises(InputError, match="sizes of puzzle 'convolution'"):
        solve("convolution", x, torch.ones(4))
