"""The report of one launch: its figures, its lines, and how they look."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from mlsys_lab.kernels.trace.events import ATOMIC, LOAD, STORE, Site, Trace
from mlsys_lab.kernels.trace.report import NOTEBOOK_COLUMNS, Report, report
from tests.kernels.trace.launches import Ask, array, shared, trace


def printed(of: Report) -> str:
    console = Console(width=200, color_system=None, highlight=False)
    with console.capture() as capture:
        console.print(of.table())
    return capture.get()


@pytest.fixture
def copy() -> Trace:
    """A copy through shared memory, as it should be."""
    return trace(
        [
            Ask("x", range(32), line=2),
            Ask("s", range(32), STORE, line=2),
            Ask("s", range(31, -1, -1), line=4, phase=1),
            Ask("y", range(32), STORE, line=4, phase=1),
        ],
        buffers=[array("x", 32), array("y", 32, initialized=False), shared("s", 32)],
        arrivals=[(3, 0, thread, 0) for thread in range(32)],
    )


def test_a_good_kernel_has_no_problems_and_no_costs(copy: Trace) -> None:
    good = report(copy)
    assert good.problems == () and good.costs == ()
    assert [(one.buffer, one.both.ratio) for one in good.traffic] == [("x", 1.0), ("y", 1.0)]
    assert [one.efficiency for one in (*good.coalescing, *good.conflicts)] == [1.0] * 4
    text = printed(good)
    assert text.endswith("every barrier reached by all threads\n") and "slow" not in text
    rows = [" ".join(line.split()) for line in text.splitlines()]
    for row in (
        "2 source of line 2 read x 1 4 4 100% 4 for 4",
        "x read 128 128 128 1 1 1",
        "y written 128 128 128 1 1 1",
    ):
        assert row in rows


def test_print_a_notebook_and_rich_show_the_table(copy: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    good = report(copy)
    lines = [line.rstrip() for line in printed(good).strip().splitlines()]
    assert [line.rstrip() for line in str(good).splitlines()] == lines
    shown = good._repr_mimebundle_([], [])
    assert "every barrier reached by all threads" in shown["text/html"] and "asked for" in shown["text/plain"]


def test_a_notebook_shows_whole_lines(copy: Trace) -> None:
    """Rich takes its output area for wider than it is, and what is beyond is cut."""
    rows = copy.accesses.copy()
    rows["phase"] = 0
    bad = report(dataclasses.replace(copy, accesses=rows))
    assert max(map(len, printed(bad).splitlines())) > NOTEBOOK_COLUMNS
    console = Console(width=115, force_jupyter=True)
    text = "".join(segment.text for segment in console.render(bad.table()))
    assert max(map(len, text.splitlines())) <= NOTEBOOK_COLUMNS


def test_without_its_barrier_the_same_kernel_is_wrong(copy: Trace) -> None:
    rows = copy.accesses.copy()
    rows["phase"] = 0
    bad = report(dataclasses.replace(copy, accesses=rows, arrivals=copy.arrivals[:0]))
    (line,) = bad.problems
    assert line.startswith(
        "line 2 `source of line 2` and line 4 `source of line 4`: block 0 thread 0 writes element 0 of"
    )
    assert f"wrong {line}" in printed(bad) and "nothing wrong" not in printed(bad)


def test_a_barrier_that_half_of_the_threads_pass_by_is_wrong(copy: Trace) -> None:
    rows = copy.accesses.copy()
    rows["phase"][rows["thread"] >= 16] = 0
    halves = report(dataclasses.replace(copy, accesses=rows, arrivals=copy.arrivals[:16]))
    assert any("16 threads of block 0 wait here, thread 16 goes on at line 4" in line for line in halves.problems)


def test_threads_that_ended_before_a_barrier_are_blamed(copy: Trace) -> None:
    early = copy.accesses[copy.accesses["thread"] < 20]
    some = report(dataclasses.replace(copy, accesses=early, arrivals=copy.arrivals[:20]))
    # Thread i reads element 31 - i: those of threads 0 to 11 are from threads that had ended.
    unwritten = "line 4 `source of line 4`: 12 of 20 threads read s where nothing was written before"
    assert some.problems[0].startswith(unwritten) and some.problems[1:] == some.missed != ()
    straight = early[(early["phase"] == 0) | (early["kind"] == STORE)]
    (line,) = report(dataclasses.replace(copy, accesses=straight, arrivals=copy.arrivals[:20])).problems
    assert line.endswith("20 of 32 threads of block 0 reach this barrier")


def test_what_is_slow_is_said_the_most_wasteful_place_first() -> None:
    asks = [
        Ask("x", range(1, 33), line=3),  # 5 sectors for 4
        Ask("x", range(0, 1024, 32), line=4),  # 32 for 4
        Ask("x", [0] * 32, line=5),  # one element, 33 times with the column's
        Ask("s", range(0, 1024, 32), STORE, line=6),
    ]
    slow = report(trace(asks, buffers=[array("x", 1024), shared("s", (32, 32))]))
    # Lanes: elements 1 to 32, 0 to 992 by 32, and 0 by all; 0 and 32 are among them more than once.
    again, *places = slow.costs
    assert again == "x is read more than once: 384 bytes asked for where 252 would do, one element 33 times"
    said = "line {0} `source of line {0}`: warps {1} in up to {2} a request where {3} would do (first: block 0 warp 0)"
    assert places == [
        said.format(4, "read x", "32 sectors", 4),
        said.format(3, "read x", "5 sectors", 4),
        said.format(6, "write s", "32 passes", 1),
    ]
    assert slow.problems == () and printed(slow).count("slow line") == 3


def test_an_element_that_is_written_twice_is_written_once_too_often() -> None:
    asks = [Ask("x", range(8), STORE, line=1), Ask("x", [3], STORE, line=2, phase=1)]
    (cost,) = report(trace(asks, buffers=[array("x", 8)])).costs
    assert cost == "x is written more than once: 36 bytes asked for where 32 would do, one element 2 times"


def test_brackets_in_the_source_are_not_taken_for_markup(copy: Trace) -> None:
    odd = dataclasses.replace(copy, kernel="copy[red]", sites=(*copy.sites[:2], Site("k.py", 4, "y[bold] = s[/]")))
    text = printed(report(odd))
    assert "copy[red]" in text and "4 y[bold] = s[/]" in text


def test_a_launch_that_did_nothing() -> None:
    empty = report(trace([], buffers=[]))
    assert empty.problems == empty.costs == ()
    assert "by_hand grid (1, 1, 1)" in printed(empty)


ASKS = st.lists(
    st.builds(
        Ask,
        buffer=st.sampled_from(["x", "y", "s"]),
        elements=st.dictionaries(st.integers(0, 63), st.integers(-3, 40), min_size=1, max_size=8),
        kind=st.sampled_from([LOAD, STORE, ATOMIC]),
        line=st.integers(1, 5),
        block=st.integers(0, 2),
        phase=st.integers(0, 2),
    ),
    max_size=8,
)


@given(
    ASKS, st.lists(st.tuples(st.integers(1, 5), st.integers(0, 2), st.integers(0, 63), st.integers(0, 2)), max_size=12)
)
def test_whatever_a_launch_did_the_report_says_it_in_lines(asks: list[Ask], arrivals: list[tuple[int, ...]]) -> None:
    buffers = [array("x", 37), array("y", 5, itemsize=8, initialized=False), shared("s", 33)]
    made = report(trace(asks, buffers=buffers, arrivals=arrivals, grid=(3, 1, 1)))  # type: ignore[arg-type]
    lines = made.problems + made.costs
    assert all("\n" not in line and line.startswith(("line ", "x is", "y is")) for line in lines)
    assert len(printed(made).splitlines()) >= len(lines)
