"""Products with int8 and int4 weights: against float64 at odd sizes, bytes counted, what is refused."""

from __future__ import annotations

import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.quantized_matmul import int4_matmul, int8_matmul, tile_sizes
from mlsys_lab.kernels.quantized_matmul.cost import Weights, tiled_bytes
from mlsys_lab.kernels.tiles import HOPPER_SHARED_BYTES
from mlsys_lab.kernels.trace.traffic import traffic
from tests.kernels.closeness import assert_near
from tests.kernels.compiled import compiled
from tests.kernels.operators import DTYPES, looked_at

SHAPES = [(1, 1, 16, 16), (3, 65, 96, 32), (70, 5, 48, 48), (2, 130, 128, 64)]
"""M, O, I and the inputs of a group of 4-bit weights."""


def int8_weights(O, I, device="cpu"):
    """Codes and scales, and the weights that they stand for, computed by NumPy's rules in float64."""
    codes = torch.randint(-128, 128, (O, I), dtype=torch.int8, device=device)
    scale = torch.rand(O, device=device).half() + 0.1
    return (codes, scale), codes.double() * scale.double()[:, None]


def int4_weights(O, I, group, *, signed=False, scale_dtype=torch.float16, device="cpu"):
    """Packed codes, scales and zero points, and the weights that they stand for, from lists of Python's integers."""
    codes = torch.randint(-8, 8, (O, I)) if signed else torch.randint(0, 16, (O, I))
    nibbles = codes % 16
    packed = (nibbles[:, 0::2] + 16 * nibbles[:, 1::2]).to(torch.uint8)
    scale = (torch.rand(O, I // group) + 0.1).to(scale_dtype)
    zero_point = None if signed else torch.randint(0, 16, (O, I // group), dtype=torch.uint8)
    zeros = 0 if zero_point is None else zero_point.double().repeat_interleave(group, 1)
    weights = (codes.double() - zeros) * scale.double().repeat_interleave(group, 1)
    operands = [x if x is None else x.to(device) for x in (packed, scale, zero_point)]
    return operands, weights.to(device)


@pytest.mark.parametrize(("M", "O", "I", "group"), SHAPES)
def test_every_step_at_odd_sizes(M, O, I, group, device):
    x = torch.randn(M, I, device=device)
    odd = torch.randn(M, I + 5, device=device)
    for step in ("reference", "tiled"):
        operands, weights = int8_weights(O, I + 5, device)
        assert_near(int8_matmul(odd, *operands, step=step), odd.double() @ weights.T)
        for signed in (False, True):
            operands, weights = int4_weights(O, I, group, signed=signed, device=device)
            assert_near(int4_matmul(x, *operands, step=step), x.double() @ weights.T)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype, device):
    x = torch.randn(4, 96, device=device).to(dtype)
    (int8, w8), (int4, w4) = int8_weights(33, 96, device), int4_weights(33, 96, 32, device=device)
    for step in ("reference", "tiled"):
        for got, weights in (int8_matmul(x, *int8, step=step), w8), (int4_matmul(x, *int4, step=step), w4):
            assert got.dtype == dtype
            assert_near(got, x.double() @ weights.T)


def test_rows_of_activations_may_lie_apart(device):
    x = torch.randn(3, 100, device=device)[:, :64]
    (int8, w8), (int4, w4) = int8_weights(9, 64, device), int4_weights(9, 64, 32, device=device)
    assert_near(int8_matmul(x, *int8), x.double() @ w8.T)
    assert_near(int4_matmul(x, *int4), x.double() @ w4.T)


@pytest.mark.parametrize(("M", "O", "I", "group"), SHAPES)
def test_bytes_requested_are_the_closed_form(M, O, I, group):
    x = torch.randn(M, I, dtype=torch.float16)
    int8, int4, signed = int8_weights(O, I)[0], int4_weights(O, I, group)[0], int4_weights(O, I, group, signed=True)[0]
    for multiply, operands, weights in (
        (int8_matmul, int8, Weights(O, I, 8)),
        (int4_matmul, int4, Weights(O, I, 4, group=group, has_zero_points=True)),
        (int4_matmul, signed, Weights(O, I, 4, group=group)),
    ):
        (trace,) = looked_at(lambda: multiply(x, *operands))  # noqa: B023
        sizes = tile_sizes(x, min(64, group & -group))
        blocks = {name.lower(): size for name, size in sizes.items()}
        assert sum(flow.both.asked_bytes for flow in traffic(trace)) == tiled_bytes(M, weights, **blocks)


def test_no_rows_and_no_outputs(device):
    (codes, scale), _ = int8_weights(3, 32, device)
    (packed, scales, zero_point), _ = int4_weights(3, 32, 32, device=device)
    for step in ("reference", "tiled", "compiled") if device == "cpu" else ("reference", "tiled"):
        for M, O in (0, 3), (2, 0), (0, 0):
            x = torch.randn(M, 32, device=device)
            assert int8_matmul(x, codes[:O], scale[:O], step=step).shape == (M, O)
            assert int4_matmul(x, packed[:O], scales[:O], zero_point[:O], step=step).shape == (M, O)


def test_bad_input():
    x, (int8, _), (int4, _) = torch.randn(2, 64), int8_weights(3, 64), int4_weights(3, 64, 32)
    packed, scale, zero_point = int4
    refusals = {
        "unknown step": lambda: int8_matmul(x, *int8, step="split"),
        "unknown precision": lambda: int8_matmul(x, *int8, precision="fast"),
        r"shape of codes: got \(3, 64\), expected \(3, 63\)": lambda: int8_matmul(x[:, 1:], *int8),
        "shape of scale": lambda: int8_matmul(x, int8[0], scale),
        "dtype of codes": lambda: int8_matmul(x, packed, int8[1]),
        "dtype of packed": lambda: int4_matmul(x, *int8),
        "dtype of zero_point": lambda: int4_matmul(x, packed, scale, scale),
        r"shape of zero_point: got \(3, 1\)": lambda: int4_matmul(x, packed, scale, zero_point[:, :1].contiguous()),
        r"shape of packed: got \(3, 32\), expected \(3, 16\)": lambda: int4_matmul(x[:, :32], *int4),
        "groups do not divide the inputs: got 3 groups, 64 inputs": lambda: int4_matmul(
            x, packed, scale.new_ones(3, 3)
        ),
        "inputs of a group: got 8, expected a multiple of 16": lambda: int4_matmul(x, packed, scale.new_ones(3, 8)),
        "dtype of x: got torch.float16": lambda: int4_matmul(x.half(), *int4, step="compiled"),
        "packed is not contiguous": lambda: int4_matmul(x, packed.T.contiguous().T, scale, zero_point),
    }
    for line, refused in refusals.items():
        with pytest.raises(InputError, match=line) as caught:
            refused()
        assert "\n" not in str(caught.value)


LAUNCHES = """
import torch
from mlsys_lab.kernels.quantized_matmul import int4_matmul, int8_matmul
for rows in (1, 64):
    x = torch.empty(rows, 4096, dtype=torch.float16)
    int8_matmul(x, torch.empty(4096, 4096, dtype=torch.int8), torch.empty(4096))
    scale, zero_point = torch.empty(4096, 64, dtype=torch.float16), torch.empty(4096, 64, dtype=torch.uint8)
    int4_matmul(x, torch.empty(4096, 2048, dtype=torch.uint8), scale, zero_point)
"""


@pytest.mark.weekly
def test_compiled_for_hopper():
    launches = compiled(LAUNCHES)
    assert [launch.constants["BLOCK_M"] for launch in launches] == ["16", "16", "64", "64"]
    for launch in launches:
        assert launch.stack_bytes == 0, "nothing spills"
        assert "mma" in launch.ptx and launch.shared_bytes <= HOPPER_SHARED_BYTES / 2, "two blocks find room"
        assert "cp.async.cg.shared.global [ %r" in launch.ptx, "x and codes go to shared memory, 16 bytes each"
