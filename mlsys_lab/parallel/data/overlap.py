"""Measure how much of data parallelism's communication overlaps with the backward pass, and compare with a simulation.

Buckets, hooks, messages and processes are real. Computation and link are emulated: a layer takes `LAYER_S` forward and
twice that backward, and the link's speed is such that an all-reduce of all gradients takes --comm-to-compute-ratio
times as long as the backward pass. The result hardly depends on the machine's speed, but it does include what a message
costs a rank in addition to the link.

examples:
  python -m mlsys_lab.parallel.data.overlap
  python -m mlsys_lab.parallel.data.overlap --ranks 4 --layers 12 --comm-to-compute-ratio 0.5
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from mlsys_lab.comm import Rank, run
from mlsys_lab.comm.cost.alpha_beta import LinkCost
from mlsys_lab.comm.instrumentation import emulate_link
from mlsys_lab.comm.simulate import Cluster
from mlsys_lab.comm.simulate.steps import data_parallel_step
from mlsys_lab.errors import CourseError, InputError
from mlsys_lab.flops.communication import all_reduce_bytes
from mlsys_lab.parallel.data.ddp import DDP, average_gradients, average_gradients_flat

LAYER_S, WIDTH = 0.02, 64
"""Seconds of a layer's forward pass, and its number of features."""
METHODS = ("all-reduce per parameter", "one flat all-reduce", "overlapped buckets")
"""How gradients are averaged: `average_gradients`, `average_gradients_flat`, and `DDP`."""


@dataclass(frozen=True)
class OverlapResult:
    """Step time of one method of averaging gradients, and the fraction of the all-reduce hidden by computation.

    The fraction, at most 1, is negative where the step takes longer than computation and link one after the other,
    because messages cost the ranks time of their own. `simulated_fraction` is the simulator's.
    """

    method: str
    step_s: float
    hidden_fraction: float
    simulated_fraction: float


def measure(ranks: int = 2, layers: int = 8, comm_to_compute_ratio: float = 1.0, steps: int = 3) -> list[OverlapResult]:
    """Time a step with each method; return the fraction of the all-reduce that it hides, measured and simulated.

    comm_to_compute_ratio: time of an all-reduce of all gradients, relative to the backward pass. The shortest of
    several steps counts, since other work on the machine can only add to it. Raises InputError for bad arguments.
    """
    if ranks < 2 or layers < 2 or steps < 1 or not comm_to_compute_ratio > 0:
        got = f"{ranks} ranks, {layers} layers, {steps} steps, ratio {comm_to_compute_ratio:g}"
        raise InputError("overlap needs two ranks, two layers, a step and a positive ratio", got=got)
    results, _ = run(_time_methods, [(layers, comm_to_compute_ratio, steps)] * ranks, backend="gloo")
    arithmetic_s, all_reduce_s = 3 * layers * LAYER_S, comm_to_compute_ratio * 2 * layers * LAYER_S

    def hidden_fraction(step_s: float) -> float:
        return 1 - (step_s - arithmetic_s) / all_reduce_s

    found = []
    for number, method in enumerate(METHODS):
        cluster, step_s = Cluster(ranks), max(times[number] for times in results)
        data_parallel_step(cluster, layers, LAYER_S, all_reduce_s / layers, overlap=number == len(METHODS) - 1)
        found.append(
            OverlapResult(method, step_s, hidden_fraction(step_s), max(0.0, hidden_fraction(cluster.timeline().end_s)))
        )
    return found


class _TimedLinear(nn.Linear):
    """A linear layer that takes a fixed time."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        paced: torch.Tensor = _Sleep.apply(super().forward(x))  # type: ignore[no-untyped-call]
        return paced


class _Sleep(torch.autograd.Function):
    """Identity that sleeps `LAYER_S` in the forward pass and twice as long in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        time.sleep(LAYER_S)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        time.sleep(2 * LAYER_S)
        return gradients[0]


def _time_methods(world: Rank, args: tuple[int, float, int]) -> list[float]:
    """Seconds of a step with each method, on this rank."""
    layers, comm_to_compute_ratio, steps = args
    model = nn.Sequential(*(_TimedLinear(WIDTH, WIDTH, bias=False) for _ in range(layers)))
    layer_bytes = 4 * WIDTH * WIDTH
    link = LinkCost(0.0, all_reduce_bytes(layer_bytes, world.size) / (comm_to_compute_ratio * 2 * LAYER_S))
    rank, x = emulate_link(world, link), torch.randn(1, WIDTH)

    def step_s(module: nn.Module, finish: Callable[[], None]) -> float:
        world.barrier()
        start = time.monotonic()
        module.zero_grad()
        module(x).sum().backward()
        finish()
        return time.monotonic() - start

    def shortest(module: nn.Module, finish: Callable[[], None]) -> float:
        return min(step_s(module, finish) for _ in range(steps))

    after_backward = [
        shortest(model, lambda: average_gradients(model, rank)),
        shortest(model, lambda: average_gradients_flat(model, rank)),
    ]
    ddp = DDP(model, rank, bucket_bytes=layer_bytes)
    return [*after_backward, shortest(ddp, ddp.finish_gradient_synchronization)]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    description, _, examples = str(__doc__).partition("examples:")
    parser = argparse.ArgumentParser(
        "mlsys_lab.parallel.data.overlap",
        description=description,
        epilog=f"examples:{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--ranks", type=int, default=2, help="ranks, one process each (2)")
    parser.add_argument("--layers", type=int, default=8, help="layers of the model, one bucket each (8)")
    parser.add_argument(
        "--comm-to-compute-ratio",
        type=float,
        default=1.0,
        help="time of the all-reduce, relative to the backward pass (1)",
    )
    args = parser.parse_args(argv)
    try:
        found = measure(args.ranks, args.layers, args.comm_to_compute_ratio)
    except CourseError as problem:
        print(f"overlap: {problem}", file=sys.stderr)
        return 1
    print(f"{'method':<26}{'step, ms':>10}{'hidden':>9}{'simulated':>11}")
    for one in found:
        print(f"{one.method:<26}{1e3 * one.step_s:10.0f}{one.hidden_fraction:9.0%}{one.simulated_fraction:11.0%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
