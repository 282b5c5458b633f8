"""What the recorder writes down of tiny kernels, against accesses worked out by hand."""

from __future__ import annotations

import inspect

import pytest
import torch

from mlsys_lab.kernels.trace.events import ATOMIC, LOAD, STORE
from mlsys_lab.kernels.trace.triton_interpreter import record
from mlsys_lab.kernels.triton_language import triton
from tests.kernels.trace.triton_kernels import (
    counted,
    descriptor,
    double,
    everywhere,
    histogram,
    line_of,
    masked,
    neighbour,
    numbers,
    rows,
    take,
    tile,
    unmasked,
    with_helper,
)


def test_every_lane_of_a_masked_block_is_a_row() -> None:
    x, y = torch.arange(6.0), torch.empty(6)
    trace = record(double, 2, x, y, 6, BLOCK=4, outputs=["y_ptr"])
    assert y.tolist() == [0, 2, 4, 6, 8, 10]
    assert trace.kernel == "double" and trace.grid == (2, 1, 1) and trace.block == (4, 1, 1)
    assert [(b.name, b.space, b.shape, b.itemsize, b.initialized) for b in trace.buffers] == [
        ("x_ptr", "global", (6,), 4, True),
        ("y_ptr", "global", (6,), 4, False),
    ]
    assert rows(trace, "request", "kind", "buffer", "block", "thread", "offset") == [
        *((0, LOAD, 0, 0, lane, 4 * lane) for lane in range(4)),
        *((1, STORE, 1, 0, lane, 4 * lane) for lane in range(4)),
        *((2, LOAD, 0, 1, lane, 16 + 4 * lane) for lane in range(2)),
        *((3, STORE, 1, 1, lane, 16 + 4 * lane) for lane in range(2)),
    ]
    assert len(trace.arrivals) == 0


def test_thirty_two_lanes_are_a_request() -> None:
    trace = record(double, 1, torch.ones(100), torch.empty(100), 70, BLOCK=128)
    assert {request: n for (request,), n in counted(rows(trace, "request"))} == {
        **{0: 32, 1: 32, 2: 6},  # the load; the fourth request of a block of 128 has no lane
        **{4: 32, 5: 32, 6: 6},  # the store
    }


def test_sites_are_the_kernels_own_lines() -> None:
    trace = record(double, 1, torch.ones(4), torch.empty(4), 4, BLOCK=4)
    assert [(site.line, site.text) for site in trace.sites] == [
        (line_of(text), text)
        for text in ("x = tl.load(x_ptr + i, mask=i < n)", "tl.store(y_ptr + i, 2 * x, mask=i < n)")
    ]
    assert {site.file for site in trace.sites} == {double.fn.__code__.co_filename}


def test_a_helpers_access_is_at_the_helpers_line_whatever_stands_above_the_kernel() -> None:
    y = torch.empty(4)
    trace = record(with_helper, 1, torch.arange(4.0), y, BLOCK=4)
    assert y.tolist() == [15, 16, 17, 18]  # + 6 − 3, then + 18 − 6
    assert [site.line for site in trace.sites] == [line_of("return tl.load("), line_of("tl.store(y_ptr + i, x)")]


@pytest.mark.parametrize(("dtype", "poison"), [(torch.float32, None), (torch.bfloat16, None), (torch.int32, -1)])
@pytest.mark.parametrize("shift", [3, -3])
def test_out_of_bounds_a_load_is_poison_and_a_store_is_dropped(
    shift: int, dtype: torch.dtype, poison: int | None
) -> None:
    memory = torch.arange(24, dtype=dtype)
    x, y = memory[8:12], torch.zeros(4, dtype=dtype)
    trace = record(unmasked, 1, x, y, shift, BLOCK=4)
    size = memory.itemsize
    assert [offset for (offset,) in rows(trace, "offset", kind=LOAD)] == [size * (i + shift) for i in range(4)]
    assert [offset for (offset,) in rows(trace, "offset", kind=STORE)] == [size * (i + shift) for i in range(4)]
    assert memory.tolist() == list(range(24))
    assert y.tolist() == ([0, 0, 0, 11] if shift > 0 else [8, 0, 0, 0])  # only what lay inside of both


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_poison_is_nan(dtype: torch.dtype) -> None:
    y = torch.zeros(8, dtype=dtype)
    record(unmasked, 1, torch.ones(3, dtype=dtype), y[:5], 0, BLOCK=8)
    assert y.isnan().tolist() == [False] * 3 + [True] * 2 + [False] * 3


def test_a_lane_that_is_masked_off_gets_poison_unless_the_kernel_says_what_else() -> None:
    y = torch.zeros(8)
    record(masked, 1, torch.ones(4), y, 3, BLOCK=4)
    assert y.isnan().tolist() == [False] * 3 + [True] + [False] * 4
    assert y[4:].tolist() == [1, 1, 1, 5]


def test_a_single_number_that_is_masked_off_may_be_said_to_be_0() -> None:
    y = torch.ones(8)
    record(numbers, 1, torch.ones(4), y, 3)
    assert y.isnan().tolist() == [False] * 3 + [True] + [False] * 4
    assert y[4:].tolist() == [1, 1, 1, 0]


@pytest.mark.parametrize("far", [2**31, -(2**31), 2**36])
def test_far_out_of_bounds_is_still_out_of_that_array(far: int) -> None:
    others = [torch.ones(4) for _ in range(2)]
    trace = record(unmasked, 1, *others, far, BLOCK=4)
    assert rows(trace, "buffer", "offset", kind=STORE) == [(1, 4 * (far + i)) for i in range(4)]


def test_an_array_without_elements_has_nothing_inside() -> None:
    y = torch.zeros(2)
    trace = record(unmasked, 1, torch.empty(0), y, 0, BLOCK=2)
    assert trace.buffers[0].size_bytes == 0 and rows(trace, "buffer", "offset", kind=LOAD) == [(0, 0), (0, 4)]
    assert y.isnan().all()


def test_lanes_are_numbered_along_the_dimension_whose_addresses_follow_one_another() -> None:
    x = torch.zeros(8, 64)
    along_rows = record(tile, 1, x, 64, 1, ROWS=2, COLUMNS=32)
    assert rows(along_rows, "request", "thread", "offset") == [
        (i // 32, i, 4 * (i // 32 * 64 + i % 32)) for i in range(64)
    ]
    along_columns = record(tile, 1, x, 1, 64, ROWS=32, COLUMNS=2)  # the same elements, as a transposed tile
    assert rows(along_columns, "request", "thread", "offset") == rows(along_rows, "request", "thread", "offset")
    neither = record(tile, 1, x, 64, 2, ROWS=2, COLUMNS=32)
    assert rows(neither, "thread", "offset") == [(i, 4 * (i // 32 * 64 + 2 * (i % 32))) for i in range(64)]


def test_programs_are_numbered_with_x_fastest() -> None:
    out = torch.empty(24, dtype=torch.int32)
    trace = record(everywhere, (2, 3, 4), out)
    assert trace.grid == (2, 3, 4)
    assert all(4 * block == offset for block, offset in rows(trace, "block", "offset"))
    assert out.tolist() == list(range(24)) and sorted(trace.accesses["block"]) == list(range(24))


def test_a_barrier_begins_a_phase() -> None:
    x = torch.zeros(4, dtype=torch.int32)
    trace = record(neighbour, 2, x, BLOCK=4)
    assert counted(rows(trace, "block", "phase", "kind")) == [
        ((block, phase, kind), 4) for block in (0, 1) for phase, kind in ((0, STORE), (1, LOAD), (1, STORE))
    ]
    assert x.tolist() == [1, 2, 3, 0]


def test_atomics_count_and_do_no_harm_out_of_bounds() -> None:
    x, counts = torch.tensor([0, 2, 2, 9, -1, 0], dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    trace = record(histogram, 1, x, counts, 6, BLOCK=8)
    assert counts.tolist() == [2, 0, 2]
    assert rows(trace, "buffer", "offset", kind=ATOMIC) == [(1, 4 * value) for value in x.tolist()]
    flags, won = torch.tensor([0, 0, 0, 5], dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    trace = record(take, 3, flags, won)
    assert flags.tolist() == [1, 0, 0, 5] and won.tolist() == [0, 5, -1]
    assert rows(trace, "buffer", "offset", kind=ATOMIC) == [(0, 0), (0, 12), (0, 24)]


def test_tensor_descriptors_are_seen() -> None:
    x, y = torch.arange(32.0).reshape(4, 8), torch.zeros(4, 8)
    trace = record(descriptor, 1, x, y, 4, 8, BLOCK=8)
    assert (y[:, 4:] == x[:, 4:]).all() and (y[:, :4] == 0).all()
    inside = [4 * (8 * row + column) for row in range(4) for column in range(4, 8)]
    for kind, buffer in ((LOAD, 0), (STORE, 1)):
        assert rows(trace, "buffer", "offset", kind=kind) == [(buffer, offset) for offset in inside]


def test_triton_has_what_the_recorder_hooks() -> None:
    """Where this fails, a new Triton has moved what `trace/triton_recorder.py` and `triton_launch.py` put themselves
    before: find the new place in triton/runtime/interpreter.py and hook that."""
    from triton.runtime import interpreter, jit

    told = f"Triton {triton.__version__} has moved"
    builder = interpreter.interpreter_builder
    for method, first in {
        "create_masked_load": ["ptrs", "mask", "other"],
        "create_masked_store": ["ptrs", "value", "mask"],
        "create_atomic_rmw": ["rmwOp", "ptr", "val", "mask"],
        "create_atomic_cas": ["ptr", "cmp", "val"],
        "create_barrier": [],
    }.items():
        assert hasattr(builder, method), f"{told} interpreter_builder.{method}"
        found = list(inspect.signature(getattr(builder, method)).parameters)
        assert found[: len(first)] == first, f"{told} the arguments of interpreter_builder.{method}"
    arguments = list(inspect.signature(interpreter.interpreter_semantic.load).parameters)
    assert arguments[:3] == ["ptr", "mask", "other"], f"{told} the arguments of interpreter_semantic.load"
    assert list(inspect.signature(interpreter._implicit_cvt).parameters) == ["arg"], f"{told} _implicit_cvt"
    assert list(inspect.signature(interpreter._patch_lang).parameters) == ["fn"], f"{told} _patch_lang"
    for name in ("InterpretedFunction", "InterpreterError", "TensorHandle"):
        assert hasattr(interpreter, name), f"{told} triton.runtime.interpreter.{name}"
    for name in ("JITFunction", "KernelInterface"):
        assert hasattr(jit, name), f"{told} triton.runtime.jit.{name}"
    assert hasattr(triton.knobs.runtime, "interpret"), f"{told} knobs.runtime.interpret"
