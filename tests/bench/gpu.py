"""What the course promises on a GPU, each measured as a ratio within this run.

    python tests/bench/gpu.py [--only TEXT] [--record] [--minutes N]

Prints asked against measured and exits with 1 if a goal is missed, a result is wrong or a call fails; --only takes the
entries whose names contain TEXT, --record keeps the records in book/data/measurements. Of every entry there is a record
of its speed, with the other's median as its bound, and one of each ratio: our speed over the other's, above 1 where
ours is faster. A kernel is replayed as a CUDA graph, so that what is timed is the GPU's work and not Python's, after
the L2 cache was overwritten; all kernels take one H100 less than 8 minutes. A program, of serving or diffusion, is
timed from beginning to end with the host's work in it; how long all take is not known, for none has met a GPU yet.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)  # where `tests` is found; a script's own folder stands there

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from mlsys_lab.benchmark import Bound, Record, compare, new_record
from mlsys_lab.kernels import cuda_cpp
from tests.bench.kernels import attention, memory, products
from tests.bench.kernels.entries import UNITS, Call, Case, Entry, Machine, Program
from tests.bench.workloads import diffusion, serving

RECORDS = ROOT / "book/data/measurements"
KERNELS = [*products.ENTRIES, *attention.ENTRIES, *memory.ENTRIES]
PROGRAMS = [*diffusion.ENTRIES, *serving.ENTRIES]
SEED = 0
WARMUP = 3


@dataclass(frozen=True)
class Measured:
    """An entry's record, and its goal if there is one; without a record `trouble` says why."""

    entry: Entry
    record: Record | None = None
    asked: float | None = None
    trouble: str = ""

    @property
    def met(self) -> bool:
        """False for trouble, too."""
        if self.record is None:
            return False
        return self.asked is None or self.record.p50 >= self.asked


def replayed(call: Call) -> Call:
    """The call's kernels as a CUDA graph, captured on the current stream after a few calls to warm up."""
    for _ in range(WARMUP):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        kept = call()

    def replay(_results: Any = kept) -> None:
        graph.replay()

    return replay


def measured(
    entry: Entry, case: Case, graph: Callable[[Call], Call] = replayed, device: str = "cuda"
) -> list[Measured]:
    """One record of the speed, and one of each ratio. `graph` makes of an operation's call what is timed."""
    program = isinstance(case, Program)
    timed, warmup = (lambda call: call, 1) if program else (graph, WARMUP)
    calls = {"ours": timed(case.ours)} | {name: timed(call) for name, call in case.against.items()}
    times = compare(calls, device=device, samples=entry.samples, warmup=warmup)
    speeds = {
        name: [case.amount_of(name) * UNITS[case.unit] / seconds for seconds in timing.samples_s]
        for name, timing in times.timings.items()
    }
    ours = speeds["ours"]
    others = {name: speeds[name] for name in case.against}
    if isinstance(case, Program):
        others |= {name: [limit] * len(ours) for name, limit in case.limits.items()}
    medians = {name: float(np.median(taken)) for name, taken in (others | {"ours": ours}).items()}
    found = []

    def record(name: str, what: str, samples: Any, unit: str, asked: float | None = None, **more: Any) -> None:
        parameters = {"sizes": list(entry.sizes), **case.parameters}
        command = "python tests/bench/gpu.py"
        kept = new_record(
            name, what, samples, unit=unit, better="higher", command=command, seed=SEED, device=device,
            parameters=parameters, **more,
        )  # fmt: skip
        found.append(Measured(entry, kept, asked))

    best = max(others, key=lambda name: medians[name])
    how = f"{best} in the same run" if best in case.against else f"{best}, by the table of devices"
    record(entry.name, entry.what, ours, case.unit, bound=Bound(medians[best], how))
    for name, theirs in others.items():
        notes = f"ours {medians['ours']:.4g}, {name} {medians[name]:.4g} {case.unit}"
        ratio = [mine / its for mine, its in zip(ours, theirs, strict=True)]
        what = f"{entry.what}: speed / {name}'s"
        record(f"{entry.name}-against-{name}", what, ratio, "ratio", entry.asked.get(name), notes=notes)
    return found


def all_measured(entries: list[Entry], machine: Machine, until_s: float) -> Iterator[Measured]:
    """Entry by entry; what goes wrong with one does not keep the others from being measured."""
    for entry in entries:
        case = None  # the last one's tensors make room
        if time.monotonic() > until_s:
            yield Measured(entry, trouble="not measured: out of time")
            continue
        try:
            case = entry.make(machine, *entry.sizes)
            if wrong := case.wrong():
                yield Measured(entry, trouble=f"wrong: {wrong}")
                continue
            yield from measured(entry, case)
        except Exception as error:  # a kernel that fails must not hide the figures of the rest
            yield Measured(entry, trouble=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
        finally:
            torch.cuda.empty_cache()


def shown(lines: list[Measured]) -> Table:
    """Asked against measured."""
    table = Table("record", "asked", "measured", "p20 to p80", "unit", "met", title="on a GPU")
    for line in lines:
        if line.record is None:
            table.add_row(line.entry.name, "", line.trouble, "", "", "NO")
            continue
        record, asked = line.record, "" if line.asked is None else f"≥ {line.asked:g}"
        met = "" if line.asked is None else ("yes" if line.met else "NO")
        spread = f"{record.p20:.3g} to {record.p80:.3g}"
        table.add_row(record.name, asked, f"{record.p50:.4g}", spread, record.unit, met)
    return table


def main() -> int:
    """0 if all goals are met."""
    parser = argparse.ArgumentParser(description="Measure what the course promises on a GPU.")
    parser.add_argument("--only", default="", metavar="TEXT", help="the entries whose names contain this")
    parser.add_argument("--record", action="store_true", help=f"keep the records in {RECORDS.relative_to(ROOT)}")
    parser.add_argument("--minutes", type=float, default=25.0, metavar="N", help="start no entry after this (25)")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("tests/bench/gpu.py measures a GPU, and torch finds no CUDA device here", file=sys.stderr)
        return 1
    chosen = [entry for entry in [*KERNELS, *PROGRAMS] if arguments.only in entry.name]
    if not chosen:
        print(f"no entry's name contains {arguments.only!r}", file=sys.stderr)
        return 1
    start = time.monotonic()
    lines = []
    with torch.cuda.stream(torch.cuda.Stream()):  # graphs cannot be captured on the default stream
        for line in all_measured(chosen, Machine("cuda", cuda_cpp.launch), start + 60 * arguments.minutes):
            lines.append(line)
            if arguments.record and line.record is not None:
                line.record.save(RECORDS)
            name = line.record.name if line.record else line.entry.name
            print(f"{time.monotonic() - start:5.0f} s  {name}  {line.trouble}", file=sys.stderr, flush=True)
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(shown(lines))
    for line in lines:
        if line.record is not None and line.record.notes:
            console.print(f"{line.record.name}: {line.record.notes}", highlight=False)
    console.print(f"{torch.cuda.get_device_name()}, {time.monotonic() - start:.0f} s")
    return 0 if all(line.met for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
