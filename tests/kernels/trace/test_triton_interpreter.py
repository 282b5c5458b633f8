"""A kernel recorded: which arguments it may have, what it leaves of them, and one line for what goes wrong."""

from __future__ import annotations

from collections import namedtuple

import numpy as np
import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.trace.events import LOAD
from mlsys_lab.kernels.trace.faults import faults
from mlsys_lab.kernels.trace.triton_interpreter import record
from tests.kernels.compiled import compiled
from tests.kernels.trace.triton_kernels import (
    at_numbers,
    double,
    line_of,
    mistaken,
    of_the_device,
    pair,
    through_table,
)


def test_what_an_output_held_before_is_poison() -> None:
    y = torch.zeros(3, 3)[:, :2]
    record(double, 1, torch.ones(1), y, 1, BLOCK=2, outputs=["y_ptr"])
    assert y[0, 0] == 2 and y.flatten()[1:].isnan().all()
    assert y.storage_offset() == 0 and y._base is not None and (y._base[:, 2] == 0).all()  # the gap is not its own


def test_arrays_in_tuples_and_descriptors_made_outside() -> None:
    x, y = torch.arange(4.0), torch.zeros(4)
    trace = record(pair, 1, (x, y), BLOCK=4)
    assert [buffer.name for buffer in trace.buffers] == ["both[0]", "both[1]"] and y.tolist() == x.tolist()
    Both = namedtuple("Both", "x y")
    record(pair, 1, Both(x + 1, y), BLOCK=4)
    assert y.tolist() == [1, 2, 3, 4]


def test_arguments_that_share_memory() -> None:
    x = torch.arange(8.0)
    trace = record(double, 1, x, x, 8, BLOCK=8)  # in place
    assert [buffer.name for buffer in trace.buffers] == ["x_ptr"] and x.tolist() == [2 * i for i in range(8)]
    trace = record(double, 1, x[:4], x[4:], 4, BLOCK=4)  # two views of one array
    assert [buffer.size_bytes for buffer in trace.buffers] == [16, 16]
    assert x.tolist() == [0, 2, 4, 6, 0, 4, 8, 12]


def test_arguments_that_are_only_read_are_left_alone() -> None:
    x = torch.from_numpy(np.arange(4.0))
    version, pointer = x._version, x.data_ptr()
    record(double, 1, x, torch.empty(4, dtype=torch.float64), 4, BLOCK=4)
    assert (x._version, x.data_ptr(), x.tolist()) == (version, pointer, [0, 1, 2, 3])


def test_two_runs_are_the_same() -> None:
    traces = [record(double, 3, torch.arange(11.0), torch.empty(11), 11, BLOCK=4) for _ in range(2)]
    assert (traces[0].accesses == traces[1].accesses).all() and traces[0].sites == traces[1].sites
    assert traces[0].buffers == traces[1].buffers


def test_a_launch_without_programs_touches_nothing() -> None:
    assert len(record(double, 0, torch.empty(0), torch.empty(0), 0, BLOCK=4).accesses) == 0


def test_a_grid_may_be_a_function_of_the_arguments_and_one_output_its_name() -> None:
    trace = record(
        double,
        lambda given: (given["n"] // given["BLOCK"],),
        torch.ones(8),
        torch.empty(8),
        8,
        BLOCK=4,
        outputs="y_ptr",
    )
    assert trace.grid == (2, 1, 1) and [one.initialized for one in trace.buffers] == [True, False]


def test_options_of_the_launch_are_accepted() -> None:
    assert len(record(double, 1, torch.ones(4), torch.empty(4), 4, BLOCK=4, num_warps=8, num_stages=2).accesses) == 8


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: record(lambda x: x, 1, torch.ones(1)), r"not a Triton kernel: got function, expected .*@triton\.jit"),
        (
            lambda: record(double, 1, torch.ones(1), BLOCK=4),
            r"`double` does not have the parameters of the launch \(missing a required argument: .y_ptr.\)",
        ),
        (
            lambda: record(double, 1, *[torch.ones(1)] * 2, 1, BLOKC=4),
            r"launch \((missing|got an unexpected).*: got double\(x_ptr, y_ptr, n, BLOCK\), expected 3 parameters",
        ),
        *(
            (lambda grid=grid: record(double, grid, *[torch.ones(1)] * 2, 1, BLOCK=1), f"grid of a launch: got {got}")
            for grid, got in [
                (2.0, "2.0, expected one to three integers"),
                (-1, "-1"),
                ((1, 1, 1, 1), r"\(1, 1, 1, 1\)"),
                (torch.ones(9, 9), "Tensor"),
                (lambda _: "1", "str"),
            ]
        ),
        (
            lambda: record(double, 1, np.ones(1), torch.ones(1), 1, BLOCK=1),
            r"x_ptr must be a tensor: got ndarray; help: torch\.as_tensor\(x_ptr\)",
        ),
        (lambda: record(of_the_device, 1, torch.ones(1)), "of_the_device fails at line .*: got NotImplementedError: "),
        (lambda: record(double, 1, *[torch.ones(1)] * 2, 1, BLOCK=1, outputs=["y"]), "no such output: got y"),
        (lambda: record(double, 1, 5, 6, 1, BLOCK=1), "double fails at line|touches memory"),
    ],
)
def test_bad_input_is_one_line(call: object, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        call()  # type: ignore[operator]
    assert "\n" not in str(caught.value)


def test_a_kernel_that_fails_is_told_with_its_line() -> None:
    line = line_of("tl.store(x_ptr + tl.arange(0, BLOCK), x + tl.arange(0, 2 * BLOCK))")
    with pytest.raises(InputError, match=rf"mistaken fails at line {line} `tl\.store\(") as caught:
        record(mistaken, 1, torch.ones(4), BLOCK=4)
    assert "\n" not in str(caught.value)
    assert len(record(double, 1, torch.ones(4), torch.empty(4), 4, BLOCK=4).accesses) == 8  # the next one is well


def test_a_table_of_pointers_is_no_index_that_is_too_large() -> None:
    x, y = torch.ones(4), torch.empty(4)
    trace = record(through_table, 1, torch.tensor([x.data_ptr()]), y, BLOCK=4, outputs="y_ptr")
    (fault,) = (fault for fault in faults(trace) if fault.kind == LOAD)
    line = line_of("tl.store(y_ptr + tl.arange(0, BLOCK), tl.load(x_ptr + tl.arange(0, BLOCK)))")
    assert (
        fault.sentence.startswith(f"line {line} ") and "at an address that no array of the launch has" in fault.sentence
    )
    assert y.isnan().all()


def test_a_load_of_what_is_no_address_says_so() -> None:
    line = line_of("tl.store(y_ptr, tl.load(tl.load(table_ptr) + tl.arange(0, BLOCK)))")
    with pytest.raises(
        InputError, match=rf"at_numbers fails at line {line} .*: got `tl.load` of what is no address, exp"
    ):
        record(at_numbers, 1, torch.ones(1, dtype=torch.int64), torch.empty(1), BLOCK=4)


COMPILING = """
import torch
import triton
from tests.kernels.trace.triton_kernels import double, with_helper
from mlsys_lab.kernels.trace.triton_interpreter import record
from mlsys_lab.kernels.runtime import triton_interprets

assert not triton_interprets()
before = dict(vars(triton.language.core))
y = torch.empty(4)
trace = record(with_helper, 1, torch.arange(4.0), y, BLOCK=4)
assert y.tolist() == [15, 16, 17, 18] and len(trace.accesses) == 8
after = vars(triton.language.core)
assert before.keys() == after.keys() and all(before[name] is after[name] for name in before)
with_helper[(1,)](y, y, BLOCK=4)
"""


def test_kernels_that_were_decorated_for_the_compiler_are_traced_and_still_compile() -> None:
    (made,) = compiled(COMPILING)
    assert made.kernel == "with_helper" and "ld.global" in made.ptx
