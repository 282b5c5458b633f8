"""Measure collectives as nccl-tests does: time, algorithm and bus bandwidth, and the number of wrong elements."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mlsys_lab.comm.collectives import all_reduce, reduce_scatter, rooted
from mlsys_lab.comm.collectives.all_to_all import all_to_all
from mlsys_lab.comm.collectives.chunks import split_chunks
from mlsys_lab.comm.cost.bus_bandwidth import bus_bytes_per_s
from mlsys_lab.comm.launcher import Backend, run
from mlsys_lab.comm.rank import Rank
from mlsys_lab.errors import InputError, did_you_mean

Algorithm = Callable[[Rank, torch.Tensor], torch.Tensor]
"""From a rank's full array to its result, flat."""


def _gathered(algorithm: Callable[[Rank, torch.Tensor], Any]) -> Algorithm:
    def gather_own_chunk(rank: Rank, x: torch.Tensor) -> torch.Tensor:
        parts = algorithm(rank, split_chunks(x, rank.size)[rank.rank])
        return parts if isinstance(parts, torch.Tensor) else torch.cat(parts)

    return gather_own_chunk


def _reduced(algorithm: Callable[[Rank, torch.Tensor], torch.Tensor | None]) -> Algorithm:
    def reduce_to_root(rank: Rank, x: torch.Tensor) -> torch.Tensor:
        total = algorithm(rank, x)
        return x if total is None else total

    return reduce_to_root


def _all_to_all(rank: Rank, x: torch.Tensor) -> torch.Tensor:
    return torch.cat(all_to_all(rank, split_chunks(x, rank.size)))


ALGORITHMS: dict[str, dict[str, Algorithm]] = {
    "all_reduce": dict(all_reduce.ALGORITHMS),
    "broadcast": {
        "linear": rooted.broadcast_linear,
        "tree": rooted.broadcast,
        "chain": rooted.broadcast_chain,
    },
    "reduce": {"linear": _reduced(rooted.reduce_linear), "tree": _reduced(rooted.reduce)},
    "all_gather": {
        "ring": _gathered(reduce_scatter.all_gather),
        "doubling": _gathered(reduce_scatter.all_gather_doubling),
    },
    "reduce_scatter": {"ring": reduce_scatter.reduce_scatter, "halving": reduce_scatter.reduce_scatter_halving},
    "all_to_all": {"pairwise": _all_to_all},
}
"""Our algorithms for each collective, by name. With processes there is "torch" too."""


def torch_algorithm(collective: str) -> Algorithm:
    """The algorithm that calls torch.distributed's own collective over the backend's group."""
    import torch.distributed as dist

    def call(rank: Rank, x: torch.Tensor) -> torch.Tensor:
        group, p = rank.torch_group, rank.size
        if collective == "all_to_all":
            received = [torch.empty_like(split_chunks(x, p)[rank.rank]) for _ in range(p)]
            dist.all_to_all(received, split_chunks(x, p), group=group)
            return torch.cat(received)
        if collective == "all_gather":
            own = split_chunks(x, p)
            gathered = [torch.empty_like(chunk) for chunk in own]
            dist.all_gather(gathered, own[rank.rank].clone(), group=group)
            return torch.cat(gathered)
        if collective == "reduce_scatter":
            chunks = split_chunks(x, p)
            out = torch.empty_like(chunks[rank.rank])
            dist.reduce_scatter(out, chunks, group=group)
            return out
        out = x.clone()
        if collective == "all_reduce":
            dist.all_reduce(out, group=group)
        elif collective == "broadcast":
            dist.broadcast(out, 0, group=group)
        else:
            dist.reduce(out, 0, group=group)
        return out if collective != "reduce" or rank.rank == 0 else x

    return call


@dataclass(frozen=True)
class Row:
    """One row of the table: a collective by one algorithm on an array of `size_bytes`, median of its iterations."""

    collective: str
    algorithm: str
    ranks: int
    size_bytes: int
    time_s: float
    wrong: int

    @property
    def algorithm_bytes_per_s(self) -> float:
        """Algorithm bandwidth: the array's bytes divided by the time."""
        return self.size_bytes / self.time_s

    @property
    def bus_bytes_per_s(self) -> float:
        """Bus bandwidth, to be compared with the bandwidth of a rank's link."""
        return bus_bytes_per_s(self.collective, self.ranks, self.size_bytes, self.time_s)


def measure(
    collective: str,
    ranks: int,
    sizes_bytes: Sequence[int],
    *,
    backend: Backend = "threads",
    algorithms: Sequence[str] | None = None,
    iterations: int = 5,
) -> list[Row]:
    """Time a collective of float32 arrays with all algorithms, or those named, after one untimed call.

    Each time is that of the slowest rank between two barriers. On threads ranks take turns, so a time is the work of
    all ranks and of Python: it compares numbers of messages and says nothing about a network. Sizes are rounded to an
    equal number of elements on each rank. Raises InputError for bad arguments.
    """
    if collective not in ALGORITHMS:
        known, help_ = ", ".join(ALGORITHMS), did_you_mean(collective, ALGORITHMS)
        raise InputError("unknown collective", got=collective, expected=known, help=help_)
    if ranks < 2 or iterations < 1 or not sizes_bytes or min(sizes_bytes) < 1:
        raise InputError(
            "a measurement needs two ranks, an iteration and a positive size",
            got=f"{ranks} ranks, {iterations} iterations, sizes {list(sizes_bytes)}",
        )
    available = [*ALGORITHMS[collective], *(["torch"] if backend != "threads" else [])]
    is_power = ranks & (ranks - 1) == 0
    chosen = list(algorithms or [one for one in available if is_power or one not in ("doubling", "halving")])
    if unknown := [one for one in chosen if one not in available]:
        raise InputError(
            f"unknown algorithm for {collective} with {backend}", got=unknown[0], expected=", ".join(available)
        )
    counts = [max(1, round(size / 4 / ranks)) * ranks for size in sizes_bytes]

    def program(rank: Rank, _: None) -> list[tuple[float, int]]:
        return [_measure_one(rank, collective, algorithm, n, iterations) for algorithm in chosen for n in counts]

    results, _ = run(program, [None] * ranks, backend=backend)
    measured = zip(*results, strict=True)
    return [
        Row(collective, algorithm, ranks, 4 * n, max(time_s for time_s, _ in each), sum(wrong for _, wrong in each))
        for (algorithm, n), each in zip(((one, n) for one in chosen for n in counts), measured, strict=True)
    ]


def _measure_one(rank: Rank, collective: str, algorithm: str, n: int, iterations: int) -> tuple[float, int]:
    """Median seconds of a call on this rank, and the number of its wrong elements."""
    function = torch_algorithm(collective) if algorithm == "torch" else ALGORITHMS[collective][algorithm]
    x = _make_input(rank.rank, n).to(rank.device)
    out = function(rank, x)
    times = []
    for _ in range(iterations):
        rank.barrier()
        start = time.perf_counter()
        out = function(rank, x)
        if out.is_cuda:
            torch.cuda.synchronize()
        rank.barrier()
        times.append(time.perf_counter() - start)
    expected = _expect(collective, rank.rank, rank.size, n)
    return statistics.median(times), int((out.cpu().reshape(-1) != expected).sum())


def _make_input(rank: int, n: int) -> torch.Tensor:
    """Small integers, whose sums are exact in float32."""
    return (torch.arange(n) % 7 + rank).float()


def _expect(collective: str, rank: int, p: int, n: int) -> torch.Tensor:
    inputs = [_make_input(other, n) for other in range(p)]
    total = torch.stack(inputs).sum(0)
    return {
        "all_reduce": lambda: total,
        "broadcast": lambda: inputs[0],
        "reduce": lambda: total if rank == 0 else inputs[rank],
        "all_gather": lambda: torch.cat([split_chunks(x, p)[other] for other, x in enumerate(inputs)]),
        "reduce_scatter": lambda: split_chunks(total, p)[rank],
        "all_to_all": lambda: torch.cat([split_chunks(x, p)[rank] for x in inputs]),
    }[collective]()
