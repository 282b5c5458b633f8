"""QLoRA: bits as the paper counts them, frozen weights near the original, and adapters that alone train."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn

from mlsys_lab.configs import TransformerConfig
from mlsys_lab.efficiency.formats import NF4
from mlsys_lab.efficiency.quantization import quantize_tensor
from mlsys_lab.efficiency.quantization.qlora import (
    SCHEME,
    QLoRALinear,
    add_qlora,
    bits_per_parameter,
    quantize_scales,
    training_bytes,
)
from mlsys_lab.errors import InputError
from mlsys_lab.flops.adapters import EVERY, adapter_parameters
from mlsys_lab.flops.parameters import parameters
from mlsys_lab.models import training
from tests.efficiency.quantization.test_qat import text, train

CONFIG = TransformerConfig("tiny", n_layers=1, d_model=64, n_heads=2, d_ff=128, vocab_size=64, context=32, norm="rms")


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def make(outputs: int = 32, inputs: int = 256, *, bias: bool = False) -> tuple[nn.Linear, QLoRALinear]:
    torch.manual_seed(0)
    linear = nn.Linear(inputs, outputs, bias=bias)
    return linear, QLoRALinear(linear, 4, lora_alpha=8, generator=torch.Generator().manual_seed(1))


def test_scales_are_quantized_in_blocks_around_their_mean():
    scale = normal(600).abs() + 3
    quantized, exact = quantize_scales(scale), scale.double()
    mean = scale.mean()
    assert [part.numel() for part in quantized] == [600, 3, 1]
    for start in range(0, 600, 256):
        block = (scale[start : start + 256] - mean).numpy()
        step = np.float32(np.abs(block).max() / np.float32(448))
        codes = (block / step).astype(ml_dtypes.float8_e4m3fn)
        expected = mean + torch.from_numpy(codes.astype(np.float32)) * float(step)
        torch.testing.assert_close(quantized.dequantize()[start : start + 256], expected)
    assert ((quantized.dequantize() - exact).abs() <= 2**-4 * (exact - mean).abs() + 1e-6).all()
    assert torch.equal(quantize_scales(torch.full((5,), 2.0)).dequantize(), torch.full((5,), 2.0))


def test_frozen_weights_are_nf4_in_blocks_of_64():
    linear, layer = make()
    blocks = linear.weight.detach().view(-1, 64)
    absmax = blocks.abs().amax(-1, keepdim=True)
    nearest = ((blocks / absmax)[..., None] - torch.tensor(NF4.values)).abs().argmin(-1)
    expected = (torch.tensor(NF4.values)[nearest] * absmax).view_as(linear.weight)
    torch.testing.assert_close(quantize_tensor(linear.weight, SCHEME).dequantize(), expected)
    drift = (layer.weight() - expected).abs().amax() / expected.abs().amax()
    assert 0 < drift < 0.01  # the scales' own 8 bits
    assert (layer.weight() - linear.weight).norm() < 0.12 * linear.weight.norm()


def test_outputs_are_those_of_the_quantized_weights_and_the_adapter():
    linear, layer = make(bias=True)
    x = normal(2, 3, 256)
    torch.testing.assert_close(layer(x), x @ layer.weight().mT + linear.bias)
    with torch.no_grad():
        layer.b.normal_(generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(layer(x), x @ (layer.weight() + 2 * layer.b @ layer.a).mT + linear.bias)
    assert layer(x.bfloat16()).dtype == torch.bfloat16


def test_gradients_are_those_of_a_dense_layer_and_no_dense_weight_is_kept():
    _, layer = make()
    with torch.no_grad():
        layer.b.normal_(generator=torch.Generator().manual_seed(0))
    a, b, weight = layer.a.detach().clone().requires_grad_(), layer.b.detach().clone().requires_grad_(), layer.weight()
    x, same, g, kept = normal(5, 256).requires_grad_(), normal(5, 256).requires_grad_(), normal(5, 32, seed=2), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        y = layer(x)
    assert max(kept) == 5 * 256  # the weights have 32 * 256
    y.backward(g)
    (same @ (weight + 2 * b @ a).mT).backward(g)
    for found, expected in ((x.grad, same.grad), (layer.a.grad, a.grad), (layer.b.grad, b.grad)):
        torch.testing.assert_close(found, expected)


def test_adapters_alone_train_and_adapt_a_model_to_another_text():
    model, held_out = training.new_model(CONFIG, 0), text(32, seed=2, grammar=1)
    train(model, 30, 1e-2)
    tuned = add_qlora(model, 4, lora_alpha=8, seed=0)
    before, loss = {name: tensor.clone() for name, tensor in tuned.state_dict().items()}, training.loss(tuned, held_out)
    assert {name.rpartition(".")[2] for name, p in tuned.named_parameters() if p.requires_grad} == {"a", "b"}
    train(tuned, 12, 2e-2, grammar=1)
    changed = {name.rpartition(".")[2] for name, tensor in tuned.state_dict().items() if not tensor.equal(before[name])}
    assert changed == {"a", "b"}
    assert all((parameter.grad is not None) == parameter.requires_grad for parameter in tuned.parameters())
    assert training.loss(tuned, held_out) < loss - 0.1
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_bits_are_those_of_the_paper():
    assert bits_per_parameter(double=False) - 4 == 0.5
    assert bits_per_parameter() - 4 == pytest.approx(0.127, abs=5e-4)
    assert bits_per_parameter(double=False) - bits_per_parameter() == pytest.approx(0.373, abs=5e-4)


def test_bytes_of_a_layer_are_as_counted():
    _, layer = make(512, 256)
    frozen = sum(buffer.nbytes for buffer in layer.buffers())
    assert frozen == 512 * 256 * bits_per_parameter() / 8 + 4  # and the mean
    adapter = sum(parameter.nbytes for parameter in layer.parameters())
    assert adapter == 4 * 4 * (512 + 256)


def test_a_65b_model_is_tuned_in_48_gb():
    config = TransformerConfig(
        "llama-65b", n_layers=80, d_model=8192, n_heads=64, d_ff=22016, vocab_size=32000, context=2048
    )
    assert parameters(config).total == pytest.approx(65e9, rel=0.01)
    adapter = adapter_parameters(config, 64, EVERY)  # rank of the paper's Guanaco models
    assert training_bytes(parameters(config).total, adapter) < 48e9


def test_blocks_that_do_not_divide_and_ranks_below_one_are_refused():
    generator = torch.Generator()
    with pytest.raises(InputError, match="groups do not divide the inputs: got groups of 64, 96 inputs"):
        QLoRALinear(nn.Linear(96, 4), 4, lora_alpha=8, generator=generator)
    with pytest.raises(InputError, match="lora_rank must be at least 1"):
        QLoRALinear(nn.Linear(64, 4), 0, lora_alpha=8, generator=generator)
    with pytest.raises(InputError, match="lora_alpha must be positive"):
        QLoRALinear(nn.Linear(64, 4), 1, lora_alpha=0, generator=generator)
