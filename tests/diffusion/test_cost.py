"""Costs: evaluations as counted, and both kinds of model by the work that they do."""

from __future__ import annotations

import pytest
import torch

from mlsys_lab.diffusion.cost import autoregressive_cost, diffusion_cost, evaluations, training_cost
from mlsys_lab.diffusion.guidance import ClassifierFreeGuidance
from mlsys_lab.diffusion.samplers import SAMPLERS
from mlsys_lab.diffusion.sampling import Noise, Sampling
from mlsys_lab.diffusion.schedules import edm_grid
from mlsys_lab.errors import InputError
from mlsys_lab.flops import dit
from tests.diffusion.gaussians import F64, TWO


@pytest.mark.parametrize("scale", [1.0, 3.0])
@pytest.mark.parametrize("name", SAMPLERS)
def test_evaluations_are_the_images_that_the_network_sees(name, scale):
    seen = []

    def counted(x, sigma, label):
        seen.append(len(x))
        return TWO(x, sigma, label)

    guided, label = ClassifierFreeGuidance(counted, scale, TWO.null), torch.tensor([0])
    Sampling(guided, edm_grid(6), Noise((1, 2), 0, F64), label, SAMPLERS[name]).run()
    assert sum(seen) == evaluations(SAMPLERS[name], 6, guided=scale != 1)


def test_the_rule_of_2n_comes_near_the_products_of_a_dit():
    """What the rule misses of DiT-XL/2, attention for the most part, is below a tenth."""
    config = dit.preset("XL/2")
    multiplied = dit.parameters(config) - config.n_layers * 6 * config.d_model**2  # modulation is once an image
    rule = diffusion_cost(multiplied, config.tokens, passes=1).flops
    assert rule == pytest.approx(dit.forward(config).total, rel=0.1)


def test_diffusion_reads_weights_once_a_pass_and_text_once_a_token():
    ours, theirs = diffusion_cost(1e6, 100, passes=20, batch=3), autoregressive_cost(1e6, 100, batch=3)
    assert (ours.weight_bytes, theirs.weight_bytes) == (20 * 2e6, 100 * 2e6)
    assert (ours.flops, theirs.flops) == (20 * 2e6 * 300, 2e6 * 300)
    assert ours.intensity == 100 * theirs.intensity == 300
    guided = diffusion_cost(1e6, 100, passes=20, batch=3, guided=True)
    assert guided.flops == 2 * ours.flops and guided.weight_bytes == ours.weight_bytes
    assert training_cost(1e6, 100, 7) == 3 * autoregressive_cost(1e6, 100, batch=7).flops


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: evaluations(SAMPLERS["ddim"], 0), "steps must be at least 1: got 0"),
        (lambda: diffusion_cost(1e6, 100, passes=0), "passes must be at least 1"),
        (lambda: autoregressive_cost(-1.0, 100), "n_parameters must be positive"),
        (lambda: training_cost(1e6, 0, 1), "tokens must be at least 1"),
    ],
)
def test_bad_input_is_one_line(wrong, said):
    with pytest.raises(InputError, match=said):
        wrong()
