"""Matmul in Triton: every step against float64, gradients, refusals, and what it reads."""

from __future__ import annotations

import itertools

import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.matmul import cost, triton_steps
from mlsys_lab.kernels.matmul import matmul as in_any_language
from mlsys_lab.kernels.matmul.triton_kernels import descriptor_kernel, persistent_kernel, tile_kernel
from mlsys_lab.kernels.matmul.triton_steps import ACTIVATIONS, CONFIGS, STEPS, TileConfig, matmul
from mlsys_lab.kernels.tiles import HOPPER_SHARED_BYTES
from mlsys_lab.kernels.trace.traffic import times_written, traffic
from mlsys_lab.kernels.trace.triton_interpreter import record
from tests.kernels.closeness import assert_near
from tests.kernels.compiled import compiled
from tests.kernels.operators import looked_at

SMALL = TileConfig(16, 32, 16, 2)
ODD = [(33, 40, 24), (1, 1, 1), (17, 31, 13), (32, 64, 32), (5, 7, 0), (0, 4, 3), (3, 0, 5)]
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def operands(m, n, k, dtype=torch.float32, device="cpu"):
    return [torch.randn(shape, dtype=dtype, device=device, requires_grad=True) for shape in ((m, k), (k, n), (n,))]


def expected(a, b, bias=None, activation="none"):
    z = a.double() @ b.double() + (0 if bias is None else bias.double())
    return z if activation == "none" else getattr(torch.nn.functional, activation)(z)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("step", STEPS)
def test_every_step_at_odd_shapes(step, dtype, device):
    for m, n, k in ODD:
        a, b, bias = operands(m, n, k, dtype, device)
        y = matmul(a, b, bias, step=step, config=SMALL)
        assert y.dtype == dtype
        assert_near(y, expected(a, b, bias))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("step", ("grouped", "fused", "descriptors"))
def test_gradients(step, activation, device):
    a, b, bias = operands(33, 40, 24, device=device)
    dy = torch.randn(33, 40, device=device)
    matmul(a, b, bias, activation=activation, step=step, config=SMALL).backward(dy)
    wide = [x.detach().double().requires_grad_() for x in (a, b, bias)]
    expected(*wide, activation).backward(dy.double())
    for x, exact in zip((a, b, bias), wide, strict=True):
        assert_near(x.grad, exact.grad)


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16), ids=str)
def test_gradients_in_half_precision(dtype, device):
    a, b, bias = operands(33, 40, 24, dtype, device)
    y = matmul(a, b, bias, activation="relu", config=SMALL)
    dy = torch.randn_like(y)
    y.backward(dy)
    dz = torch.where(y > 0, dy, 0).double()  # where the result is 0 is the kernel's to round
    for x, exact in ((a, dz @ b.double().T), (b, a.double().T @ dz), (bias, dz.sum(0))):
        assert_near(x.grad, exact)


def test_transposed_operands(device):
    a, b, _ = operands(24, 40, 32, device=device)
    for step in STEPS:
        assert_near(matmul(b.T, a.T, step=step, config=SMALL), expected(b.T, a.T))
    assert_near(matmul(b.T, a.T, torch.ones(24, device=device), config=SMALL), expected(b.T, a.T) + 1)
    a, b, _ = operands(31, 24, 40, device=device)  # rows that the copy engine cannot start at
    assert_near(matmul(a.T, torch.ones_like(a)), expected(a.T, torch.ones_like(a)))


def test_the_languages_meet(device):
    a, b, _ = operands(33, 40, 24, device=device)
    assert_near(in_any_language(a, b, language="triton", step="tile"), expected(a, b))
    assert triton_steps.run("fused", a, b).shape == (33, 40)


def test_torch_can_call_it(device):
    a, b, bias = operands(16, 16, 8, device=device)
    for activation, keep in (("gelu", True), ("none", False)):
        args = (a, b, bias, activation, "fused", "ieee", [16, 16, 16, 1, 4, 2], keep)
        torch.library.opcheck(triton_steps._forward, args)

    @torch.compile(backend="aot_eager", fullgraph=True)
    def layer(x, y, z):
        return matmul(x, y, z, activation="silu", config=SMALL)

    layer(a, b, bias).sum().backward()
    compiled_grad, a.grad = a.grad, None
    matmul(a, b, bias, activation="silu", config=SMALL).sum().backward()
    assert torch.equal(a.grad, compiled_grad)


def test_bad_input():
    a, b, bias = operands(4, 6, 5)
    refusals = {
        "dtype of a": lambda: matmul(a.double(), b.double()),
        "a and b have two dtypes": lambda: matmul(a, b.half()),
        "a and b are on two devices": lambda: matmul(a, b.to("meta")),
        "dimensions of b": lambda: matmul(a, b[None]),
        "last dimension of a is not contiguous": lambda: matmul(torch.zeros(8, 10)[::2, ::2], b),
        "a and b do not fit": lambda: matmul(a, b.T.contiguous()),
        "shape of bias": lambda: matmul(a, b, bias[1:]),
        "a and bias have two dtypes": lambda: matmul(a, b, bias.half()),
        "unknown activation": lambda: matmul(a, b, activation="tanh"),
        "unknown step": lambda: matmul(a, b, step="fast"),
        "unknown precision": lambda: matmul(a, b, precision="fp8"),
        "too large for shared memory": lambda: matmul(a, b, config=TileConfig(256, 256, 128)),
        "block_k of a tile": lambda: TileConfig(block_k=24),
        "num_warps of a tile": lambda: TileConfig(num_warps=3),
        "num_stages and group_m": lambda: TileConfig(num_stages=0),
    }
    for line, call in refusals.items():
        with pytest.raises(InputError, match=line) as caught:
            call()
        assert "\n" not in str(caught.value)


def launched(kernel, m, n, k, tile, **more):
    a, b, _ = (x.detach() for x in operands(m, n, k))
    c = torch.empty(m, n)
    tiles = -(-m // tile.block_m) * -(-n // tile.block_n)
    constants = tile.constants() | {"PRECISION": "ieee", "ACTIVATION": "none", "BIAS": False, "SAVE_INPUT": False}
    strides = (k, n) if kernel is descriptor_kernel else (k, 1, n, 1)
    grid = (tiles if kernel is tile_kernel else min(3, tiles),)
    trace = record(kernel, grid, a, b, c, None, None, m, n, k, *strides, outputs=("c_ptr",), **constants, **more)
    assert_near(c, a.double() @ b.double())
    return trace


@pytest.mark.parametrize(
    ("kernel", "more"),
    [
        (tile_kernel, {"EVEN": False}),
        (persistent_kernel, {"EVEN": False}),
        (descriptor_kernel, {"A_TRANSPOSED": False, "B_TRANSPOSED": False}),
    ],
)
def test_a_is_read_once_for_each_column_of_tiles(kernel, more):
    m, n, k, tile = 36, 72, 28, TileConfig(16, 32, 16, 2)
    found = {one.buffer: one for one in traffic(launched(kernel, m, n, k, tile, **more))}
    assert found["a_ptr"].read.ratio == -(-n // tile.block_n) == 3
    assert found["b_ptr"].read.ratio == -(-m // tile.block_m) == 3
    assert found["c_ptr"].written.ratio == 1
    asked = sum(one.read.asked_bytes + one.written.asked_bytes for one in found.values())
    assert asked == cost.tiled_bytes(m, n, k, tile.block_m, tile.block_n)


@pytest.mark.parametrize("step", STEPS)
def test_nothing_is_touched_that_should_not_be(step):
    for m, n, k in ((33, 40, 24), (17, 31, 13), (5, 7, 0)):
        a, b, bias = operands(m, n, k)
        looked_at(lambda a=a, b=b, bias=bias: matmul(a, b, bias, activation="gelu", step=step, config=SMALL))


def test_larger_tiles_read_less():
    asked = [
        sum(one.read.asked_bytes for one in traffic(launched(tile_kernel, 64, 64, 16, TileConfig(m, m, 16), EVEN=True)))
        for m in (16, 32, 64)
    ]
    assert asked[0] == 2 * asked[1] == 4 * asked[2]


def test_grouped_order_needs_fewer_different_tiles_at_once():
    """Of the first 9 of 64 tiles: row after row needs 2 rows of A and all 8 columns of B, in groups of 3, 3 and 3."""

    def different(group):
        trace = launched(tile_kernel, 128, 128, 16, TileConfig(16, 16, 16, group), EVEN=True)
        reads = trace.accesses[trace.accesses["block"] < 9]
        names = [buffer.name for buffer in trace.buffers]
        a, b = (reads[reads["buffer"] == names.index(name)]["offset"] // 4 for name in ("a_ptr", "b_ptr"))
        return len(set(a // 16 // 16)) + len(set(b % 128 // 16))

    assert (different(1), different(3)) == (2 + 8, 3 + 3)


def test_persistent_programs_write_each_tile_once():
    trace = launched(persistent_kernel, 70, 70, 16, SMALL, EVEN=False)
    assert (times_written(trace, "c_ptr") == 1).all()
    assert set(trace.accesses["block"]) == {0, 1, 2}


def test_results_ask_for_gradients_where_operands_do(device):
    for activation, grad, step in itertools.product(ACTIVATIONS, (True, False), ("grouped", "fused")):
        a, b, bias = (x.detach().requires_grad_(grad) for x in operands(16, 16, 16, device=device))
        assert matmul(a, b, bias, activation=activation, step=step, config=SMALL).requires_grad == grad


LAUNCHES = """
import torch
from mlsys_lab.kernels.matmul.triton_steps import CONFIGS, TileConfig, matmul
a, b, bias = (torch.empty(shape, dtype=torch.bfloat16) for shape in ((512, 512), (512, 512), (512,)))
matmul(a, b, step="fused", config=CONFIGS[0])
matmul(a, b, step="persistent", config=CONFIGS[0])
matmul(a.T, b, bias, activation="gelu", step="descriptors", config=CONFIGS[1])
x = torch.empty(64, 64)
matmul(x, x, step="fused", precision="tf32", config=TileConfig(64, 64, 32))
"""


@pytest.mark.weekly
def test_compiled_for_hopper():
    fused, persistent, descriptors, tf32 = found = compiled(LAUNCHES)
    for one in found:
        assert one.stack_bytes == 0, "nothing spills"
        assert one.shared_bytes <= HOPPER_SHARED_BYTES
    for one in (fused, persistent, descriptors):
        assert "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16" in one.ptx
    assert (fused.kernel, persistent.kernel) == ("tile_kernel", "persistent_kernel")
    assert "cp.async.cg" in fused.ptx and "cp.async.bulk.tensor" not in fused.ptx
    assert "cp.async.bulk.tensor" in descriptors.ptx and "cp.async.cg" not in descriptors.ptx
    assert ".tf32" in tf32.ptx


def test_every_dtype_and_precision_has_a_candidate():
    assert all(tile.shared_bytes(2) <= HOPPER_SHARED_BYTES for tile in CONFIGS)
    for small in (True, False):
        assert any(tile.shared_bytes(4) <= HOPPER_SHARED_BYTES and (tile.block_k == 16) == small for tile in CONFIGS)
