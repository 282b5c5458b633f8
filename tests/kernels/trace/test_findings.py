"""What crosses from a launch to the trusted side, worked out by hand."""

from __future__ import annotations

from typing import Any

from mlsys_checks.sandboxed.kernels.loading import load_kernels
from mlsys_lab.kernels.trace.events import ATOMIC, STORE
from mlsys_lab.kernels.trace.findings import findings
from mlsys_lab.stack.artifact import Artifact
from tests.kernels.trace.launches import Ask, array, shared, trace

BUFFERS = [array("x", 8), array("y", (2, 4), itemsize=2, initialized=False), shared("s", 32)]


def found(*asks: Ask, actor: str = "program") -> dict[str, Any]:
    return findings(trace(asks, buffers=BUFFERS, grid=(2, 1, 1)), actor=actor)


def test_bytes_by_array_and_way_with_the_lines_that_move_them() -> None:
    got = found(
        Ask("x", range(8), line=2),
        Ask("x", range(4), line=5),
        Ask("y", range(8), STORE, line=6),
        Ask("x", [3], ATOMIC, line=7),
        Ask("s", range(32), STORE, line=8),
    )
    x, y = got["moved"]["x"], got["moved"]["y"]
    assert [x["reads"]["bytes"], x["writes"]["bytes"], y["reads"]["bytes"], y["writes"]["bytes"]] == [52, 4, 0, 16]
    assert (
        x["reads"]["lines"] == "line 2 `source of line 2` and line 5 `source of line 5` and line 7 `source of line 7`"
    )
    assert (y["writes"]["lines"], y["reads"]["lines"]) == ("line 6 `source of line 6`", "")
    assert "s" not in got["moved"], "shared memory is no traffic"
    assert got["widest"] == 32


def test_the_busiest_is_the_one_that_moves_most_bytes_not_most_elements() -> None:
    asks = (Ask("y", range(6), STORE, block=0), Ask("x", range(4), block=1))
    assert found(*asks)["busiest"] == {"actor": "program", "number": 1, "bytes": 16}
    assert found(*asks, actor="block")["busiest"] == {"actor": "block", "number": 1, "bytes": 16}
    assert found()["busiest"] == {"actor": "program", "number": 0, "bytes": 0}


def test_faults_races_and_what_is_left_out_get_a_line_each() -> None:
    wrong = found(
        Ask("x", {5: 8}, line=1),
        Ask("y", range(6), STORE, line=2),
        Ask("y", {0: 1, 1: 7}, STORE, line=3, block=1),
    )["wrong"]
    assert isinstance(wrong, str)
    assert wrong.splitlines() == [
        "line 1 `source of line 1`: program 0 reads element 8 of 8 of x, beyond the end of the array",
        "line 2 `source of line 2` and line 3 `source of line 3`: program 0 writes element (0, 1) of (2, 4) of y, "
        "program 1 writes it, and nothing orders programs",
        "nothing is ever stored to 1 of 8 elements of y, first [1, 2]",
    ]
    in_a_row = found(Ask("y", range(3), STORE), Ask("y", [7], STORE))["wrong"]
    assert in_a_row == "nothing is ever stored to 4 of 8 elements of y, [0, 3] to [1, 2]"
    scattered = found(Ask("y", [0, 2, 4, 6], STORE))["wrong"]
    assert scattered == "nothing is ever stored to 4 of 8 elements of y, first [0, 1]"
    early = found(Ask("y", [3], line=4), Ask("y", range(8), STORE, phase=1), actor="block")["wrong"]
    place = "line 4 `source of line 4`: block 0 thread 0 reads element (0, 3) of (2, 4) of y"
    assert early == f"{place}, which nothing has written before"
    same = found(Ask("y", {0: 0, 1: 0}, STORE), Ask("y", range(1, 8), STORE))["wrong"]
    assert "program 0 lane 0 writes element (0, 0) of (2, 4) of y, lane 1 writes it, with no barrier between" in str(
        same
    )


def test_a_barrier_in_a_branch_gets_a_line() -> None:
    arrivals = [(3, 0, thread, 0) for thread in range(16)] + [(5, 0, thread, 0) for thread in range(16, 32)]
    asks = [Ask("y", range(8), STORE, line=2)]
    told = findings(trace(asks, buffers=BUFFERS[1:2], arrivals=arrivals), actor="block")["wrong"]
    assert told == (
        "line 3 `source of line 3`: some of block 0 wait here, thread 16 waits at line 5 `source of line 5`"
    )


def test_nothing_is_wrong_with_a_launch_that_writes_all_of_its_result_once() -> None:
    assert found(Ask("x", range(8)), Ask("y", range(8), STORE))["wrong"] == ""


def test_lines_of_exported_cells_are_told_by_their_cells() -> None:
    source = "# %% cell 7\n#| export\n@triton.jit\ndef by_hand(x_ptr):\n    tl.load(x_ptr)\n"
    module = load_kernels(Artifact.parse("lab.ipynb", source))
    found = findings(trace([Ask("x", [0], line=5)], buffers=BUFFERS[:1]), module)
    assert found["moved"]["x"]["reads"]["lines"] == "cell 7, line 4 `tl.load(x_ptr)`"
