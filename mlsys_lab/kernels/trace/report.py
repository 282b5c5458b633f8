"""Report on one launch: a table of figures, and a line for each problem and each cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.jupyter import JupyterMixin
from rich.markup import escape
from rich.table import Table

from mlsys_lab.kernels.trace.banks import conflicts
from mlsys_lab.kernels.trace.barriers import Divergence, divergences, missed
from mlsys_lab.kernels.trace.contention import contention
from mlsys_lab.kernels.trace.events import Trace
from mlsys_lab.kernels.trace.faults import Fault, faults
from mlsys_lab.kernels.trace.races import Race, races
from mlsys_lab.kernels.trace.requests import VERBS, Requests
from mlsys_lab.kernels.trace.sectors import coalescing
from mlsys_lab.kernels.trace.traffic import Traffic, traffic

NOTEBOOK_COLUMNS = 90
"""Characters of a line that JupyterLab shows at 1280 px, next to its file browser."""


@dataclass(frozen=True)
class Report(JupyterMixin):
    """Memory traffic, costs and problems of one launch; prints, and displays in a notebook, as `table()`."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    unit_names: tuple[str, str]  # of a block and a thread
    traffic: tuple[Traffic, ...]  # by array
    coalescing: tuple[Requests, ...]  # by source line: sectors of global memory
    conflicts: tuple[Requests, ...]  # by source line: passes through shared memory
    contention: tuple[Requests, ...]  # by source line: turns of atomics
    faults: tuple[Fault, ...]
    undefined: tuple[str, ...]  # a line for each source line where undefined lanes take effect
    races: tuple[Race, ...]
    divergences: tuple[Divergence, ...]
    missed: tuple[str, ...]  # a line for each barrier that not all threads of a block reach

    @property
    def problems(self) -> tuple[str, ...]:
        """Lines about faults, undefined lanes, races and barriers that not all reach; empty for a correct kernel."""
        races = (race for race in self.races if not race.equal)
        others: tuple[Race | Divergence, ...] = (*races, *self.divergences)
        barriers = () if self.divergences else self.missed
        return (*(one.sentence for one in self.faults), *self.undefined, *(one.sentence for one in others), *barriers)

    @property
    def costs(self) -> tuple[str, ...]:
        """Lines about repeated traffic, uncoalesced requests, bank conflicts and contention, the worst first."""
        sectors = _wasteful(self.coalescing, "sectors")
        passes = _wasteful(self.conflicts, "passes")
        turns = _wasteful(self.contention, "turns")
        repeated = (line for one in self.traffic for line in _repeated_traffic(one))
        equal = (race.sentence for race in self.races if race.equal)
        return (*repeated, *sectors, *passes, *turns, *equal)

    def __rich__(self) -> Group:
        return self.table()

    def __str__(self) -> str:
        console = Console(color_system=None, highlight=False, force_jupyter=False)
        if not console.is_terminal:  # which rich takes for 80 columns
            console.width = max(console.width, NOTEBOOK_COLUMNS)
        with console.capture() as capture:
            console.print(self.table())
        return capture.get().rstrip()

    def table(self) -> Group:
        """Figures by array and by source line, then problems and costs, for rich to print."""
        head = f"[bold]{escape(self.kernel)}[/] grid {self.grid}, {self.unit_names[0]} {self.block}"
        parts: list[Table | str] = [head]
        parts.append(_traffic_table(self.traffic))
        for requests, what, unit in (
            (self.coalescing, "requests to global memory", "sectors"),
            (self.conflicts, "requests to shared memory", "passes"),
            (self.contention, "atomics", "turns"),
        ):
            if requests:
                parts += ["", _requests_table(requests, what, unit)]
        for lines, colour, words in ((self.problems, "red", "wrong"), (self.costs, "yellow", "slow")):
            if lines:
                parts += ["", *(f"[{colour}]{words}[/] {escape(line)}" for line in lines)]
        if not self.problems:
            parts += ["", "[green]nothing wrong[/] was seen: no fault, no race, every barrier reached by all threads"]
        return _Fitted(*parts)


class _Fitted(Group):
    """Lines folded to the width of a notebook's output area, which is narrower than rich assumes."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, NOTEBOOK_COLUMNS) if console.is_jupyter else options.max_width
        yield from console.render(Group(*self.renderables), options.update_width(width))


def report(trace: Trace) -> Report:
    """Run all analyses on the trace of one launch, in about a second per million accesses."""
    return Report(
        kernel=trace.kernel,
        grid=trace.grid,
        block=trace.block,
        unit_names=trace.unit_names,
        traffic=traffic(trace),
        coalescing=coalescing(trace),
        conflicts=conflicts(trace),
        contention=contention(trace),
        faults=faults(trace),
        undefined=tuple(map(trace.describe_undefined, trace.undefined)),
        races=races(trace),
        divergences=divergences(trace),
        missed=missed(trace),
    )


def _repeated_traffic(one: Traffic) -> Iterable[str]:
    """Yield a line for each direction in which an array's elements are read or written more than once."""
    for flow, does, most in ((one.read, "read", one.max_reads), (one.written, "written", one.max_writes)):
        if most > 1:
            asked = f"{flow.asked_bytes:,} bytes asked for where {flow.least_bytes:,} would do"
            yield f"{one.buffer} is {does} more than once: {asked}, one element {most:,} times"


def _wasteful(requests: Iterable[Requests], unit: str) -> list[str]:
    """Lines about the source lines that take more sectors, passes or turns (`unit`) than the ideal."""
    wasteful = [one for one in requests if one.taken > one.ideal]
    lines = []
    for one in sorted(wasteful, key=lambda one: one.ideal - one.taken):
        worst = f"up to {one.worst.taken} {unit} a request where {one.worst.ideal} would do"
        lines.append(f"{one.site}: warps {VERBS[one.kind]} {one.buffer} in {worst} (first: {one.worst.who})")
    return lines


def _traffic_table(rows: Iterable[Traffic]) -> Table:
    table = _table("bytes of", "", "asked for", "moved", "least", "asked/least", "moved/least", "most")
    for one in rows:
        for does, flow, most in (("read", one.read, one.max_reads), ("written", one.written, one.max_writes)):
            if flow.asked_bytes:
                sizes = (flow.asked_bytes, flow.moved_bytes, flow.least_bytes)
                ratios = (_ratio(flow.ratio), _ratio(flow.sector_ratio))
                table.add_row(escape(one.buffer), does, *(f"{size:,}" for size in sizes), *ratios, f"{most:,}")
    return table


def _requests_table(rows: Iterable[Requests], what: str, unit: str) -> Table:
    table = _table(what, "", "requests", unit, "least", "efficiency", "worst")
    for one in rows:
        place = f"{one.site.line} [dim]{escape(one.site.text)}[/]"
        does = f"{VERBS[one.kind]} {escape(one.buffer)}"
        counts = (f"{one.requests:,}", f"{one.taken:,}", f"{one.ideal:,}", f"{one.efficiency:.0%}")
        table.add_row(place, does, *counts, f"{one.worst.taken} for {one.worst.ideal}")
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < 2 else "right")
    return table


def _ratio(ratio: float) -> str:
    return f"{ratio:.3g}"
