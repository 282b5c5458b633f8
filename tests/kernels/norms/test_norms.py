"""Layer norm and RMS norm in Triton against torch, and what they ask of memory."""

from __future__ import annotations

import functools
import math

import pytest
import torch
import torch.nn.functional as F

from mlsys_lab.errors import InputError
from mlsys_lab.kernels import norms
from mlsys_lab.kernels.norms import (
    MAX_BIAS_PARTIAL_WIDTH,
    MAX_ONE_PASS_BACKWARD_WIDTH,
    MAX_WIDTH,
    STEPS,
    cost,
    layer_norm,
    rms_norm,
)
from mlsys_lab.kernels.trace.traffic import total
from tests.kernels.closeness import assert_near
from tests.kernels.operators import (
    DTYPES,
    assert_like,
    compiles_whole,
    looked_at,
    reads_and_writes,
    result_gradient,
    with_gradients,
)

SHAPES = [(6,), (0, 4), (5, 7), (67, 5), (2, 3, 1031), (2, MAX_ONE_PASS_BACKWARD_WIDTH + 1)]
OURS = {"layer": layer_norm, "rms": rms_norm}
REFERENCES = {"layer": norms.reference_layer_norm, "rms": norms.reference_rms_norm}
KINDS = list(OURS)


def expected_layer(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, weight.shape, weight, bias, 1e-5)


def expected_rms(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, weight.shape, weight, 1e-6)


EXPECTED = {"layer": expected_layer, "rms": expected_rms}


def operands(kind: str, *shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> list[torch.Tensor]:
    """x, weight and, for layer norm, bias."""
    sizes = [shape, shape[-1:], shape[-1:]][: 3 if kind == "layer" else 2]
    return [torch.randn(size, dtype=dtype, device=device) + 0.5 for size in sizes]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients(kind: str, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
    assert_like(OURS[kind], EXPECTED[kind], *operands(kind, *shape, dtype=dtype, device=device))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_whose_shares_alone_fill_the_registers(kind: str, device: str) -> None:
    assert_like(OURS[kind], EXPECTED[kind], *operands(kind, 3, MAX_BIAS_PARTIAL_WIDTH + 1, device=device))


@pytest.mark.parametrize("shape", [(1,), (3, 1)])
def test_a_row_of_one_number_is_nothing_but_its_sign_or_its_mean(shape: tuple[int, ...], device: str) -> None:
    x, weight, bias = operands("layer", *shape, device=device)
    y, dx, _, db = with_gradients(layer_norm, x, weight, bias)
    dy = result_gradient(y)
    assert torch.equal(y, bias.expand(shape)) and not dx.any() and torch.equal(db, dy.sum().reshape(1))
    y, dx, dw = with_gradients(rms_norm, x, weight)
    assert_near(y, (x.sign() * weight).double())
    assert dx.abs().max() < 1e-3 and torch.allclose(dw, (dy * x.sign()).sum())  # what eps leaves of a gradient


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_a_block_gives_the_same(kind: str, device: str) -> None:
    step = functools.partial(OURS[kind], step="one_block")
    assert_like(step, EXPECTED[kind], *operands(kind, 9, 1031, device=device))


@pytest.mark.parametrize("kind", KINDS)
def test_programs_that_go_through_several_rows(kind: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    few = lambda step, num_blocks, max_resident: min(num_blocks, 3)  # noqa: E731
    monkeypatch.setattr("mlsys_lab.kernels.norms._num_programs", few)
    assert_like(OURS[kind], EXPECTED[kind], *operands(kind, 11, 4099, device=device))
    assert_like(OURS[kind], EXPECTED[kind], *operands(kind, 7, MAX_ONE_PASS_BACKWARD_WIDTH + 1, device=device))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_references_are_the_norms(kind: str, dtype: torch.dtype) -> None:
    assert_like(REFERENCES[kind], EXPECTED[kind], *operands(kind, 5, 31, dtype=dtype))


def test_a_large_mean_does_not_swallow_the_variance() -> None:
    x = 1000 + torch.randn(3, 1031)  # float32 knows x − μ to 6e-5; mean(x²) − μ² would be off by 0.1
    want = F.layer_norm(x.double(), (1031,))
    assert_near(layer_norm(x, torch.ones(1031), torch.zeros(1031)), want, scale=10)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_nan_infinities_and_zeros_stay_by_themselves(kind: str) -> None:
    x, *weights = operands(kind, 5, 130)
    x[1, 3], x[2, 129], x[3] = math.nan, math.inf, 0
    y, want = OURS[kind](x, *weights), EXPECTED[kind](x.double(), *(one.double() for one in weights))
    assert torch.equal(y.isnan(), want.isnan()) and not y[[0, 3, 4]].isnan().any()
    assert_near(y[[0, 3, 4]], want[[0, 3, 4]])


@pytest.mark.parametrize("kind", KINDS)
def test_every_run_gives_the_same_bits(kind: str, device: str) -> None:
    inputs = [one.requires_grad_() for one in operands(kind, 301, 67, device=device)]
    first, second = (torch.autograd.grad(OURS[kind](*inputs).square().sum(), inputs) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_operators_are_torchs(kind: str, step: str) -> None:
    x, weight, *bias = (one.requires_grad_() for one in operands(kind, 5, 7))
    torch.library.opcheck(torch.ops.mlsys_lab.norm.default, (x, weight, bias[0] if bias else None, 1e-5, step))
    compiles_whole(lambda x, *w: OURS[kind](2 * x, *w, step=step) * 3, [x, weight, *bias])


def test_the_backward_operator_is_torchs() -> None:
    x, weight, r = torch.randn(5, 7), torch.randn(7), torch.rand(5)
    for centred, mean in ((False, torch.empty(0)), (True, torch.rand(5))):
        given = (x, x, weight, mean, r, centred, "persistent")
        torch.library.opcheck(torch.ops.mlsys_lab.norm_backward.default, given)


@pytest.mark.parametrize("kind", KINDS)
def test_programs_that_stay_read_the_weights_once_each(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, width, programs = 24, 1031, 2
    monkeypatch.setattr("mlsys_lab.kernels.norms._num_programs", lambda *_: programs)
    x, *weights = (one.requires_grad_() for one in operands(kind, rows, width))
    forward, backward, added = looked_at(lambda: OURS[kind](x, *weights).sum().backward())
    moved = reads_and_writes(forward)
    assert moved["x_ptr"] == (1, 0) and moved["y_ptr"] == moved["r_ptr"] == (0, 1)
    assert moved["w_ptr"] == (programs, 0)
    moved = reads_and_writes(backward)
    assert moved["x_ptr"] == moved["dy_ptr"] == (1, 0) and moved["dx_ptr"] == moved["dw_ptr"] == (0, 1)
    moved = reads_and_writes(added)
    assert moved["partials_ptr"] == (1, 0) and moved["dw_ptr"] == (0, 1)
    assert moved["db_ptr"] == ((0, 1) if kind == "layer" else (0, 0))
    centred = kind == "layer"
    least = cost.forward(rows, width, 4, centred=centred)[1]
    assert least <= total(forward).asked_bytes <= 1.1 * least
    least = cost.backward(rows, width, 4, centred=centred)[1]
    assert least <= total(backward).asked_bytes <= 1.1 * least


def test_a_program_a_block_reads_the_weight_and_writes_a_share_for_each() -> None:
    x, weight = (one.requires_grad_() for one in operands("rms", 8, 4099))
    forward, backward, _ = looked_at(lambda: rms_norm(x, weight, step="one_block").sum().backward())
    assert reads_and_writes(forward)["w_ptr"] == reads_and_writes(backward)["w_ptr"] == (8, 0)
    assert [one.shape for one in backward.buffers if one.name == "dw_ptr"] == [(8, 4099)]


def test_wide_rows_are_read_twice_backward_where_registers_hold_the_share_only() -> None:
    x, weight = (one.requires_grad_() for one in operands("rms", 2, MAX_ONE_PASS_BACKWARD_WIDTH + 3))
    forward, backward, _ = looked_at(lambda: rms_norm(x, weight).sum().backward())
    assert reads_and_writes(forward)["x_ptr"] == (1, 0)
    moved = reads_and_writes(backward)
    assert moved["x_ptr"] == moved["dy_ptr"] == (2, 0) and moved["dx_ptr"] == (0, 1)


def test_of_the_widest_rows_layer_norm_sums_dy_by_itself() -> None:
    x, weight, bias = (one.requires_grad_() for one in operands("layer", 2, MAX_BIAS_PARTIAL_WIDTH + 1))
    y = layer_norm(x, weight, bias)
    backward, _, of_db = looked_at(lambda: y.sum().backward())
    assert reads_and_writes(backward)["dy_ptr"] == (2, 0) and "db_ptr" not in reads_and_writes(backward)
    assert reads_and_writes(of_db)["partials_ptr"] == (1, 0)
    assert [one.elements for one in of_db.buffers if one.name == "partials_ptr"] == [y.numel()], "all of dy once more"


@pytest.mark.parametrize(
    ("x", "weight", "says"),
    [
        (torch.ones(3, 4).double(), torch.ones(4).double(), "dtype of x: got torch.float64"),
        (torch.ones(3, 4), torch.ones(4).half(), "x and weight have two dtypes"),
        (torch.ones(4, 3).T, torch.ones(4), "x is not contiguous"),
        (torch.ones(3, 4), torch.ones(8)[::2], "weight is not contiguous"),
        (torch.ones(3, 4), torch.ones(4, device="meta"), "x and weight are on two devices"),
        (torch.ones(3, 4), torch.ones(3), r"shape of weight: got \(3,\), expected \(4,\)"),
        (torch.ones(3, 0), torch.ones(0), "rows of x have no elements"),
        (
            torch.ones(1, MAX_WIDTH + 1),
            torch.ones(MAX_WIDTH + 1),
            f"rows too wide for one program: got {MAX_WIDTH + 1}",
        ),
    ],
)
def test_bad_input_is_one_line(x: torch.Tensor, weight: torch.Tensor, says: str) -> None:
    with pytest.raises(InputError, match=says):
        rms_norm(x, weight)
    with pytest.raises(InputError, match=says):
        layer_norm(x, weight, weight)


def test_an_unknown_step() -> None:
    with pytest.raises(InputError, match="unknown step: got 'fast', expected one of one_block, persistent"):
        rms_norm(torch.ones(3), torch.ones(3), step="fast")
