"""Error-compensated rounding: every column's optimum by least squares, and below the error of rounding to nearest."""

import itertools

import pytest
import torch

from mlsys_lab.efficiency.formats import E2M1, INT2, INT4, NF4, UINT4
from mlsys_lab.efficiency.quantization import Scheme, choose_scale, gptq, hessian, quantize_tensor
from mlsys_lab.efficiency.quantization.calibration import round_to_scale
from mlsys_lab.errors import InputError

O, I, N = 6, 64, 300
W = torch.randn(O, I, generator=torch.Generator().manual_seed(0)).double()
GROUPS = Scheme(UINT4, "group", 16)


def inputs(seed=1, rank=20, width=I):
    """Correlated inputs, as activations are: mixtures of fewer sources, with a little noise."""
    generator = torch.Generator().manual_seed(seed)
    sources, mixture = torch.randn(N, rank, generator=generator), torch.randn(rank, width, generator=generator)
    return (sources @ mixture + 0.1 * torch.randn(N, width, generator=generator)).double()


def error(quantized, x, w=W):
    """Squared error of each output, summed over the tokens: (O,)."""
    return ((quantized.dequantize().double() - w) @ x.T).square().sum(-1)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("act_order", [False, True])
def test_outputs_are_nearer_than_those_of_weights_rounded_to_nearest(seed, act_order):
    x = inputs(seed)
    compensated, nearest = gptq(W, hessian(x), GROUPS, act_order=act_order), quantize_tensor(W, GROUPS)
    assert error(compensated, x).sum() < 0.5 * error(nearest, x).sum()
    off = [(quantized.dequantize() - W).norm() for quantized in (compensated, nearest)]
    assert off[0] > off[1]  # the weights themselves are further off


@pytest.mark.parametrize(
    "scheme",
    [
        GROUPS,
        Scheme(INT4),
        Scheme(INT4, "tensor"),
        Scheme(NF4, "group", 64),
        Scheme(E2M1, "group", 32, torch.float8_e8m0fnu),
        Scheme(E2M1, "group", 16, torch.float8_e4m3fn),
    ],
    ids=["uint4", "channel", "tensor", "nf4", "mxfp4", "nvfp4"],
)
def test_uncorrelated_inputs_leave_nothing_to_compensate(scheme):
    h = 3 * torch.eye(I).double()
    for act_order in (False, True):
        compensated, nearest = gptq(W, h, scheme, act_order=act_order), quantize_tensor(W, scheme)
        assert torch.equal(compensated.dequantize(), nearest.dequantize())


@pytest.mark.parametrize("act_order", [False, True])
def test_the_columns_that_are_left_are_those_of_least_squares(act_order):
    """With each column rounded in turn, the remaining weights minimise the error of the outputs, by torch's lstsq."""
    x, scheme = inputs(), Scheme(INT4, scale_dtype=torch.float32)
    scale, _ = choose_scale(W, scheme)
    order = x.square().sum(0).argsort(descending=True) if act_order else torch.arange(I)
    rounded = torch.empty_like(W)
    left = W.clone()
    for position, column in enumerate(order):
        later, earlier = order[position + 1 :], order[: position + 1]
        rounded[:, column] = round_to_scale(left[:, [column]], scale, None, scheme).dequantize()[:, 0].double()
        if len(later):
            target = x[:, earlier] @ (W[:, earlier] - rounded[:, earlier]).T  # (n, O), for the later columns to make up
            left[:, later] = W[:, later] + torch.linalg.lstsq(x[:, later], target).solution.T
    got = gptq(W, hessian(x), scheme, act_order=act_order, damping=0.0)
    torch.testing.assert_close(got.dequantize().double(), rounded, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_a_tiny_layer_lies_between_the_best_codes_of_all_and_rounding_to_nearest(seed):
    x, w = inputs(seed, rank=3, width=8), torch.randn(4, 8, generator=torch.Generator().manual_seed(seed)).double()
    scheme = Scheme(INT2, scale_dtype=torch.float32)
    scale, _ = choose_scale(w, scheme, "mse")
    codes = torch.tensor(list(itertools.product((-1, 0, 1), repeat=8))).double()  # (3⁸, 8)
    best = torch.stack([((codes * s - row) @ x.T).square().sum(-1).min() for row, s in zip(w, scale, strict=True)])
    compensated = error(gptq(w, hessian(x), scheme, method="mse"), x, w)
    nearest = error(quantize_tensor(w, scheme, "mse"), x, w)
    assert (best <= compensated * (1 + 1e-6)).all()
    assert compensated.sum() < nearest.sum()


def test_blocks_of_columns_change_nothing():
    """Updates go to all later columns after each 128, or after a whole group if that is wider."""
    x, w = inputs(width=192), torch.randn(O, 192, generator=torch.Generator().manual_seed(0))
    in_blocks, at_once = (gptq(w, hessian(x), scheme) for scheme in (Scheme(INT4), Scheme(INT4, "group", 192)))
    assert torch.equal(in_blocks.codes, at_once.codes)


def test_damping_draws_the_weights_back_to_rounding_to_nearest():
    x, scheme = inputs(), Scheme(INT4)
    nearest = quantize_tensor(W, scheme).dequantize()
    moved = [(gptq(W, hessian(x), scheme, damping=d).dequantize() - nearest).norm() for d in (0.01, 1.0, 100.0, 1e6)]
    assert moved == sorted(moved, reverse=True) and moved[0] > 0 and moved[-1] == 0


def test_an_input_that_is_never_used_is_rounded_to_nearest():
    x = inputs()
    x[:, 5] = 0
    assert torch.equal(gptq(W, hessian(x), Scheme(INT4)).codes[:, 5], quantize_tensor(W, Scheme(INT4)).codes[:, 5])


def test_bad_inputs_are_one_line():
    with pytest.raises(InputError, match="calibration inputs are all zero"):
        hessian(torch.zeros(5, I))
    with pytest.raises(InputError, match="calibration inputs are not finite"):
        hessian(torch.full((5, I), torch.nan))
    with pytest.raises(InputError, match=r"Hessian of another layer: got \(3, 3\), expected \(64, 64\)"):
        gptq(W, hessian(torch.ones(5, 3)), GROUPS)
    with pytest.raises(InputError, match="singular Hessian, of rank 5 for 64 inputs: got damping 0; help: calibrate"):
        gptq(W, hessian(inputs()[:5]), GROUPS, damping=0.0)
    with pytest.raises(InputError, match="groups do not divide the inputs: got groups of 60"):
        gptq(W, hessian(inputs()), Scheme(UINT4, "group", 60))
