"""Which lanes of a warp make a request together: traces worked out by hand, as a warp goes round loops and branches."""

from __future__ import annotations

import linecache
import random
from types import SimpleNamespace

import numpy as np
import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.numba_language import cuda
from mlsys_lab.kernels.trace.events import LOAD, STORE
from mlsys_lab.kernels.trace.numba_simulator import record, run
from tests.kernels.trace.lockstep import Text, Warp
from tests.kernels.trace.numba_kernels import floats


def requests(kernel, *args, threads=4, kind=STORE):
    """Of each request of one kind the lanes and the elements that they touch, in order of time."""
    trace = record(kernel, 1, threads, *args)
    rows = trace.accesses[trace.accesses["kind"] == kind]
    found = {}
    for row in rows:
        size = trace.buffers[row["buffer"]].itemsize
        found.setdefault(int(row["request"]), {})[int(row["thread"])] = int(row["offset"]) // size
    return list(found.values())


def test_both_sides_of_a_branch_are_two_requests_and_what_follows_is_one():
    @cuda.jit
    def halves(x, y):
        i = cuda.grid(1)
        if x[i] > 0:
            y[i] = x[i]
        else:
            y[i] = 0
        y[i + 4] = 1

    x = floats(1, -1, 1, -1)
    assert requests(halves, x, np.zeros(8)) == [{0: 0, 2: 2}, {1: 1, 3: 3}, {0: 4, 1: 5, 2: 6, 3: 7}]
    assert requests(halves, x, np.zeros(8), kind=LOAD) == [{0: 0, 1: 1, 2: 2, 3: 3}, {0: 0, 2: 2}]


def test_a_line_that_is_written_once_but_compiled_twice_is_one_request():
    @cuda.jit(device=True)
    def pick(x, i):
        if i % 2:
            j = i
        else:
            j = i
            j += 1
        return x[j]

    @cuda.jit
    def picks(x, y):
        i = cuda.grid(1)
        y[i] = pick(x, i)

    assert requests(picks, np.zeros(8), np.zeros(4), kind=LOAD) == [{0: 1, 1: 1, 2: 3, 3: 3}]


def test_a_loop_from_the_end_takes_the_lanes_turn_by_turn():
    @cuda.jit
    def backwards(y, n):
        for i in range(n - 1 - cuda.grid(1), -1, -4):
            y[i] = 1

    assert requests(backwards, np.zeros(6), 6) == [{0: 5, 1: 4, 2: 3, 3: 2}, {0: 1, 1: 0}]


def test_a_skipped_turn_is_waited_for():
    @cuda.jit
    def odd_turns(y):
        i = cuda.grid(1)
        for k in range(3):
            if k == i:
                continue
            y[k, i] = 1

    assert requests(odd_turns, np.zeros((3, 4))) == [
        {1: 1, 2: 2, 3: 3},
        {0: 4, 2: 6, 3: 7},
        {0: 8, 1: 9, 3: 11},
    ]


def test_a_while_loop_waits_for_those_that_continue_and_its_test_is_made_by_all_who_come_to_it():
    @cuda.jit
    def counts(x, y):
        i = cuda.grid(1)
        k = 0
        while k < x[i]:
            k += 1
            if k == 2 and i == 0:
                continue
            y[i, k] = k
        y[i, 0] = k

    x = np.asarray([3, 1, 2, 0])
    assert requests(counts, x, np.zeros((4, 4))) == [
        {0: 1, 1: 5, 2: 9},
        {2: 10},
        {0: 3},
        {0: 0, 1: 4, 2: 8, 3: 12},
    ]
    assert [sorted(one) for one in requests(counts, x, np.zeros((4, 4)), kind=LOAD)] == [
        [0, 1, 2, 3],
        [0, 1, 2],
        [0, 2],
        [0],
    ]


def test_lanes_with_fewer_turns_wait_behind_the_loop():
    @cuda.jit
    def triangle(y):
        i = cuda.grid(1)
        for k in range(i):
            y[i, k] = 1
        y[i, 3] = 2

    assert requests(triangle, np.zeros((4, 4))) == [
        {1: 4, 2: 8, 3: 12},
        {2: 9, 3: 13},
        {3: 14},
        {0: 3, 1: 7, 2: 11, 3: 15},
    ]


def test_an_inner_loop_begins_anew_in_each_turn_of_the_outer_one():
    @cuda.jit
    def nested(y):
        i = cuda.grid(1)
        for a in range(2):
            for b in range(1 + (a + i) % 2):
                y[a, b, i] = 1
            y[a, 2, i] = 2

    assert requests(nested, np.zeros((2, 3, 2)), threads=2) == [
        {0: 0, 1: 1},
        {1: 3},
        {0: 4, 1: 5},
        {0: 6, 1: 7},
        {0: 8},
        {0: 10, 1: 11},
    ]


def test_lanes_that_break_are_waited_for_behind_the_loop():
    @cuda.jit
    def until(y):
        i = cuda.grid(1)
        for k in range(4):
            if k > i:
                break
            y[i, k] = 1
        y[i, 0] = 2

    stores = requests(until, np.zeros((2, 4)), threads=2)
    assert stores == [{0: 0, 1: 4}, {1: 5}, {0: 0, 1: 4}]


def test_a_break_on_one_side_of_a_branch_leaves_the_others_together():
    @cuda.jit
    def one_leaves(y):
        i = cuda.grid(1)
        while True:
            if i < 2:
                if i == 0:
                    break
                y[0] = i
            else:
                y[1] = i
            y[2] = i
            break
        y[3] = i

    assert requests(one_leaves, np.zeros(4)) == [
        {1: 0},
        {2: 1, 3: 1},
        {1: 2, 2: 2, 3: 2},
        {0: 3, 1: 3, 2: 3, 3: 3},
    ]


def test_the_else_of_a_loop_is_one_request_whatever_the_turns():
    @cuda.jit
    def searched(y):
        i = cuda.grid(1)
        for k in range(i):
            if k == 2:
                break
        else:
            y[i] = 1
        y[i] = 2

    assert requests(searched, np.zeros(4)) == [{0: 0, 1: 1, 2: 2}, {0: 0, 1: 1, 2: 2, 3: 3}]


def test_a_break_or_continue_in_the_else_of_a_loop_is_of_the_loop_around_it():
    @cuda.jit
    def searches(y):
        i = cuda.grid(1)
        for k in range(3):
            for j in range(2):
                if j + k == i:
                    break
            else:
                if k == 1:
                    continue
                for _ in range(0):
                    pass
                else:
                    break
            y[k, i] = 1
        y[3, i] = 2

    assert requests(searches, np.zeros((4, 4))) == [
        {0: 0, 1: 1},  # 2 and 3 find nothing in turn 0 and wait behind the loop, 0 in turn 1 and goes on
        {1: 5},
        {0: 12, 1: 13, 2: 14, 3: 15},
    ]


def test_an_early_return_ends_a_lane_and_no_other():
    @cuda.jit
    def some(y):
        i = cuda.grid(1)
        for k in range(2):
            if i + k == 2:
                return
            y[i, k] = 1
        y[i, 2] = 2

    assert requests(some, np.zeros((4, 3))) == [{0: 0, 1: 3, 3: 9}, {0: 1, 3: 10}, {0: 2, 3: 11}]


def test_a_return_from_a_loop_of_a_kernel_that_is_called_leaves_the_caller_where_it_was():
    @cuda.jit(device=True)
    def find(x, limit):
        for k in range(x.size):
            if x[k] > limit:
                return k
        return -1

    @cuda.jit
    def finds(x, y):
        i = cuda.grid(1)
        for turn in range(2):
            y[turn, i] = find(x, i)

    x = floats(1, 2, 3, 4)
    assert requests(finds, x, np.zeros((2, 4))) == [{0: 0, 1: 1, 2: 2, 3: 3}, {0: 4, 1: 5, 2: 6, 3: 7}]
    loads = [sorted(one) for one in requests(finds, x, np.zeros((2, 4)), kind=LOAD)]
    assert loads == [[0, 1, 2, 3], [1, 2, 3], [2, 3], [3]] * 2


def test_staggered_lanes_meet_in_their_turns_and_not_at_their_elements():
    @cuda.jit
    def staggered(y):
        i = cuda.grid(1)
        for k in range(4):
            y[i, (k + i) % 4] = 1

    stores = requests(staggered, np.zeros((4, 4)))
    assert stores == [{i: 4 * i + (k + i) % 4 for i in range(4)} for k in range(4)]


def test_requests_stand_in_the_order_of_time_whichever_lane_comes_first():
    @cuda.jit
    def later(y):
        i = cuda.grid(1)
        for k in range(3):
            if (k == 1) == (i == 1):
                y[k] = 1

    assert requests(later, np.zeros(3), threads=2) == [{0: 0}, {1: 1}, {0: 2}]


def test_the_test_of_a_loop_comes_after_the_loops_in_it():
    @cuda.jit
    def fills(y):
        i = cuda.grid(1)
        k = 0
        while y[k] == 0 and k < 2:
            k += 1
            for j in range(1):
                y[k - 1 + j] = i

    both = record(fills, 1, 1, np.zeros(3)).accesses
    assert both["kind"].tolist() == [LOAD, STORE, LOAD, STORE, LOAD]
    assert (both["offset"] // 8).tolist() == [0, 0, 1, 1, 2]


def test_turns_are_counted_on_over_barriers():
    @cuda.jit
    def steps(y):
        i = cuda.grid(1)
        for k in range(2):
            if k + i != 0:
                y[k, i] = 1
            cuda.syncthreads()
            y[k, i] += 1

    assert requests(steps, np.zeros((2, 2)), threads=2) == [{1: 1}, {0: 0, 1: 1}, {0: 2, 1: 3}, {0: 2, 1: 3}]


def test_a_kernel_whose_text_is_gone_is_told_so():
    text = "def loop(y):\n    for k in range(2):\n        y[k] = 1\n"
    names = {}
    exec(compile(text, "gone.py", "exec"), names)
    with pytest.raises(InputError, match=r"the text of loop, which has loops, cannot be found .*: got gone.py; help: "):
        record(names["loop"], 1, 1, np.zeros(2))
    run(names["loop"], 1, 1, np.zeros(2))
    linecache.cache["gone.py"] = (len(text), None, text.replace("range(2)", "range(3)").splitlines(True), "gone.py")
    try:
        with pytest.raises(InputError, match="has changed since it was loaded"):
            record(names["loop"], 1, 1, np.zeros(2))
        names["loop"].__globals__["__loader__"] = SimpleNamespace(get_source=lambda name: text)
        assert len(record(SimpleNamespace(py_func=names["loop"]), 1, 1, np.zeros(2)).accesses) == 2
    finally:
        del linecache.cache["gone.py"]


@pytest.mark.parametrize("seed", range(40))
def test_random_kernels_ask_as_a_warp_in_lockstep_does(seed):
    text = Text(seed)
    x = random.Random(seed).choices([0, 1, 2], k=text.elements)
    file, names = f"random_{seed}.py", {"cuda": cuda}
    linecache.cache[file] = (len(text.source), None, text.source.splitlines(True), file)
    try:
        exec(compile(text.source, file, "exec"), names)
        names["called"] = SimpleNamespace(py_func=names["called"])
        trace = record(names["kernel"], 1, 5, np.asarray(x), np.zeros(text.elements))
    finally:
        del linecache.cache[file]
    found = {}
    for row in trace.accesses:
        what = "load" if row["kind"] == LOAD else "store"
        _, _, lanes = found.setdefault(int(row["request"]), (what, int(row["offset"]) // 8, []))
        lanes.append(int(row["thread"]))
    asked = [(what, element, tuple(sorted(lanes))) for what, element, lanes in found.values()]
    assert asked == Warp(text.source, x, 5).requests, text.source
