"""Quantized layers that multiply by compiled code on a CPU: which do, when, and what they give."""

import pytest
import torch

from mlsys_lab.configs import TransformerConfig
from mlsys_lab.efficiency.formats import INT3, INT4, INT8, NF4, UINT4, UINT8
from mlsys_lab.efficiency.quantization import QuantizedLinear, Scheme, quantize, quantize_tensor, use_compiled
from mlsys_lab.efficiency.quantization.layers import MAX_TOKENS
from mlsys_lab.inference.engine import Engine, Request, SamplingParams
from mlsys_lab.models import Transformer

SUPPORTED = {
    "int8": Scheme(INT8),
    "int4 by channel": Scheme(INT4),
    "int4": Scheme(INT4, "group", 32, torch.bfloat16),
    "uint4": Scheme(UINT4, "group", 64),
}
CONFIG = TransformerConfig("small", n_layers=2, d_model=64, n_heads=4, d_ff=128, vocab_size=31, context=64, tied=True)


def layer_of(scheme, *, bias=False):
    weight = torch.randn(9, 128, generator=torch.Generator().manual_seed(0))
    return QuantizedLinear(quantize_tensor(weight, scheme), torch.linspace(-9, 9, 9) if bias else None)


@pytest.mark.parametrize("name", SUPPORTED)
@pytest.mark.parametrize("bias", [False, True])
def test_outputs_are_those_of_the_dequantized_weights(name, bias):
    layer = layer_of(SUPPORTED[name], bias=bias)
    use_compiled(layer)
    assert layer.use_compiled
    for shape in (128,), (1, 1, 128), (2, 3, 128), (0, 128):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        exact = x @ layer.weight().T + (0 if layer.bias is None else layer.bias)
        torch.testing.assert_close(layer(x), exact, rtol=1e-4, atol=2e-3)
        assert x.numel() == 0 or not torch.equal(layer(x), exact), "compiled code rounds activations"


@pytest.mark.parametrize(
    "scheme", [Scheme(UINT8), Scheme(INT8, "tensor"), Scheme(INT8, "group", 32), Scheme(INT3), Scheme(NF4, "group", 64)]
)
def test_layers_of_other_schemes_dequantize_as_before(scheme):
    layer = layer_of(scheme)
    use_compiled(layer)
    assert not layer.use_compiled
    x = torch.randn(2, 128)
    torch.testing.assert_close(layer(x), x @ layer.weight().T)


def test_many_tokens_other_dtypes_and_gradients_take_the_dequantized_weights():
    layer = layer_of(SUPPORTED["int4"])
    use_compiled(layer)
    many = torch.randn(MAX_TOKENS + 1, 128)
    assert torch.equal(layer(many), many @ layer.weight().T)
    assert layer(many[:1].double()).dtype == torch.float64
    x = many[:1].clone().requires_grad_()
    layer(x).sum().backward()
    torch.testing.assert_close(x.grad[0], layer.weight().sum(0))


@pytest.mark.parametrize("recipe", ["int8", "int4"])
def test_a_compiled_engine_generates_what_the_dequantized_weights_do(recipe):
    torch.manual_seed(0)
    model = Transformer(CONFIG)
    requests = [Request([1, 2, 3], 24, SamplingParams(temperature=0)), Request([7], 24, SamplingParams(temperature=0))]
    found = []
    for compiled in (False, True):
        quantized = quantize(model, recipe)
        engine = Engine(quantized, num_blocks=16, block_size=8, compiled=compiled)
        for request in requests:
            engine.add_request(request)
        found.append([[one.token_ids for one in completions] for completions in engine.run().values()])
        layers = [layer for layer in quantized.modules() if isinstance(layer, QuantizedLinear)]
        assert all(layer.use_compiled is compiled for layer in layers)
    assert found[0] == found[1]
