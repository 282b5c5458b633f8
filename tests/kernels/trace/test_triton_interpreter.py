"""Tiny kernels whose accesses are worked out by hand, against what the recorder writes down."""

from __future__ import annotations

import inspect
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.runtime import load_triton
from mlsys_lab.kernels.trace.events import ATOMIC, LOAD, STORE, Trace
from mlsys_lab.kernels.trace.triton_interpreter import record
from tests.kernels.compiled import compiled

triton, tl = load_triton()


@triton.jit
def double(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(y_ptr + i, 2 * x, mask=i < n)


@triton.jit
def unmasked(x_ptr, y_ptr, shift, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y_ptr + i + shift, tl.load(x_ptr + i + shift))


@triton.jit
def tile(x_ptr, down, across, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows, columns = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    tl.load(x_ptr + rows * down + columns * across)


@triton.jit
def everywhere(out_ptr):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    at = x + tl.num_programs(0) * (y + tl.num_programs(1) * z)
    tl.store(out_ptr + at, at)


@triton.jit
def neighbour(x_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x_ptr + i, i)
    tl.debug_barrier()
    tl.store(x_ptr + i, tl.load(x_ptr + (i + 1) % BLOCK))


@triton.jit
def histogram(x_ptr, counts_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.atomic_add(counts_ptr + tl.load(x_ptr + i, mask=i < n), 1, mask=i < n)


@triton.jit
def take(flags_ptr, won_ptr):
    won = tl.atomic_cas(flags_ptr + 3 * tl.program_id(0), 0, 1)
    tl.store(won_ptr + tl.program_id(0), won)


@triton.jit
def descriptor(x_ptr, y_ptr, rows, columns, BLOCK: tl.constexpr):
    x = tl.make_tensor_descriptor(x_ptr, [rows, columns], [columns, 1], [BLOCK, BLOCK])
    y = tl.make_tensor_descriptor(y_ptr, [rows, columns], [columns, 1], [BLOCK, BLOCK])
    y.store([0, 4], x.load([0, 4]))


@triton.jit
def fetched(x_ptr, i):
    return tl.load(
        x_ptr + i,
    )


@triton.heuristics({"BLOCK": lambda meta: 4})
@triton.jit
def with_helper(x_ptr, y_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = fetched(x_ptr, i)
    for _ in range(2):
        x = x + tl.sum(x, axis=0) - x.max(axis=0)
    tl.store(y_ptr + i, x)


@triton.jit
def mistaken(x_ptr, BLOCK: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, BLOCK))
    tl.store(x_ptr + tl.arange(0, BLOCK), x + tl.arange(0, 2 * BLOCK))


@triton.jit
def pair(both, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(both[1] + i, tl.load(both[0] + i))


def line_of(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return 1 + lines.index(next(line for line in lines if line.strip() == text))


def rows(trace: Trace, *fields: str, kind: int | None = None) -> list[tuple[int, ...]]:
    chosen = trace.accesses if kind is None else trace.of(kinds=(kind,))
    return list(zip(*(chosen[field].tolist() for field in fields), strict=True))


def test_every_lane_of_a_masked_block_is_a_row() -> None:
    x, y = torch.arange(6.0), torch.empty(6)
    trace = record(double, 2, x, y, 6, BLOCK=4, outputs=["y_ptr"])
    assert y.tolist() == [0, 2, 4, 6, 8, 10]
    assert trace.kernel == "double" and trace.grid == (2, 1, 1) and trace.block == (4, 1, 1)
    assert [(b.name, b.space, b.shape, b.itemsize, b.written) for b in trace.buffers] == [
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
    assert {request: n for (request,), n in _counted(rows(trace, "request"))} == {
        **{0: 32, 1: 32, 2: 6},  # the load; the fourth request of a block of 128 has no lane
        **{4: 32, 5: 32, 6: 6},  # the store
    }


def _counted(values: list[tuple[int, ...]]) -> list[tuple[tuple[int, ...], int]]:
    return [(value, values.count(value)) for value in sorted(set(values))]


def test_sites_are_the_kernels_own_lines() -> None:
    trace = record(double, 1, torch.ones(4), torch.empty(4), 4, BLOCK=4)
    assert [(site.line, site.text) for site in trace.sites] == [
        (line_of(text), text)
        for text in ("x = tl.load(x_ptr + i, mask=i < n)", "tl.store(y_ptr + i, 2 * x, mask=i < n)")
    ]
    assert {site.file for site in trace.sites} == {__file__}


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


def test_what_an_output_held_before_is_poison() -> None:
    y = torch.zeros(3, 3)[:, :2]
    record(double, 1, torch.ones(1), y, 1, BLOCK=2, outputs=["y_ptr"])
    assert y[0, 0] == 2 and y.flatten()[1:].isnan().all()
    assert y.storage_offset() == 0 and y._base is not None and (y._base[:, 2] == 0).all()  # the gap is not its own


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
    assert _counted(rows(trace, "block", "phase", "kind")) == [
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


def test_options_of_the_launch_are_accepted() -> None:
    assert len(record(double, 1, torch.ones(4), torch.empty(4), 4, BLOCK=4, num_warps=8, num_stages=2).accesses) == 8


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: record(lambda x: x, 1, torch.ones(1)), r"not a Triton kernel: got function, expected .*@triton\.jit"),
        (
            lambda: record(double, 1, torch.ones(1), BLOCK=4),
            r"arguments of double: .*missing a required argument: 'y_ptr'",
        ),
        (lambda: record(double, 1, *[torch.ones(1)] * 2, 1, BLOKC=4), r"arguments of double: got .*"),
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
    with pytest.raises(InputError, match=rf"mistaken fails at line {line}, `tl\.store\(") as caught:
        record(mistaken, 1, torch.ones(4), BLOCK=4)
    assert "\n" not in str(caught.value)
    assert len(record(double, 1, torch.ones(4), torch.empty(4), 4, BLOCK=4).accesses) == 8  # the next one is well


COMPILING = """
import torch
import triton
from tests.kernels.trace.test_triton_interpreter import double, record, with_helper
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


def test_triton_has_what_the_recorder_hooks() -> None:
    """Where this fails, a new Triton has moved what `trace/triton_interpreter.py` and `triton_launch.py` put themselves
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
    assert list(inspect.signature(interpreter._implicit_cvt).parameters) == ["arg"], f"{told} _implicit_cvt"
    assert list(inspect.signature(interpreter._patch_lang).parameters) == ["fn"], f"{told} _patch_lang"
    for name in ("InterpretedFunction", "InterpreterError", "TensorHandle"):
        assert hasattr(interpreter, name), f"{told} triton.runtime.interpreter.{name}"
    for name in ("JITFunction", "KernelInterface"):
        assert hasattr(jit, name), f"{told} triton.runtime.jit.{name}"
    assert hasattr(triton.knobs.runtime, "interpret"), f"{told} knobs.runtime.interpret"
