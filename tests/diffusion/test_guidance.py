"""Guidance: identities that hold exactly, evaluations that are spared, and requests it cannot serve."""

from __future__ import annotations

import math

import pytest
import torch

from mlsys_lab.diffusion.guidance import ClassifierFreeGuidance, ClassifierGuidance, guide, scale_from_weight
from mlsys_lab.diffusion.samplers import DDIM, State
from mlsys_lab.diffusion.sampling import Noise, Sampling, run_step
from mlsys_lab.diffusion.schedules import edm_grid
from mlsys_lab.errors import InputError
from tests.diffusion.gaussians import F64, TWO

X = torch.randn(6, 2, generator=torch.Generator().manual_seed(0), dtype=F64) * 2
SIGMA = torch.tensor([0.1, 0.5, 1.0, 2.0, 5.0, 1.0], dtype=F64)
LABEL = torch.tensor([0, 1, 0, 1, 0, 1])
NONE = torch.full((6,), TWO.null)


class Counting:
    """A mixture that keeps how many images it was asked for in each call."""

    def __init__(self):
        self.asked = []

    def __call__(self, x, sigma, label=None):
        self.asked.append(len(x))
        return TWO(x, sigma, label)


def test_scale_1_is_the_class_and_0_is_none():
    torch.testing.assert_close(ClassifierFreeGuidance(TWO, 1.0, TWO.null)(X, SIGMA, LABEL), TWO(X, SIGMA, LABEL))
    torch.testing.assert_close(ClassifierFreeGuidance(TWO, 0.0, TWO.null)(X, SIGMA, LABEL), TWO(X, SIGMA, NONE))
    torch.testing.assert_close(ClassifierFreeGuidance(TWO, 3.0, TWO.null)(X, SIGMA, NONE), TWO(X, SIGMA, NONE))


def test_both_papers_write_one_rule():
    c, u, w = torch.tensor([0.5]), torch.tensor([0.2]), 3
    torch.testing.assert_close(guide(c, u, torch.tensor(scale_from_weight(w))), (1 + w) * c - w * u)


def test_guidance_of_noise_is_guidance_of_images():
    guided = ClassifierFreeGuidance(TWO, 4.0, TWO.null)(X, SIGMA, LABEL)
    c, u = ((X - TWO(X, SIGMA, label)) / SIGMA[:, None] for label in (LABEL, NONE))
    torch.testing.assert_close((X - guided) / SIGMA[:, None], guide(c, u, torch.tensor(4.0)))


def test_the_exact_classifier_guides_as_the_network_guides_itself():
    """∇ log p(c|x) = ∇ log p(x|c) - ∇ log p(x) (Bayes): with exact scores both kinds of guidance are one."""

    def classify(x, sigma):
        return TWO.responsibilities(x, sigma).log()

    by_classifier = ClassifierGuidance(TWO, classify, 2.5, TWO.null)(X, SIGMA, LABEL)
    torch.testing.assert_close(by_classifier, ClassifierFreeGuidance(TWO, 2.5, TWO.null)(X, SIGMA, LABEL))
    torch.testing.assert_close(ClassifierGuidance(TWO, classify, 2.5)(X, SIGMA, LABEL), by_classifier)


def test_a_classifier_s_step_is_dhariwal_and_nichol_s():
    """Algorithm 2 of arXiv:2105.05233, in its scaled coordinates: ε̂ = ε - √(1 - ᾱ)·s·∇ log p, then a step of DDIM."""
    now, before, scale = 0.2, 0.7, 2.5
    sigma, sigma_next = (math.sqrt((1 - kept) / kept) for kept in (now, before))
    level, x_t = torch.full((6,), sigma, dtype=F64), (math.sqrt(now) * X).requires_grad_()

    def classify(x, sigma):
        return TWO.responsibilities(x, sigma).log()

    (gradient,) = torch.autograd.grad(classify(x_t / math.sqrt(now), level).gather(1, LABEL[:, None]).sum(), x_t)
    epsilon = (X - TWO(X, level, NONE)) / sigma - math.sqrt(1 - now) * scale * gradient
    x0 = (x_t.detach() - math.sqrt(1 - now) * epsilon) / math.sqrt(now)
    expected = math.sqrt(before) * x0 + math.sqrt(1 - before) * epsilon
    step = DDIM().advance(State.begin(X), sigma, sigma_next, lambda: X)
    got = run_step(step, ClassifierGuidance(TWO, classify, scale, TWO.null), LABEL).x
    torch.testing.assert_close(math.sqrt(before) * got, expected)


def test_each_image_has_its_own_scale_and_unguided_ones_cost_nothing():
    counting = Counting()
    scales = torch.tensor([1.0, 2.0, 1.0, 4.0, 0.0, 1.0], dtype=F64)
    got = ClassifierFreeGuidance(counting, scales, TWO.null)(X, SIGMA, LABEL)
    assert counting.asked == [6 + 3]
    for i, scale in enumerate(scales.tolist()):
        alone = ClassifierFreeGuidance(TWO, scale, TWO.null)(X[i : i + 1], SIGMA[i : i + 1], LABEL[i : i + 1])
        torch.testing.assert_close(got[i : i + 1], alone)


def test_outside_of_the_interval_there_is_no_guidance_and_no_cost():
    counting = Counting()
    got = ClassifierFreeGuidance(counting, 3.0, TWO.null, low=0.5, high=2.0)(X, SIGMA, LABEL)
    inside = torch.tensor([False, True, True, True, False, True])
    assert counting.asked == [6 + 4]
    torch.testing.assert_close(got[~inside], TWO(X, SIGMA, LABEL)[~inside])
    torch.testing.assert_close(got[inside], ClassifierFreeGuidance(TWO, 3.0, TWO.null)(X, SIGMA, LABEL)[inside])


def test_guidance_pushes_away_from_the_other_class():
    label = torch.zeros(2000, dtype=torch.long)

    def first_axis(scale):
        guided = ClassifierFreeGuidance(TWO, scale, TWO.null)
        return Sampling(guided, edm_grid(20, 0.01, 20), Noise((2000, 2), 0, F64), label).run()[:, 0]

    means = [float(first_axis(scale).mean()) for scale in (1.0, 2.0, 4.0)]
    assert means[0] == pytest.approx(2, abs=0.1) and means[0] < means[1] < means[2]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: ClassifierFreeGuidance(TWO, 2.0, None), "guidance needs a null class: got a network without one"),
        (lambda: ClassifierFreeGuidance(TWO, 2.0, TWO.null)(X, SIGMA), "guidance needs labels: got none"),
        (lambda: ClassifierGuidance(TWO, lambda x, s: x, 1.0)(X, SIGMA), "guidance needs labels: got none"),
        (lambda: ClassifierFreeGuidance(TWO, 2.0, 2, low=3, high=1), "not an interval of levels: got 3 to 1"),
        (lambda: ClassifierFreeGuidance(TWO, math.nan, 2), "scale of guidance is not a number: got nan"),
        (lambda: ClassifierGuidance(TWO, lambda x, s: x, math.inf), "scale of guidance is not a number: got inf"),
        (
            lambda: ClassifierFreeGuidance(TWO, torch.ones(2), 2)(X, SIGMA, LABEL),
            r"one scale, or one for each image: got \(2,\), expected \(6,\)",
        ),
        (
            lambda: ClassifierGuidance(TWO, TWO.responsibilities, 1.0)(X, SIGMA, LABEL + 1),
            "no such class: got 1 to 2, expected 0 to 1",
        ),
    ],
)
def test_bad_input_is_one_line(wrong, said):
    with pytest.raises(InputError, match=said):
        wrong()
