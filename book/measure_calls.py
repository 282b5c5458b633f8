"""Measure what chapter 3 says of single calls: `python book/measure_calls.py`, on a machine with nothing else to do.

A record of each call goes to book/data/measurements, in µs, and one of what recording adds, taken round by round. The
chapter times the same calls where its page is built, and quotes these with their spread. It takes half a minute.
"""

from __future__ import annotations

import torch

from book.pretrain import RECORDS
from mlsys_lab.benchmark import Record, compare, new_record
from mlsys_lab.models.training import one_thread

COMMAND = "python book/measure_calls.py"
ROUNDS = 200


def measure_calls(rounds: int = ROUNDS) -> list[Record]:
    """Time calls on tensors of one element in turns, and return a record of each."""
    a, b, w = torch.ones(1), torch.ones(1), torch.ones(1, requires_grad=True)
    calls = {
        "call": ("an empty Python call", lambda: None),
        "view": ("a.view(1)", lambda: a.view(1)),
        "add": ("a + b", lambda: a + b),
        "add-recorded": ("w + b, recorded", lambda: w + b),
        "add-backward": ("w + b and its backward", lambda: (w + b).backward()),
    }
    with one_thread():
        timings = compare({name: call for name, (_, call) in calls.items()}, samples=rounds, warmup=1000).timings
    samples = {name: [1e6 * seconds for seconds in timing.samples_s] for name, timing in timings.items()}
    words = {name: said for name, (said, _) in calls.items()}
    samples["recording"] = [one - other for one, other in zip(samples["add-recorded"], samples["add"], strict=True)]
    words["recording"] = "w + b, recorded, less a + b in the same round"
    return [
        new_record(f"host-{name}", words[name], taken, unit="µs", better="lower", command=COMMAND, seed=0)
        for name, taken in samples.items()
    ]


if __name__ == "__main__":
    for record in measure_calls():
        record.save(RECORDS)
        print(f"{record.name:20}{record.p50:8.3f} µs   p20 {record.p20:.3f}, p80 {record.p80:.3f}   {record.what}")
