"""SmoothQuant: the function stays, activations and weights meet in the middle, outliers cost what they did before."""

import pytest
import torch

from mlsys_lab.efficiency.blocks import observe_model
from mlsys_lab.efficiency.quantization import plant_outliers, quantize, smooth, smooth_scale
from mlsys_lab.efficiency.quantization.folding import norm_links
from mlsys_lab.errors import InputError
from tests.efficiency.quantization.models import ARCHITECTURES, LAYER_NORMS, TOKENS, make_model

ALL = ARCHITECTURES | {"layer norms": LAYER_NORMS}


@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_the_function_stays(name):
    model = make_model(**ALL[name])
    torch.testing.assert_close(smooth(model, TOKENS)(TOKENS), model(TOKENS), rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_activations_and_weights_have_the_same_largest_magnitudes():
    model = smooth(plant_outliers(make_model(), [3], 5), TOKENS)
    links = [link for block in model.blocks for link in norm_links(block)]
    seen = observe_model(model, [link.consumers[0] for link in links], TOKENS)
    for link in links:
        weights = torch.cat([consumer.weight for consumer in link.consumers]).abs().amax(0)
        torch.testing.assert_close(seen[link.consumers[0]].abs().amax(0), weights, rtol=1e-4, atol=0)


def test_alpha_divides_the_range_between_activations_and_weights():
    activations, weights = torch.tensor([100.0, 4.0, 0.0, 1.0]), torch.tensor([0.25, 1.0, 2.0, 0.0])
    assert smooth_scale(activations, weights).tolist() == [20, 2, 1, 1]
    assert smooth_scale(activations, weights, 1.0).tolist() == [100, 4, 1, 1]
    assert smooth_scale(activations, weights, 0.0).tolist() == [4, 1, 1, 1]


@pytest.mark.parametrize("transform", ["smooth", "rotate"])
@torch.no_grad()
def test_planted_outliers_cost_no_more_than_before(transform):
    model = make_model()
    planted = plant_outliers(model, [3, 17], 8)

    def error(one, recipe):
        return (quantize(one, recipe, TOKENS)(TOKENS) - model(TOKENS)).square().mean().sqrt()

    assert error(planted, "w8a8") > 10 * error(model, "w8a8")
    assert error(planted, f"w8a8-{transform}") < 2 * error(model, "w8a8")


def test_bad_inputs_are_one_line():
    ones = torch.ones(3)
    with pytest.raises(InputError, match=r"alpha out of range: got 1\.5, expected 0 to 1"):
        smooth_scale(ones, ones, 1.5)
    with pytest.raises(InputError, match=r"largest magnitudes of different inputs: got \(3,\) and \(2,\)"):
        smooth_scale(ones, ones[:2])
    with pytest.raises(InputError, match="largest magnitudes that are not finite"):
        smooth_scale(ones * torch.nan, ones)
    with pytest.raises(InputError, match="empty calibration"):
        smooth(make_model(), TOKENS[:0])
