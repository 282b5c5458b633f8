"""Bytes of storages, exactly."""

from __future__ import annotations

import gc
import subprocess
import sys

import numpy as np
import pytest
import torch

from mlsys_lab.benchmark.memory import track_memory

F32 = 4


def test_peak_and_current_of_a_chain() -> None:
    with track_memory() as m:
        x = torch.zeros(1000)
        y = x + 1
        z = y * 2
        assert m.current_bytes == 3000 * F32
        del y
        assert m.current_bytes == 2000 * F32
        del x, z
    assert (m.peak_bytes, m.current_bytes) == (3000 * F32, 0)


def test_views_and_in_place_ops_hold_nothing_new() -> None:
    with track_memory() as m:
        x = torch.zeros(10, 100)
        views = [x.view(1000), x.t(), x[3:5], x.unsqueeze(0).expand(7, 10, 100), x.detach(), x.add_(1)]
    assert m.peak_bytes == 1000 * F32
    del x
    assert m.current_bytes == 1000 * F32  # a view keeps all of the storage alive
    views.clear()
    assert m.current_bytes == 0


def test_what_was_there_before_counts_as_nothing() -> None:
    before = torch.zeros(1000)
    with track_memory() as m:
        before += 1
        part = before[:10]
        del before
        copy = part.clone()
    assert m.peak_bytes == copy.nbytes == 10 * F32
    del part
    assert m.current_bytes == 10 * F32


def test_reference_cycles_count_until_collected() -> None:
    gc.collect()
    with track_memory() as m:
        cell: list[object] = [torch.zeros(100)]
        cell.append(cell)
        del cell
        assert m.current_bytes == 100 * F32
        gc.collect()
        assert m.current_bytes == 0


def test_python_data_counts_and_numpys_own_memory_does_not() -> None:
    with track_memory() as m:
        made = torch.tensor([1.0, 2.0, 3.0])
        assert m.current_bytes == made.nbytes == 3 * F32
        shared = torch.from_numpy(np.zeros(1000))
        assert m.current_bytes == 3 * F32
        doubled = shared * 2
    assert m.peak_bytes == 3 * F32 + doubled.nbytes


def test_resizing_changes_the_count() -> None:
    with track_memory() as m:
        x = torch.empty(10)
        x.resize_(1000)
        assert m.current_bytes == 1000 * F32
    assert m.peak_bytes == 1000 * F32


def test_several_outputs_and_nested_arguments() -> None:
    with track_memory() as m:
        x = torch.zeros(8)
        values, indices = torch.sort(x)
        stacked = torch.cat([values, x])
    assert m.current_bytes == x.nbytes + values.nbytes + indices.nbytes + stacked.nbytes == 8 * (4 + 4 + 8 + 8)


def test_torchs_own_backward_is_seen() -> None:
    w = torch.ones(100, requires_grad=True)
    with track_memory() as m:
        (w * w).sum().backward()
    assert w.grad is not None
    assert m.current_bytes == w.grad.nbytes
    assert m.peak_bytes >= 2 * w.grad.nbytes


def test_a_kept_intermediate_is_a_larger_peak_than_a_freed_one() -> None:
    def run(keep: bool) -> int:
        kept = []
        with track_memory() as m:
            x = torch.zeros(1000)
            for _ in range(10):
                x = x + 1
                kept += [x] if keep else []
        return m.peak_bytes

    assert run(keep=False) == 2000 * F32
    assert run(keep=True) == 10_000 * F32


def test_an_exception_leaves_the_mode() -> None:
    with pytest.raises(ZeroDivisionError), track_memory() as m:
        _ = 1 / 0
    torch.zeros(10)
    assert m.peak_bytes == 0


@pytest.mark.gpu
def test_device_memory_counts_as_torch_allocates_it() -> None:
    torch.cuda.synchronize()
    start = torch.cuda.memory_allocated()
    with track_memory() as m:
        x = torch.zeros(2**20, device="cuda")
        y = x + 1
        assert torch.cuda.memory_allocated() - start == m.current_bytes == x.nbytes + y.nbytes


def test_the_first_op_does_not_import_torchs_compiler() -> None:
    code = (
        "import sys, torch\nfrom mlsys_lab.benchmark.memory import track_memory\n"
        "with track_memory() as m:\n    torch.zeros(3) + 1\nprint('torch._dynamo' in sys.modules, m.peak_bytes)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "24"]
