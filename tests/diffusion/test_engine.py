"""The engine: each image as if its request were alone, one call for all, and requests that it refuses."""

from __future__ import annotations

import pytest
import torch

from mlsys_lab.diffusion.cost import evaluations
from mlsys_lab.diffusion.engine import Engine, Request
from mlsys_lab.diffusion.guidance import ClassifierFreeGuidance
from mlsys_lab.diffusion.networks import DiT
from mlsys_lab.diffusion.preconditioning import Preconditioned
from mlsys_lab.diffusion.samplers import DDIM, SAMPLERS, Heun
from mlsys_lab.diffusion.sampling import Noise, Sampling
from mlsys_lab.diffusion.schedules import check_grid, edm_grid, flow_grid
from mlsys_lab.diffusion.training import p_losses
from mlsys_lab.errors import InputError
from mlsys_lab.flops.dit import DiTConfig
from tests.pretended_gpu import DEVICE, pretended_gpu

F64 = torch.float64
SHAPE, NULL = (1, 4, 4), 3
CONFIG = DiTConfig("tiny", 2, d_model=16, n_heads=2, size=4, patch=2, channels=1, classes=NULL)


@pytest.fixture(scope="module")
def denoiser():
    torch.manual_seed(0)
    network = DiT(CONFIG).double().requires_grad_(False)
    for weight in network.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    return Preconditioned(network)


def requests():
    """Every sampler, at different numbers of steps, guided, unguided, and on an interval."""
    every = [
        Request(i % NULL, edm_grid(3 + i, 0.02, 20), seed=i, sampler=sampler, scale=1.0 + i % 3)
        for i, sampler in enumerate(SAMPLERS.values())
    ]
    within = Request(1, flow_grid(6), seed=90, sampler=Heun(), scale=3.0, low=0.2, high=5.0)
    return [*every, within, Request(2, check_grid(torch.tensor([5.0, 1.0])), seed=91)]


def alone(denoiser, request):
    """The image that a request gives by itself."""
    guided = ClassifierFreeGuidance(denoiser, request.scale, NULL, request.low, request.high)
    label = torch.tensor([request.label])
    return Sampling(guided, request.grid, Noise((1, *SHAPE), request.seed, F64), label, request.sampler).run()[0]


def engine(denoiser, **more):
    return Engine(denoiser, SHAPE, classes=NULL, null=NULL, dtype=F64, **more)


@pytest.mark.parametrize("slots", [1, 3, 20])
def test_each_image_is_that_of_its_request_alone(denoiser, slots):
    """In float64 a row of a batch is the row alone but for the order of sums: 1e-16 a step, which grows."""
    drawing = engine(denoiser, slots=slots)
    asked = {drawing.submit(request): request for request in requests()}
    images = dict(drawing.run())
    assert sorted(images) == sorted(asked)
    for number, request in asked.items():
        torch.testing.assert_close(images[number], alone(denoiser, request), rtol=1e-9, atol=1e-9)


def test_requests_join_while_others_are_under_way(denoiser):
    drawing, (first, *others) = engine(denoiser, slots=4), requests()
    drawing.submit(first)
    images = drawing.step()
    for request in others:
        drawing.submit(request)
    images |= dict(drawing.run())
    torch.testing.assert_close(images[0], alone(denoiser, first), rtol=1e-9, atol=1e-9)
    assert len(images) == len(others) + 1 and drawing.step() == {}


def test_calls_are_those_of_the_longest_request_and_images_those_of_all(denoiser):
    drawing = engine(denoiser, slots=8)
    asked = [
        Request(0, edm_grid(steps), sampler=DDIM(), scale=scale) for steps, scale in ((4, 1.0), (9, 2.0), (6, 3.0))
    ]
    for request in asked:
        drawing.submit(request)
    assert [number for number, _ in drawing.run()] == [0, 2, 1]
    assert drawing.calls == 9
    assert drawing.images == sum(evaluations(DDIM(), len(r.grid) - 1, guided=r.scale != 1) for r in asked)


def test_a_request_that_is_refused_disturbs_no_other(denoiser):
    drawing = Engine(denoiser, SHAPE, classes=NULL, dtype=F64)
    first = Request(0, edm_grid(3))
    drawing.submit(first)
    with pytest.raises(InputError, match="guidance needs a null class: got a network without one"):
        drawing.submit(Request(0, edm_grid(3), scale=2.0))
    with pytest.raises(InputError, match="no such class: got 3, expected 0 to 2"):
        drawing.submit(Request(3, edm_grid(3)))
    ((number, image),) = drawing.run()
    assert number == 0
    torch.testing.assert_close(image, alone(denoiser, first), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda denoiser: engine(denoiser, slots=0), "an engine needs slots: got 0"),
        (lambda denoiser: Request(0, torch.tensor([1.0, 2.0])), "not levels to walk down"),
        (lambda denoiser: Request(0, edm_grid(2), scale=float("nan")), "guidance out of range: got scale nan from 0.0"),
        (lambda denoiser: Request(0, edm_grid(2), low=3, high=1), "guidance out of range: got scale 1.0 from 3 to 1"),
    ],
)
def test_bad_input_is_one_line(denoiser, wrong, said):
    with pytest.raises(InputError, match=said):
        wrong(denoiser)


def test_on_a_gpu_no_step_waits_and_images_stay_there():
    with pretended_gpu() as reads:
        there = Preconditioned(DiT(CONFIG).to(DEVICE))
        drawing = Engine(there, SHAPE, classes=NULL, null=NULL, slots=4, device=DEVICE)
        asked = {drawing.submit(request) for request in requests()}
        images = dict(drawing.run())
    assert images.keys() == asked and not reads
    assert {(image.device.type, image.shape) for image in images.values()} == {(DEVICE, SHAPE)}


def test_on_a_gpu_a_step_of_training_and_a_run_wait_for_nothing():
    with pretended_gpu() as reads:
        there = Preconditioned(DiT(CONFIG).to(DEVICE))
        x0, sigma, label = (
            torch.zeros(5, *SHAPE, device=DEVICE),
            torch.ones(5, device=DEVICE),
            torch.ones(5, dtype=torch.int64, device=DEVICE),
        )
        p_losses(there, x0, sigma, torch.zeros_like(x0), label).mean().backward()
        assert {weight.grad.device.type for weight in there.parameters()} == {DEVICE}
        for sampler in SAMPLERS.values():
            noise = Noise((5, *SHAPE), device=DEVICE)
            assert Sampling(there, edm_grid(3), noise, label, sampler).run().device.type == DEVICE
    assert not reads
