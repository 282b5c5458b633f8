"""Activation-aware scales: the best of all exponents on the outputs, shared by the layers of one input."""

import pytest
import torch

from mlsys_lab.efficiency.blocks import observe_model
from mlsys_lab.efficiency.formats import INT3, UINT4
from mlsys_lab.efficiency.quantization import Recipe, Scheme, awq_scale, quantize, quantize_tensor
from mlsys_lab.efficiency.quantization.awq import EXPONENTS, scale_block
from mlsys_lab.errors import InputError
from tests.efficiency.quantization.models import ARCHITECTURES, TOKENS, make_model

O, I, N = 8, 64, 200
SCHEME = Scheme(INT3, "group", 32)
W = torch.randn(O, I, generator=torch.Generator().manual_seed(0))


def inputs(seed=1):
    """Inputs of which some are much larger."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(N, I, generator=generator) * torch.exp(1.5 * torch.randn(I, generator=generator))


def error(scale, x):
    """Squared error of the outputs, which the Hessian is not needed for."""
    return ((quantize_tensor(W * scale, SCHEME).dequantize() @ (x / scale).T) - W @ x.T).square().sum().item()


@pytest.mark.parametrize("seed", range(5))
def test_no_other_exponent_is_better_and_scaling_pays(seed):
    x = inputs(seed)
    magnitude = x.abs().mean(0)
    errors = [error(magnitude**exponent, x) for exponent in EXPONENTS]
    found = awq_scale(W, x, SCHEME)
    assert error(found, x) < 1.03 * min(errors)
    assert error(found, x) < 0.7 * error(torch.ones(I), x)
    torch.testing.assert_close(found.max() * found.min(), torch.tensor(1.0))


def test_equal_inputs_are_not_scaled():
    torch.testing.assert_close(awq_scale(W, torch.eye(I).repeat(2, 1), SCHEME), torch.ones(I))


@pytest.mark.parametrize("name", ["llama", "experts", "learned positions"])
@torch.no_grad()
def test_a_scaled_block_computes_the_same(name):
    model = make_model(**ARCHITECTURES[name])
    before = model(TOKENS)
    linears = [module for module in model.blocks[0].modules() if isinstance(module, torch.nn.Linear)]
    scaled = scale_block(model.blocks[0], observe_model(model, linears, TOKENS), Scheme(UINT4, "group", 8))
    torch.testing.assert_close(model(TOKENS), before, rtol=1e-3, atol=1e-4)
    seen = observe_model(model, linears, TOKENS)
    torch.testing.assert_close(scaled[linears[0]], seen[linears[0]], rtol=1e-3, atol=1e-4)
    assert not torch.allclose(model.blocks[0].attention_norm.weight, make_model().blocks[0].attention_norm.weight)


@torch.no_grad()
def test_an_expert_that_no_token_reaches_is_rounded_to_nearest():
    model, recipe = make_model(**ARCHITECTURES["experts"]), Recipe(Scheme(UINT4, "group", 8), "awq")
    quantized = quantize(model, recipe, TOKENS[:1, :1])  # one token: two of four experts
    ours = [expert.down.weight() for expert in quantized.blocks[0].mlp.experts]
    nearest = [
        quantize_tensor(expert.down.weight, recipe.weights).dequantize() for expert in model.blocks[0].mlp.experts
    ]
    assert [torch.equal(*pair) for pair in zip(ours, nearest, strict=True)].count(True) == 2


def test_bad_inputs_are_one_line():
    with pytest.raises(InputError, match=r"inputs of another layer: got \(5, 3\), expected \(n, 64\)"):
        awq_scale(W, torch.ones(5, 3), SCHEME)
    with pytest.raises(InputError, match="inputs of another layer"):
        awq_scale(W, torch.ones(0, I), SCHEME)
    with pytest.raises(InputError, match="calibration inputs are all zero"):
        awq_scale(W, torch.zeros(5, I), SCHEME)
