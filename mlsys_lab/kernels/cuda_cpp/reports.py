"""Messages about an emulated launch's faulty accesses: source line, thread, array and element."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mlsys_lab.kernels.cuda_cpp.launcher import Source
from mlsys_lab.kernels.trace.events import ACCESS, ARRIVAL, Buffer, Site, Trace
from mlsys_lab.kernels.trace.faults import BEFORE, BEYOND
from mlsys_lab.kernels.trace.races import Race
from mlsys_lab.kernels.trace.requests import VERBS

RACE, EQUAL, BOUNDS, UNWRITTEN, MISALIGNED = "race", "equal", "bounds", "unwritten", "misaligned"
FIELDS = 11
"""Fields of a report: problem, array, offset and bytes; kind, address, block and thread of two accesses."""

NONE, NO_ARRIVALS = np.empty(0, ACCESS), np.empty(0, ARRIVAL)


@dataclass(frozen=True)
class Launched:
    """Context of a report's numbers: the kernel's source and program, its extents, and its arrays."""

    source: Source
    program: Path
    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arrays: Sequence[Buffer]  # shared arrays have one-byte elements: reports include the access size

    def sentences(self, said: str, *, equal: bool) -> list[str]:
        """The reports of stores of equal values, or all other reports, one line each."""
        reports = [line.split() for line in said.splitlines()]
        return [self._describe(one) for one in reports if len(one) == FIELDS + 1 and (one[0] == EQUAL) is equal]

    def _describe(self, report: list[str]) -> str:
        what, (array, offset, size, *numbers) = report[0], map(int, report[1:])
        (kind, place, block, thread), (other_kind, other_place, other_block, other_thread) = numbers[:4], numbers[4:]
        site, who = self._site(place), self._name(block, thread)
        if what == MISALIGNED:
            return f"{site}: {who} touches several numbers at once where they do not begin at a multiple of their size"
        buffer = self.arrays[array]
        if buffer.space == "shared":
            buffer = Buffer(buffer.name, "shared", (buffer.shape[0] // size,), size, (size,), False)
        does = f"{site}: {who} {VERBS[kind]}s {buffer.describe(offset)} of {buffer.name}"
        if what == BOUNDS:
            return f"{does}, {BEFORE if offset < 0 else BEYOND} of the array"
        if what == UNWRITTEN:
            return f"{does}, which no thread of the block has written before"
        other = self._name(None if other_block == block else other_block, other_thread)
        race = Race(
            buffer=buffer.name,
            first=site,
            first_kind=kind,
            second=self._site(other_place),
            second_kind=other_kind,
            elements=1,
            place=buffer.describe(offset),
            block=block,
            thread=thread,
            other_block=other_block,
            other_thread=other_thread,
            who=who,
            other_who=other,
            equal=what == EQUAL,
        )
        return race.sentence

    def _name(self, block: int | None, thread: int) -> str:
        (x, y, z), (i, j, k) = ((*extent, 1, 1)[:3] for extent in (self.grid, self.block))
        return Trace(self.kernel, (x, y, z), (i, j, k), (), (), NONE, NO_ARRIVALS).describe_actor(block, thread)

    def _site(self, place: int) -> Site:
        """The source line before return address `place`; for inlined code, the line in the kernel's text."""
        command = ["addr2line", "-i", "-e", str(self.program), hex(place - 1)]
        listed = subprocess.run(command, capture_output=True, check=True, text=True).stdout.splitlines()
        found = [line.split(" ")[0].rpartition(":") for line in listed]
        own = [one for one in found if Path(one[0]).name == self.source.name] or found
        file, line = own[0][0], int(own[0][2]) if own[0][2].isdigit() else 0
        lines = self.source.text.splitlines()
        return Site(Path(file).name, line, lines[line - 1].strip() if own is not found and line <= len(lines) else "")
