"""Rotations: Hadamard matrices by definition and scipy's, the function unchanged, an outlier spread over channels."""

import pytest
import scipy.linalg
import torch

from mlsys_lab.efficiency.quantization import hadamard, rotate
from mlsys_lab.errors import InputError
from tests.efficiency.quantization.models import ARCHITECTURES, LAYER_NORMS, TOKENS, make_model

ORDERS = (1, 2, 4, 8, 64, 12, 24, 48, 96, 768, 20, 40, 44, 72, 224)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.every_case
def test_rows_are_signs_and_orthogonal(order):
    h = hadamard(order)
    assert (h.abs() == 1).all()
    assert torch.equal(h @ h.T, order * torch.eye(order, dtype=torch.float64))


@pytest.mark.parametrize("exponent", range(8))
def test_powers_of_two_are_sylvester_s(exponent):
    assert hadamard(2**exponent).tolist() == scipy.linalg.hadamard(2**exponent).tolist()


@pytest.mark.parametrize("name", ARCHITECTURES | {"norms without weights": {}})
@torch.no_grad()
def test_the_function_stays(name):
    model = make_model(**ARCHITECTURES.get(name, {"norm_weight": False}))
    rotated = rotate(model)
    torch.testing.assert_close(rotated(TOKENS), model(TOKENS), rtol=1e-3, atol=1e-4)
    assert rotated.config.tied is False
    for norm in (rotated.norm, *(block.attention_norm for block in rotated.blocks)):
        assert norm.weight is None or (norm.weight == 1).all()


@torch.no_grad()
def test_the_residual_stream_is_the_original_one_rotated():
    model = make_model()
    rotated, q = rotate(model), (hadamard(24) / 24**0.5).float()
    x, y = model.embed(TOKENS), rotated.embed(TOKENS)
    torch.testing.assert_close(y, x @ q)
    angles, bias = model.position_terms(x)
    torch.testing.assert_close(
        rotated.blocks[0](y, angles, bias), model.blocks[0](x, angles, bias) @ q, rtol=1e-3, atol=1e-4
    )


def test_an_outlier_is_spread_over_all_channels():
    x = torch.zeros(64).double()
    x[5] = 64.0
    assert ((x @ hadamard(64) / 8).abs() == 8).all()


@pytest.mark.parametrize("order", [3, 28, 36, 52])
def test_an_order_that_is_not_reached_is_one_line(order):
    with pytest.raises(InputError, match=f"no Hadamard matrix of this order here: got {order}"):
        hadamard(order)


@pytest.mark.parametrize("changes", [LAYER_NORMS, {"post_norms": True}, {"pre_norms": False}, {"embedding_norm": True}])
def test_norms_that_do_not_commute_are_one_line(changes):
    with pytest.raises(InputError, match="only RMS pre-norms commute with rotations: got small"):
        rotate(make_model(**changes))
