"""From trained layers to int8: scales, multipliers, nearness to fp32, and what is refused."""

import numpy as np
import pytest
import torch
from torch import nn

from mlsys_lab.efficiency.embedded import Convolution, quantize_network, simulate
from mlsys_lab.errors import InputError
from tests.efficiency.embedded.models import NAMES, make_example


@pytest.mark.every_case
@pytest.mark.parametrize("name", NAMES)
def test_logits_are_near_those_in_fp32(name):
    model, network, calibration, _ = make_example(name)
    expected = model(calibration).detach().flatten(1).numpy()
    codes = simulate(network, network.encode(calibration.numpy())).astype(np.float64)
    errors = network.output_scale * (codes - network.output_zero_point) - expected
    assert np.sqrt(np.mean(errors**2)) < 0.02 * (expected.max() - expected.min())


def test_weights_and_biases_are_the_nearest_integers():
    module = nn.Conv2d(2, 3, 3)
    with torch.no_grad():
        module.weight[1] *= 1000  # channels have scales of their own
    network = quantize_network(nn.Sequential(module), torch.rand(9, 2, 5, 5))
    (layer,) = network.layers
    assert isinstance(layer, Convolution)
    weights = module.weight.detach().double().numpy()
    scale = np.abs(weights).max(axis=(1, 2, 3)) / 127
    np.testing.assert_array_equal(np.abs(layer.weights).max(axis=(1, 2, 3)), [127, 127, 127])
    assert (np.abs(weights - layer.weights * scale[:, None, None, None]) <= scale[:, None, None, None] * 0.5001).all()
    bias = module.bias.detach().double().numpy()
    np.testing.assert_allclose(layer.bias * scale * network.input_scale, bias, atol=scale.max() * network.input_scale)
    factor = network.input_scale * scale / network.output_scale
    np.testing.assert_allclose(layer.multiplier / 2.0**layer.shift, factor, rtol=2**-31)
    assert (layer.multiplier >= 2**30).all()


def test_zero_is_a_code_of_its_own():
    network = quantize_network(nn.Sequential(nn.Linear(2, 1)), torch.tensor([[0.5, 2.0], [3.0, 1.0]]))
    assert (network.input_zero_point, network.input_scale) == (-128, 3 / 255)
    np.testing.assert_array_equal(network.encode([[0.0, 3.0], [-9.0, 9.0]]).reshape(2, 2), [[-128, 127], [-128, 127]])


def test_a_channel_of_zeros_gives_its_bias():
    module = nn.Linear(3, 2)
    with torch.no_grad():
        module.weight[0] = 0
        module.bias[0] = 0.25
    network = quantize_network(nn.Sequential(module), torch.rand(50, 3) * 2)
    codes = simulate(network, network.encode(torch.rand(5, 3).numpy()))[:, 0].astype(float)
    assert np.abs(network.output_scale * (codes - network.output_zero_point) - 0.25).max() <= network.output_scale / 2


IMAGES = torch.rand(3, 1, 4, 4)


def with_weight(module: nn.Conv2d, value: float) -> nn.Conv2d:
    nn.init.constant_(module.weight, value)
    nn.init.constant_(module.bias, 0.0)
    return module


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("layers", "images", "message"),
    [
        ([nn.Conv2d(1, 2, 3)], IMAGES[:0], "no calibration images"),
        ([nn.Conv2d(1, 2, 3)], IMAGES * torch.nan, "the input has NaN or infinite activations"),
        ([nn.Conv2d(1, 2, 3)], IMAGES * 0, "the input is zero for all calibration images; help: give"),
        ([with_weight(nn.Conv2d(1, 2, 3), torch.nan)], IMAGES, r"layer 0 \(Conv2d\) has NaN or infinite weights"),
        ([with_weight(nn.Conv2d(1, 2, 3), 0.0)], IMAGES, r"layer 0 \(Conv2d\) is zero for all"),
        ([nn.Conv2d(2, 2, 3)], IMAGES, r"layer 0 \(Conv2d\) does not fit its input \(3, 1, 4, 4\): got "),
        ([nn.Flatten(), nn.Linear(15, 2)], IMAGES, r"layer 1 \(Linear\) does not fit its input \(3, 16\): got "),
        ([nn.Linear(4, 2)], IMAGES, r"layer 0 \(Linear\) needs vectors: got .*; help: put Flatten\(\) before it"),
        ([nn.Conv2d(1, 2, 3), nn.Tanh()], IMAGES, r"layer 1 \(Tanh\) has no int8 code here: expected Conv2d, Linear"),
        ([nn.ReLU()], IMAGES, r"layer 0 \(ReLU\) has no int8 code here"),
        ([nn.Flatten()], IMAGES, "no layers to quantize"),
        ([nn.Conv2d(1, 2, (3, 2))], IMAGES, r"a kernel, stride or padding that is not square: got \(3, 2\)"),
        ([nn.Conv2d(1, 2, 3, padding="same")], IMAGES, "a kernel, stride or padding that is not square: got same"),
        ([nn.Conv2d(1, 2, 3, dilation=2, padding=2)], IMAGES, "expected one group, no dilation, padding with zeros"),
        ([nn.MaxPool2d(2, padding=1)], IMAGES, "expected no padding, no dilation, no ceil_mode"),
        ([nn.Conv2d(1, 2, 3)], IMAGES[0], r"activations of another shape: got \(1, 4, 4\), expected \(B, C, H, W\)"),
        ([with_weight(nn.Conv2d(1, 1, 300), 1.0)], torch.ones(1, 1, 300, 300), "sums that int32 cannot hold"),
    ],
)
def test_what_cannot_be_quantized_is_refused_in_one_line(layers, images, message):
    with pytest.raises(InputError, match=message) as caught:
        quantize_network(nn.Sequential(*layers), images)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("images", "message"),
    [(np.zeros((3, 5)), "got .3, 5., expected .images, 1, 4, 4"), (np.full((1, 16), np.nan), "NaN")],
)
def test_images_that_do_not_fit_are_refused(images, message):
    with pytest.raises(InputError, match=message):
        quantize_network(nn.Sequential(nn.Conv2d(1, 2, 3)), IMAGES).encode(images)
