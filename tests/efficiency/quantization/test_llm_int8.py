"""Mixed 8-bit products: large inputs apart, errors within the bound, and what happens without that."""

import math

import pytest
import torch

from mlsys_lab.efficiency.quantization import MixedInt8Linear

O, I, N = 7, 48, 50


def case(seed=0, outliers=(3, 17), factor=40.0):
    generator = torch.Generator().manual_seed(seed)
    w, x = torch.randn(O, I, generator=generator), torch.randn(N, I, generator=generator)
    x[:, list(outliers)] *= factor
    return w, x


def test_the_inputs_that_reach_the_threshold_are_kept_in_16_bits():
    w, x = case()
    layer = MixedInt8Linear(w, x)
    assert layer.outliers.tolist() == [3, 17] and len(layer.regular) == I - 2
    assert layer.codes.dtype == torch.int8 and layer.kept.dtype == torch.bfloat16
    assert (layer.weight() - w).abs().le(layer.weight_error_bound() * (1 + 1e-4)).all()
    bound = O * (I - 2 + 4 + 2 * 2) + 4 * I  # codes, scales, outliers, and which inputs are which
    assert sum(buffer.nbytes for buffer in layer.buffers()) == bound


@pytest.mark.parametrize("threshold", [0.0, 6.0, math.inf])
@pytest.mark.parametrize("seed", range(4))
def test_outputs_are_within_the_bound(seed, threshold):
    w, x = case(seed)
    layer = MixedInt8Linear(w, x, torch.ones(O), threshold=threshold)
    off, bound = (layer(x) - (x @ w.T + 1)).abs(), layer.error_bound(x)
    assert off.shape == bound.shape == (N, O)
    assert (off <= bound + 1e-3).all() and off.max() > bound.min() / 100


def test_without_outliers_apart_the_others_round_to_next_to_nothing():
    w, x = case(factor=400.0)
    apart, together = (MixedInt8Linear(w, x, threshold=threshold) for threshold in (6.0, math.inf))
    regular = [i for i in range(I) if i not in (3, 17)]
    x = x.clone()
    exact = x @ w.T
    errors = [(layer(x) - exact).square().mean().sqrt() for layer in (apart, together)]
    assert errors[1] > 3 * errors[0]
    signal = (x[:, regular] @ w[:, regular].T).square().mean().sqrt()
    assert errors[1] > signal / 3


def test_no_outlier_and_nothing_but_outliers():
    w, x = case(factor=1.0)
    assert len(MixedInt8Linear(w, x, threshold=math.inf).outliers) == 0
    whole = MixedInt8Linear(w, x, threshold=0.0)
    assert len(whole.regular) == 0
    torch.testing.assert_close(whole(x), x @ w.bfloat16().float().T)


def test_other_axes_and_dtypes_stay():
    w, x = case()
    layer = MixedInt8Linear(w, x, torch.ones(O).bfloat16())
    assert layer(x[None, :, None]).shape == (1, N, 1, O)
    assert layer(x.bfloat16()).dtype == torch.bfloat16
