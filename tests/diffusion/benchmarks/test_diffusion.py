"""The diffusion programs of `make bench-gpu`, on tiny sizes and a CPU, and at their own on a stand-in for a GPU."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mlsys_lab.flops.dit import forward, parameters, preset
from mlsys_lab.kernels import cuda_cpp
from tests.bench import gpu
from tests.bench.kernels.entries import Machine
from tests.bench.workloads import diffusion
from tests.pretended_gpu import DEVICE, pretended_gpu


class Small(Machine):
    """A machine with a known peak."""

    peak_flops_per_s = 1e12


CPU = Small("cpu", cuda_cpp.launch)
GOALS = {
    "gpu-dit-denoising": {"peak": 0.45},
    "gpu-dit-training": {"peak": 0.45},
    "gpu-diffusion-engine": {"ideal": 0.9},
}


@pytest.mark.parametrize("entry", diffusion.ENTRIES, ids=lambda entry: entry.name)
def test_each_program_gives_what_it_is_to_give(entry):
    case = entry.make(CPU, *entry.tiny)
    assert case.wrong() == ""
    lines = gpu.measured(entry, case, device="cpu")
    assert {line.record.name: line.asked for line in lines if line.asked} == {
        f"{entry.name}-against-{name}": asked for name, asked in GOALS[entry.name].items()
    }


@pytest.mark.parametrize("entry", diffusion.ENTRIES[:2], ids=lambda entry: entry.name)
def test_flops_are_those_that_torch_counts(entry):
    case = entry.make(CPU, *entry.tiny)
    with FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        case.ours()
    assert counter.get_total_flops() == pytest.approx(case.amount, rel=0.02)  # the first map's input needs no gradient


def test_images_are_counted_as_the_engine_counts_them():
    (entry,) = diffusion.ENTRIES[2:]
    case = entry.make(CPU, *entry.tiny)
    *_, slots, requests, steps = entry.tiny
    assert len(case.ours()) == requests and case.amount % 2 == 0
    assert len(case.against["ideal"]()) == slots and case.amount_of("ideal") == 2 * slots * steps


def test_the_network_is_dit_b_2():
    layers, width, size, batch = diffusion.ENTRIES[0].sizes
    ours, theirs = diffusion.config(layers, width, size), preset("B/2")
    assert parameters(ours) / parameters(theirs) == pytest.approx(1, abs=1e-3)
    assert forward(ours, batch).total / forward(theirs, batch).total == pytest.approx(1, abs=1e-3)


def test_at_full_size_the_engine_stays_on_the_device_and_waits_for_nothing():
    """In fp32: the stand-in has no autocast."""
    layers, width, size, slots, *_ = diffusion.ENTRIES[2].sizes
    with pretended_gpu() as reads:
        denoiser = diffusion.make_denoiser(Small(DEVICE, cuda_cpp.launch), layers, width, size)
        of = diffusion.config(layers, width, size)
        asked = diffusion.ask([1, 2] * (slots // 2), of.classes)
        images = diffusion.draw(denoiser, of, asked, slots, torch.float32, DEVICE)
    assert images.shape == (slots, 4, size, size) and images.device.type == DEVICE and not reads
