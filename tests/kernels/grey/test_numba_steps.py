"""Brightness in Numba: right in both layouts, and how many sectors a warp's load takes in each."""

from __future__ import annotations

import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.grey import cost, grey, numba_steps, reference
from mlsys_lab.kernels.numba_launch import Recorder
from mlsys_lab.kernels.trace.events import LOAD
from mlsys_lab.kernels.trace.faults import faults
from mlsys_lab.kernels.trace.races import races
from mlsys_lab.kernels.trace.sectors import coalescing
from mlsys_lab.kernels.trace.traffic import traffic

SHAPES = [(1, 1), (7, 33), (31, 2), (0, 5), (5, 0), (4, 32)]


def picture(rows, columns, device="cpu"):
    generator = torch.Generator().manual_seed(7)
    return torch.rand(rows, columns, 3, generator=generator).to(device)


def laid_out(step, interleaved):
    return interleaved if step == "interleaved" else interleaved.permute(2, 0, 1).contiguous()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("step", numba_steps.STEPS)
def test_brightness(step, shape, device):
    pixels = picture(*shape, device)
    torch.testing.assert_close(grey(laid_out(step, pixels), step=step), reference(pixels))


def traced(step, rows=8, columns=64):
    recorder = Recorder()
    numba_steps.run(step, laid_out(step, picture(rows, columns)), launch=recorder)
    return recorder.traces[0]


@pytest.mark.parametrize("step", numba_steps.STEPS)
def test_each_number_moves_once(step):
    trace = traced(step, 7, 33)
    assert sum(one.both.asked_bytes for one in traffic(trace)) == cost.min_bytes(7 * 33)
    assert all(one.both.ratio == 1 for one in traffic(trace))
    assert not faults(trace) and not races(trace)


def test_a_load_of_interleaved_numbers_touches_three_times_the_sectors():
    interleaved = {one.buffer: one for one in coalescing(traced("interleaved")) if one.kind == LOAD}
    planar = {one.buffer: one for one in coalescing(traced("planar")) if one.kind == LOAD}
    assert (interleaved["picture"].taken, interleaved["picture"].ideal) == (3 * 16 * 12, 3 * 16 * 4)
    assert (planar["picture"].taken, planar["picture"].ideal) == (3 * 16 * 4, 3 * 16 * 4)


def test_what_is_refused():
    with pytest.raises(InputError, match=r"channels of a picture for step 'interleaved': got \(3, 4, 5\), expected 3"):
        grey(torch.ones(3, 4, 5))
    with pytest.raises(InputError, match=r"channels of a picture for step 'planar': got \(4, 5, 3\), expected 3"):
        grey(torch.ones(4, 5, 3), step="planar")
    with pytest.raises(InputError, match=r"dimensions of picture: got shape \(4, 3\), expected 3"):
        grey(torch.ones(4, 3))
    with pytest.raises(InputError, match=r"dtype of picture: got torch.uint8"):
        grey(torch.ones(4, 5, 3, dtype=torch.uint8))
    with pytest.raises(InputError, match="grey is not written in this language: got triton, expected numba or cuda"):
        grey(torch.ones(4, 5, 3), language="triton")
