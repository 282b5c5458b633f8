"""Tiny kernels whose accesses are worked out by hand, and what a trace of them is compared with."""

from __future__ import annotations

from pathlib import Path

from mlsys_lab.kernels.trace.events import Trace
from mlsys_lab.kernels.triton_language import tl, triton


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
def masked(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n))
    tl.store(y_ptr + BLOCK + i, tl.load(x_ptr + i, mask=i < n, other=5.0))


@triton.jit
def numbers(x_ptr, y_ptr, n):
    for i in range(4):
        tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n))
        tl.store(y_ptr + 4 + i, tl.load(x_ptr + i, mask=i < n, other=0.0))


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
def of_the_device(x_ptr):
    x = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [tl.load(x_ptr)], tl.float32, is_pure=True, pack=1)
    tl.store(x_ptr, x)


@triton.jit
def mistaken(x_ptr, BLOCK: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, BLOCK))
    tl.store(x_ptr + tl.arange(0, BLOCK), x + tl.arange(0, 2 * BLOCK))


@triton.jit
def through_table(table_ptr, y_ptr, BLOCK: tl.constexpr):
    x_ptr = tl.load(table_ptr).to(tl.pointer_type(tl.float32))
    tl.store(y_ptr + tl.arange(0, BLOCK), tl.load(x_ptr + tl.arange(0, BLOCK)))


@triton.jit
def at_numbers(table_ptr, y_ptr, BLOCK: tl.constexpr):
    tl.store(y_ptr, tl.load(tl.load(table_ptr) + tl.arange(0, BLOCK)))


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


def counted(values: list[tuple[int, ...]]) -> list[tuple[tuple[int, ...], int]]:
    return [(value, values.count(value)) for value in sorted(set(values))]
