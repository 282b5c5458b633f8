"""Three calibrations of a machine, in float32 and on one thread: what turns a prediction sheet's counts into seconds.

Dimension letters: B sequences of a rank, L layers, N query heads; (m, k, n) an (m, k) by a (k, n) matrix.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch

from mlsys_lab.benchmark import compare
from mlsys_lab.capstone.functions import call
from mlsys_lab.capstone.job import Calibration, Rates, Shape
from mlsys_lab.capstone.stack import Stack
from mlsys_lab.comm import Rank, run
from mlsys_lab.configs import TrainConfig, TransformerConfig
from mlsys_lab.hardware.cpu import measure_cpu
from mlsys_lab.models.training import one_thread

SAMPLES, ROUND_TRIPS = 7, 20
MESSAGE_ELEMENTS = 2**20
"""Elements of the long message that measures a link's bandwidth: 4 MiB, as much as the capstone's gradients."""


def split_batch(batch_size: int, world_size: int) -> list[int]:
    """Sequences of each rank, as `training.train` splits a batch: earlier ranks get one more where they must.

    >>> split_batch(6, 4)
    [2, 2, 1, 1]
    """
    size, larger = divmod(batch_size, world_size)
    return [size + (rank < larger) for rank in range(world_size)]


def calibrate(stack: Stack, config: TransformerConfig, train_config: TrainConfig, world_size: int) -> Calibration:
    """Measure this machine in a few seconds: the products of a training step by lab 05's list, a link, and memory.

    The link is that of ranks on threads, which take turns. Nothing of the capstone's own run is timed: a sheet that
    this fills in is a prediction.
    """
    with one_thread():
        rates: dict[Shape, float] = {}
        for batch in dict.fromkeys(split_batch(train_config.batch_size, world_size)):
            rates |= measure_rates(stack, config, train_config.seq_len, batch)
        largest = split_batch(train_config.batch_size, world_size)[0]
        unit_s = measure_unit(stack, largest * train_config.seq_len * config.d_ff)
        latency_s, bytes_per_s = measure_link()
        cpu = measure_cpu()
    peak = max(cpu.peak("fp32"), *rates.values())  # a busy machine interrupts a large product more than a small one
    return Calibration(Rates(rates), unit_s, latency_s, bytes_per_s, peak, cpu.memory_bandwidth_bytes_per_s)


def measure_rates(stack: Stack, config: TransformerConfig, tokens: int, batch: int) -> dict[Shape, float]:
    """FLOP/s of every product of a training step, by shape and by that of its transpose.

    The heads of a layer are multiplied B·N at a time, as the engine does, everything else one by one.
    """
    heads = batch * config.n_heads
    calls: dict[str, Any] = {}
    flops: dict[str, tuple[Shape, int]] = {}
    for _, times, m, k, n in call(stack, "arithmetic", "step_products", config, tokens, batch):
        at_once = heads if times >= config.n_layers * heads else 1
        name = f"{m} {k} {n}"
        flops[name] = (m, k, n), 2 * at_once * m * k * n
        calls[name] = partial(torch.matmul, *(torch.randn(at_once, *one).squeeze(0) for one in ((m, k), (k, n))))
    timings = compare(calls, samples=SAMPLES).timings
    rates = {shape: work / timings[name].p50_s for name, (shape, work) in flops.items()}
    return {shape[::-1]: rate for shape, rate in rates.items()} | rates


def measure_unit(stack: Stack, elements: int) -> float:
    """Seconds of a unit of elementwise work, one element forward and backward, in arrays as large as the model's."""
    x, y = (stack.engine.Tensor(torch.randn(elements), requires_grad=True) for _ in range(2))
    ones = torch.ones(elements)

    def four_operations() -> None:
        x.grad = y.grad = None
        ((x * y).exp() + x).tanh().backward(ones)

    return compare({"units": four_operations}, samples=SAMPLES).timings["units"].p50_s / (4 * elements)


def measure_link() -> tuple[float, float]:
    """Latency in seconds and bytes per second of a message between two ranks, from round trips of two sizes."""
    times, _ = run(_time_round_trips, [None, None])
    short_s, long_s = times[0]
    size_bytes = 4 * MESSAGE_ELEMENTS
    return short_s, size_bytes / max(long_s - short_s, size_bytes * 1e-15)


def _time_round_trips(rank: Rank, given: None) -> list[float]:
    """Seconds of a message of one element, and of a long one: half the median round trip."""
    medians = []
    for elements in (1, MESSAGE_ELEMENTS):
        array, seconds = torch.ones(elements), []
        for _ in range(ROUND_TRIPS):
            start = time.perf_counter()
            if rank.rank == 0:
                rank.send(array, 1)
            received = rank.recv(1 - rank.rank, like=array)
            if rank.rank == 1:
                rank.send(received, 0)
            seconds.append(time.perf_counter() - start)
        medians.append(sorted(seconds)[ROUND_TRIPS // 2] / 2)
    return medians
