"""The emulator names the line, thread and element of accesses that are wrong, and only of these."""

from __future__ import annotations

import re
import resource

import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.cuda_cpp import Emulator, Source
from tests.kernels.cuda_cpp.tools import needs_gxx

pytestmark = needs_gxx

BLOCK = 64
LOCKED = """__global__ void f(float* x, float* y, int* n) {{
    while (atomicCAS(n, 0, 1)) {{}}
    {}
    y[0] += x[threadIdx.x];
    {}
}}"""


def run(text: str, *, reversed: bool = False, blocks: int = 1, shared_bytes: int = 0) -> tuple[torch.Tensor, list[str]]:
    """y, after two warps a block have run a kernel on 64 ones, 64 zeros, and 64 zeros of int; and the notes."""
    x, y, n = torch.ones(BLOCK), torch.zeros(BLOCK), torch.zeros(BLOCK, dtype=torch.int32)
    emulator = Emulator(reversed=reversed)
    emulator(Source(text), "f", (blocks,), (BLOCK,), x, y, n, shared_bytes=shared_bytes)
    return y, emulator.notes


def kernel(*lines: str) -> str:
    """A kernel whose lines begin in line 2 of the source."""
    return "\n".join(("__global__ void f(float* x, float* y, int* n) {", *lines, "}"))


def test_an_unlimited_stack_puts_nothing_among_the_arrays() -> None:
    """With one, Linux maps a program's memory as low as it ever does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (hard, hard))
    try:
        numbers = ", ".join(f"int n{i}" for i in range(12))
        text = f"__global__ void f(float* x, {numbers}) {{ x[threadIdx.x] = n0 + n11; }}"
        x = torch.zeros(BLOCK)
        Emulator()(Source(text), "f", (1,), (BLOCK,), x, *range(12))
    finally:
        resource.setrlimit(resource.RLIMIT_STACK, (soft, hard))
    assert x.tolist() == [11.0] * BLOCK


@pytest.mark.parametrize(
    ("text", "told"),
    (
        (kernel("int i = threadIdx.x;", "y[i] = x[i + 1];"), "line 3 .*thread 63 reads element 64 of 64 of x, beyond"),
        (kernel("y[threadIdx.x + 1] = 0;"), "line 2 .*thread 63 writes element 64 of 64 of y, beyond the end"),
        (kernel("y[(int)threadIdx.x - 1] = 0;"), "line 2 .*thread 0 writes element -1 of 64 of y, before the start"),
        (kernel("y[1 << 30] = 0;"), "line 2 .*thread 0 writes element 1073741824 of 64 of y, beyond the end"),
        (kernel("atomicAdd(n - 1, 1);"), "line 2 .*thread 0 updates element -1 of 64 of n, before the start"),
        (
            kernel("__shared__ float before[64], a[64], after[64];", "a[threadIdx.x + 1] = 1;"),
            "line 3 .*thread 63 writes element 64 of 64 of a, beyond the end",
        ),
        (
            kernel("__shared__ float before[64], a[32][32];", "a[32][threadIdx.x] = 1;", "__syncthreads();", "y[0]=1;"),
            "line 3 .*thread 0 writes element 1024 of 1024 of a, beyond the end",
        ),
        (
            kernel("extern __shared__ float a[];", "a[threadIdx.x + 1] = 1;"),
            "line 3 .*thread 63 writes element 64 of 64 of a, beyond the end",
        ),
        (
            kernel("float4 all[8];", "memcpy(all, x + threadIdx.x, 128);", "y[threadIdx.x] = all[threadIdx.x % 8].y;"),
            "line 3 .*thread 33 reads element 33 of 64 of x, beyond the end",
        ),
    ),
)
def test_an_access_out_of_bounds_names_its_array(text: str, told: str) -> None:
    with pytest.raises(InputError, match=f"^kernel.cu: {told}"):
        run(text, shared_bytes=4 * BLOCK)


@pytest.mark.parametrize(
    ("lines", "blocks", "told"),
    (
        (("y[0] += x[threadIdx.x];",), 1, "line 2 .*thread 0 writes element 0 of 64 of y, thread 1 reads it, with no"),
        (
            ("__shared__ int a[64];", "a[threadIdx.x] = 1;", "y[threadIdx.x] = a[threadIdx.x ^ 1];"),
            1,
            "line 3 .* and line 4 .*thread 1 writes element 1 of 64 of a, thread 0 reads it, with no barrier between$",
        ),
        (
            ("__shared__ int a[64];", "a[threadIdx.x] = 1;", "__syncwarp();", "y[threadIdx.x] = a[63 - threadIdx.x];"),
            1,
            "line 3 .* and line 5 .*thread 32 writes element 32 of 64 of a, thread 31 reads it, with no barrier",
        ),
        (("y[threadIdx.x] += 1;",), 2, "line 2 .*block 0 thread 0 writes .* of y, block 1 thread 0 reads it, and no"),
        (("if (threadIdx.x) atomicAdd(n, 1);", "else n[0] = 7;"), 1, "line 3 .*thread 0 writes .*thread 1 updates it"),
    ),
    ids=("update", "lanes", "warps", "blocks", "atomic and store"),
)
def test_a_race_names_both_lines_and_threads(lines: tuple[str, ...], blocks: int, told: str) -> None:
    with pytest.raises(InputError, match=f"^kernel.cu: {told}"):
        run(kernel(*lines), blocks=blocks)
    with pytest.raises(InputError, match=r"with no barrier between$|and nothing orders them$"):
        run(kernel(*lines), blocks=blocks, reversed=True)


@pytest.mark.parametrize("reversed", (False, True))
@pytest.mark.parametrize(
    "lines",
    (
        ("__shared__ int a[64];", "a[threadIdx.x] = 1;", "__syncthreads();", "y[threadIdx.x] = a[63 - threadIdx.x];"),
        ("__shared__ int a[64];", "a[threadIdx.x] = 1;", "__syncwarp();", "y[threadIdx.x] = a[threadIdx.x ^ 1];"),
        ("int old = atomicAdd(n, 1);", "y[old] = atomicMax(n + 1, old) >= 0;"),
        ("float s = x[threadIdx.x];", "s = __shfl_xor_sync(~0u, s, 1);", "y[threadIdx.x] = s;"),
        ("unsigned all = __ballot_sync(~0u, threadIdx.x % 2);", "y[threadIdx.x] = all == 0xaaaaaaaau;"),
        ("y[threadIdx.x] = __shfl_up_sync(~0u, threadIdx.x % 8 == 0, 1, 8) == (threadIdx.x % 8 < 2);",),
    ),
    ids=("barrier", "syncwarp", "atomics", "shuffle", "ballot", "shuffle of eight"),
)
def test_accesses_in_order_are_no_race(lines: tuple[str, ...], reversed: bool) -> None:
    y, notes = run(kernel(*lines), reversed=reversed)
    assert y.tolist() == [1] * BLOCK and not notes


@pytest.mark.parametrize("reversed", (False, True))
@pytest.mark.parametrize("taken", ("__threadfence();", ""))
def test_a_lock_orders_what_it_protects(taken: str, reversed: bool) -> None:
    text = LOCKED.format(taken, "__threadfence(); atomicExch(n, 0);")
    y, notes = run(text, blocks=3, reversed=reversed)
    assert y[0] == 3 * BLOCK and not notes


@pytest.mark.parametrize(
    ("taken", "released", "raced"),
    (
        ("__threadfence();", "atomicExch(n, 0);", "y"),
        ("__threadfence();", "__threadfence(); n[0] = 0;", "n"),
        ("__threadfence();", "__threadfence(); atomicExch(n, 0); y[0] += 1;", "y"),
        ("__threadfence(); atomicExch(n, 0);", "", "y"),
    ),
    ids=("no fence when released", "released by a store", "work outside", "released too soon"),
)
def test_a_lock_that_does_not_hold_is_a_race(taken: str, released: str, raced: str) -> None:
    with pytest.raises(
        InputError, match=rf"element 0 of 64 of {raced}, .*(with no barrier between|nothing orders them)$"
    ):
        run(LOCKED.format(taken, released), blocks=2)


@pytest.mark.parametrize("taken", ("atomicCAS(n, 0, 1)", "atomicAdd(n, 1)"))
def test_a_lock_that_is_not_waited_for_is_a_race(taken: str) -> None:
    text = LOCKED.replace("while (atomicCAS(n, 0, 1)) {{}}", f"{taken};")
    with pytest.raises(InputError, match=r"element 0 of 64 of y, .* with no barrier between$"):
        run(text.format("__threadfence();", "__threadfence(); atomicExch(n, 0);"))


@pytest.mark.parametrize("reversed", (False, True))
def test_stores_of_one_equal_value_are_told_as_such(reversed: bool) -> None:
    lines = ("__shared__ bool any;", "any = true;", "__syncthreads();", "y[threadIdx.x] = any;")
    y, notes = run(kernel(*lines), reversed=reversed)
    told = r"line 3 `any = true;`: .* writes element 0 of 1 of any, thread \d+ writes it, the same value, so the order"
    assert y.tolist() == [1] * BLOCK and len(notes) == 1 and re.match(told, notes[0])
    with pytest.raises(InputError, match=r"with no barrier between$"):
        run(
            kernel("__shared__ int any;", "any = threadIdx.x / 63;", "__syncthreads();", "y[0] = 0;"), reversed=reversed
        )


@pytest.mark.parametrize("array", ("__shared__ int a[64];", "extern __shared__ int a[];"))
def test_shared_memory_that_no_thread_has_written_is_told(array: str) -> None:
    lines = (array, "if (threadIdx.x) a[threadIdx.x] = 1;", "__syncthreads();", "y[threadIdx.x] = a[threadIdx.x];")
    told = "line 5 .*block 0 thread 0 reads element 0 of 64 of a, which no thread of the block has written before$"
    with pytest.raises(InputError, match=told):
        run(kernel(*lines), shared_bytes=4 * BLOCK)
    lines = (array, "if (!blockIdx.x) a[threadIdx.x] = 1;", "__syncthreads();", "if (blockIdx.x) y[0] = a[0];")
    with pytest.raises(InputError, match=r"line 5 .*block 1 thread 0 reads element 0 of 64 of a, which no thread"):
        run(kernel(*lines), blocks=2, shared_bytes=4 * BLOCK)


@pytest.mark.parametrize(
    ("header", "name", "narrow", "wide", "dtype"),
    (
        ("cuda_fp16.h", "__half", "__float2half", "__half2float", torch.float16),
        ("cuda_bf16.h", "__nv_bfloat16", "__float2bfloat16", "__bfloat162float", torch.bfloat16),
    ),
)
def test_numbers_of_sixteen_bits_are_torchs(header: str, name: str, narrow: str, wide: str, dtype: torch.dtype) -> None:
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype).float()
    ties = torch.tensor([1 + k / 256 + sign / 2**20 for k in range(9) for sign in (-1, 0, 1)] + [65519.0, 65520.0])
    x = torch.cat([every, every * 1.0004883, every * 1.00390625, ties, torch.zeros(227)])
    y, z, w = x.to(dtype).flip(0).contiguous(), torch.zeros_like(x), torch.zeros(len(x), dtype=dtype)
    text = f"""#include <{header}>
    __global__ void f(const float* x, {name}* y, float* z, {name}* w) {{
        __shared__ {name} tile[256];
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        tile[threadIdx.x ^ 1] = y[i ^ 1];
        __syncthreads();
        {name} a = {narrow}(x[i]), b = tile[threadIdx.x];
        z[i] = {wide}(a);
        w[i] = __hfma(a, b, a * b + a) - __hadd(a, b);
    }}"""
    Emulator()(Source(text), "f", (len(x) // 256,), (256,), x, y, z, w)
    a, b = x.to(dtype), y
    fused = (a.double() * b.double() + (a * b + a).double()).to(dtype)
    for got, expected in ((z, a.float()), (w, fused - (a + b))):
        assert torch.equal(got.nan_to_num(7.0), expected.nan_to_num(7.0))
        assert torch.equal(got.isnan(), expected.isnan())
