"""Linear layers with packed weights: the codes that went in, the products of the dequantized numbers, bytes counted."""

import pytest
import torch

from mlsys_lab.efficiency.formats import E2M1, E4M3, INT2, INT3, INT4, INT8, NF4, UINT3, UINT4, UINT8
from mlsys_lab.efficiency.quantization import QuantizedLinear, Scheme, quantize_tensor
from mlsys_lab.errors import InputError

SCHEMES = {
    "int8": Scheme(INT8),
    "uint8": Scheme(UINT8),
    "int4": Scheme(INT4, "group", 32),
    "uint4": Scheme(UINT4, "group", 32),
    "int3": Scheme(INT3, "tensor"),
    "uint3": Scheme(UINT3, "group", 16),
    "int2": Scheme(INT2, "group", 8),
    "fp8": Scheme(E4M3),
    "mxfp4": Scheme(E2M1, "group", 32, torch.float8_e8m0fnu),
    "nvfp4": Scheme(E2M1, "group", 16, torch.float8_e4m3fn),
    "nf4": Scheme(NF4, "group", 64),
}
BY_TOKEN, BY_TENSOR = Scheme(INT8, scale_dtype=torch.float32), Scheme(UINT8, "tensor")


def weights(seed=0, outputs=5, inputs=128):
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", SCHEMES)
def test_packed_weights_are_those_that_went_in(name):
    quantized = quantize_tensor(weights(), SCHEMES[name])
    layer = QuantizedLinear(quantized)
    assert layer.quantized_weight().codes.dtype == quantized.codes.dtype
    assert torch.equal(layer.quantized_weight().codes, quantized.codes)
    assert torch.equal(layer.weight(), quantized.dequantize())


@pytest.mark.parametrize("name", SCHEMES)
def test_a_layer_has_the_bits_that_its_scheme_counts(name):
    scheme, shape = SCHEMES[name], (64, 512)
    layer = QuantizedLinear(quantize_tensor(weights(0, *shape), scheme))
    held_bits = 8 * sum(buffer.nbytes for buffer in layer.buffers())
    assert held_bits / (64 * 512) == pytest.approx(scheme.bits_per_weight(shape), abs=1e-12)


def test_outputs_are_those_of_the_dequantized_weights_in_the_dtype_of_the_inputs():
    w, bias, x = weights(1), weights(2)[:, 0], weights(3, outputs=7)
    layer = QuantizedLinear(quantize_tensor(w, SCHEMES["uint4"]), bias)
    torch.testing.assert_close(layer(x[None]), (x @ layer.weight().T + bias)[None])
    assert layer(x.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["int8", "int4", "uint4"])
def test_outputs_are_within_the_bound(name):
    w, x = weights(1), weights(3, outputs=7)
    quantized = quantize_tensor(w, SCHEMES[name])
    off = (QuantizedLinear(quantized)(x) - x @ w.T).abs()
    bound = x.abs() @ quantized.error_bound().T
    assert (off <= bound * 1.01 + 1e-4).all() and off.max() > bound.max() / 50


def test_dynamic_activations_have_a_scale_for_each_token():
    w, x = quantize_tensor(weights(), SCHEMES["int8"]), weights(3, outputs=6) * torch.logspace(-3, 3, 6)[:, None]
    layer = QuantizedLinear(w, activations=BY_TOKEN)
    largest = x.abs().amax(-1, keepdim=True)
    rounded = (x / largest * 127).round() * largest / 127
    torch.testing.assert_close(layer(x), rounded @ w.dequantize().T, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(layer(x[:1]), layer(x)[:1])  # whatever else is in the batch
    assert layer(x.view(2, 3, -1)).shape == (2, 3, 5)


def test_static_activations_keep_the_scale_that_they_were_given():
    w, x = quantize_tensor(weights(), SCHEMES["int8"]), weights(3, outputs=6)
    fixed = torch.tensor([[0.02]]), torch.tensor([[100]], dtype=torch.uint8)
    layer = QuantizedLinear(w, activations=BY_TENSOR, input_scale=fixed)
    rounded = x.div(0.02).round().clamp(-100, 155) * 0.02
    torch.testing.assert_close(layer(x), rounded @ w.dequantize().T, rtol=1e-4, atol=1e-5)
    assert (x.abs() > 3.2).any()  # and saturate beyond it


def test_a_layer_is_saved_and_loaded_like_any_other():
    first, second = (QuantizedLinear(quantize_tensor(weights(seed), SCHEMES["uint4"])) for seed in (0, 1))
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.weight(), second.weight())


def test_bad_layers_are_one_line():
    quantized = quantize_tensor(weights(), SCHEMES["int8"])
    with pytest.raises(InputError, match="fixed scale of activations: expected one exactly if"):
        QuantizedLinear(quantized, activations=BY_TENSOR)
    with pytest.raises(InputError, match="fixed scale of activations"):
        QuantizedLinear(quantized, activations=BY_TOKEN, input_scale=(torch.ones(1, 1), None))
    with pytest.raises(InputError, match="codes do not fill whole groups"):
        QuantizedLinear(quantize_tensor(weights(inputs=7), Scheme(INT4)))
