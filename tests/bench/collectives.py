"""How near our ring all-reduce over gloo is to torch.distributed's own.

    python -m tests.bench.collectives [--record]

Four processes on this machine. Each round calls both, one call between two barriers as in `bench-collectives`, and the
slowest rank counts. A ratio is the median over the rounds of several runs. Exit status 1 if one misses its goal.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import torch

from mlsys_lab.comm import Rank, run
from mlsys_lab.comm.measure import ALGORITHMS, torch_algorithm
from tests.bench.goals import HELP, Goal, conclude

RANKS, RUNS, ROUNDS = 4, 3, 50
SIZES_BYTES = {"64 KB": 1 << 16, "1 MB": 1 << 20, "8 MB": 1 << 23}
GOALS = dict.fromkeys(SIZES_BYTES, Goal("<=", 1.3))
CALLS = {"ours": ALGORITHMS["all_reduce"]["ring"], "torch": torch_algorithm("all_reduce")}


def time_rounds(rank: Rank, size_bytes: int) -> dict[str, list[float]]:
    """Seconds of each call on this rank, by name, after one untimed call of each."""
    x = (torch.arange(size_bytes // 4) % 7 + rank.rank).float()
    assert torch.equal(*(call(rank, x) for call in CALLS.values())), "sums of small integers are exact"
    times: dict[str, list[float]] = {name: [] for name in CALLS}
    for _ in range(ROUNDS):
        for name, call in CALLS.items():
            rank.barrier()
            start = time.perf_counter()
            call(rank, x)
            rank.barrier()
            times[name].append(time.perf_counter() - start)
    return times


def main() -> int:
    """Exit status: 1 if the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--record", action="store_true", help=HELP)
    record = parser.parse_args().record
    ratios = {}
    for name, size_bytes in SIZES_BYTES.items():
        slowest: dict[str, list[float]] = {call: [] for call in CALLS}
        for _ in range(RUNS):
            by_rank = run(time_rounds, [size_bytes] * RANKS, backend="gloo", limit_s=300).results
            for call in CALLS:
                slowest[call] += [max(each) for each in zip(*(times[call] for times in by_rank), strict=True)]
        ratios[name] = statistics.median(a / b for a, b in zip(slowest["ours"], slowest["torch"], strict=True))
    title = f"ring all-reduce over gloo on {RANKS} processes: our time over torch's"
    return conclude("collectives", title, GOALS, {"measured": ratios}, record=record)


if __name__ == "__main__":
    sys.exit(main())
