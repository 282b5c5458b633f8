"""What the kernels promise on a GPU, each measured as a ratio within this run: one H100 takes less than 8 minutes.

    python tests/bench/gpu.py [--only TEXT] [--record] [--minutes N]

Prints asked against measured and exits with 1 if a goal is missed, a result is wrong or a call fails; --only takes the
entries whose names contain TEXT, --record keeps the records in book/data/measurements. Of every entry there is a record
of its speed, with the other's median as its bound, and one of each ratio: the other's time over ours, above 1 where
ours is faster. Every call is replayed as a CUDA graph, so that what is timed is the GPU's work and not Python's, after
the L2 cache was overwritten.
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

import torch
from rich.console import Console
from rich.table import Table

from mlsys_lab.benchmark import Bound, Record, compare, new_record
from mlsys_lab.kernels import cuda_cpp
from tests.bench.kernels import attention, memory, products
from tests.bench.kernels.entries import Call, Case, Entry, Machine

RECORDS = ROOT / "book/data/measurements"
ENTRIES = [*products.ENTRIES, *attention.ENTRIES, *memory.ENTRIES]
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
    """One record of the speed, and one of each ratio. `graph` makes of a call what is timed."""
    calls = {"ours": graph(case.ours)} | {name: graph(call) for name, call in case.against.items()}
    times = compare(calls, device=device, samples=entry.samples, warmup=WARMUP)
    found = []

    def record(name: str, what: str, samples: Any, unit: str, asked: float | None = None, **more: Any) -> None:
        parameters = {"sizes": list(entry.sizes), **case.parameters}
        command = "python tests/bench/gpu.py"
        kept = new_record(
            name, what, samples, unit=unit, better="higher", command=command, seed=SEED, device=device,
            parameters=parameters, **more,
        )  # fmt: skip
        found.append(Measured(entry, kept, asked))

    rates = {name: case.amount * 1e-12 / timing.p50_s for name, timing in times.timings.items()}
    best = max(case.against, key=lambda name: rates[name])
    speed = [case.amount * 1e-12 / seconds for seconds in times.timings["ours"].samples_s]
    record(entry.name, entry.what, speed, case.unit, bound=Bound(rates[best], f"{best} in the same run"))
    for name in case.against:
        notes = f"ours {rates['ours']:.4g}, {name} {rates[name]:.4g} {case.unit}"
        ratio, asked = times.ratio(name, "ours").samples, entry.asked.get(name)
        record(f"{entry.name}-against-{name}", f"{entry.what}: speed / {name}'s", ratio, "ratio", asked, notes=notes)
    return found


def all_measured(entries: list[Entry], machine: Machine, until_s: float) -> Iterator[Measured]:
    """Entry by entry; what goes wrong with one does not keep the others from being measured."""
    for entry in entries:
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
    table = Table("record", "asked", "measured", "p20 to p80", "unit", "met", title="kernels on a GPU")
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
    parser = argparse.ArgumentParser(description="Measure what the kernels promise on a GPU.")
    parser.add_argument("--only", default="", metavar="TEXT", help="the entries whose names contain this")
    parser.add_argument("--record", action="store_true", help=f"keep the records in {RECORDS.relative_to(ROOT)}")
    parser.add_argument("--minutes", type=float, default=8.0, metavar="N", help="start no entry after this (8)")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("tests/bench/gpu.py measures a GPU, and torch finds no CUDA device here", file=sys.stderr)
        return 1
    chosen = [entry for entry in ENTRIES if arguments.only in entry.name]
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
