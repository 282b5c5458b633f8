"""Where a kernel of Numba runs: thread by thread for tensors in the host's memory, compiled for those on a GPU."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses import FakeTensorMode

from mlsys_lab.errors import InputError
from mlsys_lab.kernels import numba_launch
from mlsys_lab.kernels.numba_language import cuda
from mlsys_lab.kernels.numba_launch import Recorder, launch


@cuda.jit
def scaled(x, factor, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = factor * x[i]


def test_a_launch(device):
    x = torch.arange(70.0, device=device)
    out = torch.full_like(x, -1)
    launch(scaled, 2, 64, x, 3, out, outputs=("out",))
    assert torch.equal(out, 3 * x)


@pytest.mark.gpu
def test_a_launch_is_in_the_order_of_torchs_stream():
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x = torch.ones(2**22, device="cuda")
        out = torch.empty_like(x)
        for _ in range(3):
            launch(scaled, 2**14, 256, x, 2.0, out)
            x.copy_(out)
    stream.synchronize()
    assert (x == 8).all()


def test_a_recorder_keeps_every_launch_in_order():
    x, out = torch.ones(3), torch.zeros(3)
    recorder = Recorder()
    recorder(scaled, 1, 4, x, 2, out, outputs=("out",))
    recorder(scaled, 2, 2, out, 2, x)
    assert [trace.grid[0] for trace in recorder.traces] == [1, 2]
    assert [[one.initialized for one in trace.buffers] for trace in recorder.traces] == [[True, False], [True, True]]
    assert x.tolist() == [4, 4, 4]


def test_tensors_on_a_gpu_cannot_be_simulated(monkeypatch):
    monkeypatch.setattr(numba_launch, "numba_simulates", lambda: True)
    with FakeTensorMode():
        x = torch.ones(3, device="cuda")
    with pytest.raises(InputError, match="Numba simulates, but tensors are on a GPU; help: start Python without"):
        launch(scaled, 1, 4, x, 2, x)


def test_tensors_without_values_or_on_another_device():
    with pytest.raises(InputError, match="tensors of a launch: got on meta, expected on cpu or cuda"):
        launch(scaled, 1, 4, torch.ones(3, device="meta"), 2, torch.ones(3, device="meta"))


def test_tensors_on_two_devices():
    with pytest.raises(InputError, match="tensors of a launch are on two devices: got cpu and meta"):
        launch(scaled, 1, 4, torch.ones(3), 2, torch.ones(3, device="meta"))
