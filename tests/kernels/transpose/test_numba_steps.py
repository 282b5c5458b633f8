"""The transpose in Numba: right on every shape, and what each step mends."""

from __future__ import annotations

import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.numba_launch import Recorder
from mlsys_lab.kernels.trace.banks import conflicts
from mlsys_lab.kernels.trace.barriers import divergences
from mlsys_lab.kernels.trace.events import LOAD, STORE
from mlsys_lab.kernels.trace.faults import faults
from mlsys_lab.kernels.trace.races import races
from mlsys_lab.kernels.trace.sectors import coalescing
from mlsys_lab.kernels.trace.traffic import traffic
from mlsys_lab.kernels.transpose import cost, numba_steps, reference, transpose

SHAPES = [(1, 1), (0, 4), (4, 0), (1, 37), (37, 1), (31, 33), (32, 32), (67, 41)]


def matrix(rows, columns, device="cpu"):
    return torch.arange(rows * columns, dtype=torch.float32, device=device).view(rows, columns)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("step", numba_steps.STEPS)
def test_the_transpose(step, shape, device):
    x = matrix(*shape, device)
    y = transpose(x, step=step)
    assert y.is_contiguous() and torch.equal(y, reference(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
@pytest.mark.parametrize("step", numba_steps.STEPS)
def test_other_precisions(step, dtype, device):
    x = matrix(33, 40, device).to(dtype)
    assert torch.equal(transpose(x, step=step), reference(x))


def traced(step, rows=64, columns=64):
    recorder = Recorder()
    numba_steps.run(step, matrix(rows, columns), launch=recorder)
    return recorder.traces[0]


@pytest.mark.parametrize("step", numba_steps.STEPS)
def test_each_number_moves_once_whatever_the_order(step):
    trace = traced(step, 67, 41)
    assert sum(one.both.asked_bytes for one in traffic(trace)) == cost.min_bytes(67, 41)
    assert all(one.both.ratio == 1 for one in traffic(trace))
    assert not faults(trace) and not races(trace) and not divergences(trace)


def test_naive_stores_touch_eight_times_the_sectors():
    load, store = coalescing(traced("naive"))
    assert (load.kind, load.taken, load.ideal) == (LOAD, 512, 512)
    assert (store.kind, store.taken, store.ideal) == (STORE, 8 * 512, 512)


@pytest.mark.parametrize("step", ["tiled", "padded"])
def test_through_a_tile_both_are_coalesced(step):
    assert [one.efficiency for one in coalescing(traced(step))] == [1, 1]


def test_a_column_of_the_tile_lies_in_one_bank_until_it_is_padded():
    for step, worst in (("tiled", 32), ("padded", 1)):
        store, load = sorted(conflicts(traced(step)), key=lambda one: one.kind != STORE)
        assert (store.taken, store.ideal) == (128, 128)
        assert (load.kind, load.taken, load.worst.taken) == (LOAD, worst * 128, worst)


def test_what_is_refused():
    with pytest.raises(InputError, match="unknown step"):
        transpose(matrix(2, 2), step="shared")
    with pytest.raises(InputError, match=r"dtype of x: got torch.bfloat16, expected torch.float16 or"):
        transpose(matrix(2, 2).bfloat16())
    with pytest.raises(InputError, match="dimensions of x"):
        transpose(matrix(2, 2).view(4))
    with pytest.raises(InputError, match="x is not contiguous"):
        transpose(matrix(2, 3).T)
