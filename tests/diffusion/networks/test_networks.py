"""Both networks: what they begin as, that labels and levels matter, and input that does not fit."""

from __future__ import annotations

import pytest
import torch

from mlsys_lab.diffusion.networks import DiT, UNet
from mlsys_lab.diffusion.networks.conditioning import sinusoids
from mlsys_lab.diffusion.networks.dit import positions
from mlsys_lab.errors import InputError
from mlsys_lab.flops.dit import DiTConfig
from mlsys_lab.flops.unet import UNetConfig

DIT = DiTConfig("tiny", 2, d_model=16, n_heads=2, size=8, patch=2, channels=1, classes=10)
UNET = UNetConfig(
    "tiny", 8, channels=1, width=8, multipliers=(1, 2), blocks=1, attention_sizes=(4,), head_dim=8, classes=10
)
NETWORKS = pytest.mark.parametrize(("network", "config"), [(DiT, DIT), (UNet, UNET)], ids=["dit", "unet"])


def made(network, config, *, random=False):
    """A network with the weights it begins with, or with random ones everywhere, so that all of it matters."""
    torch.manual_seed(0)
    model = network(config).double()
    if random:
        for weight in model.parameters():
            torch.nn.init.normal_(weight, std=0.3)
    return model


def given(count=3):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 1, 8, 8, generator=generator, dtype=torch.float64)
    return x, torch.tensor([0.3, -1.0, 0.9], dtype=torch.float64)[:count], torch.tensor([4, 0, 10])[:count]


@NETWORKS
def test_a_new_network_answers_nothing(network, config):
    assert not made(network, config)(*given()).any()


@NETWORKS
def test_every_image_is_answered_by_itself(network, config):
    model, (x, noise, label) = made(network, config, random=True), given()
    whole = model(x, noise, label)
    assert whole.shape == x.shape
    for i in range(3):
        torch.testing.assert_close(model(x[i : i + 1], noise[i : i + 1], label[i : i + 1])[0], whole[i])


@NETWORKS
def test_level_class_and_every_pixel_matter(network, config):
    model, (x, noise, label) = made(network, config, random=True), given()
    whole = model(x, noise, label)
    assert not torch.allclose(model(x, noise + 0.05, label), whole)
    assert not torch.allclose(model(x, noise, (label + 1) % 11), whole)
    flipped = x.clone()
    flipped[:, :, 0, 0] += 1
    assert bool(((model(flipped, noise, label) - whole).abs() > 1e-9).all())


@NETWORKS
def test_no_label_is_the_null_class(network, config):
    model, (x, noise, _) = made(network, config, random=True), given()
    torch.testing.assert_close(model(x, noise), model(x, noise, torch.full((3,), 10)))


def test_a_dit_block_begins_as_an_identity():
    model, (x, noise, label) = made(DiT, DIT), given()
    tokens, condition = model.embed(x), model.embed_condition(x, noise, label)
    torch.testing.assert_close(model.blocks[0](tokens, condition), tokens)


def test_patches_are_cut_and_joined_where_they_were():
    """With the patch's pixels as the model's width, embedding and end undo each other."""
    config = DiTConfig("", 1, d_model=4, n_heads=1, size=8, patch=2, channels=1, classes=0)
    model, x = made(DiT, config), given()[0]
    with torch.no_grad():
        model.patches.weight.copy_(torch.eye(4))
        model.positions.zero_()
    cut = model.embed(x)
    assert torch.equal(cut[0, 1], x[0, 0, :2, 2:4].flatten())
    assert torch.equal(torch.nn.functional.fold(cut.transpose(1, 2), 8, 2, stride=2), x)


def test_no_two_tokens_have_one_position():
    table = positions(DIT)
    assert table.shape == (16, 16) and float(torch.cdist(table, table).fill_diagonal_(9).min()) > 0.5


def test_levels_near_each_other_are_told_apart():
    waves = sinusoids(torch.linspace(-1.6, 1.1, 200), 32)
    assert float((waves[1:] - waves[:-1]).norm(dim=1).min()) > 0.3


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            lambda: DiTConfig("", 1, 16, 2, size=9, patch=2, channels=1, classes=0),
            "the image does not fit the patch: got 9",
        ),
        (lambda: DiTConfig("", 1, 18, 4, size=8, patch=2, channels=1, classes=0), "d_model does not divide: got 18"),
        (lambda: DiTConfig("", 0, 16, 2, size=8, patch=2, channels=1, classes=0), "n_layers must be at least 1"),
        (lambda: UNetConfig("", 8, 1, 8, (2, 2), 1), "the first multiplier: got 2, expected 1"),
        (lambda: UNetConfig("", 6, 1, 8, (1, 2, 4), 1), "the image cannot be halved at every level: got 6"),
        (lambda: UNetConfig("", 8, 1, 8, (1, 2), 1, head_dim=12), "heads do not divide a level's width: got 16"),
        (
            lambda: made(DiT, DIT)(torch.zeros(2, 1, 7, 8), torch.zeros(2)),
            r"images of another shape: got \(2, 1, 7, 8\)",
        ),
        (lambda: made(UNet, UNET)(torch.zeros(2, 3, 8, 8), torch.zeros(2)), "images of another shape"),
        (
            lambda: made(DiT, DIT)(*given()[:2], torch.tensor([0, 1, 11])),
            "no such class: got 0 to 11, expected 0 to 10",
        ),
        (lambda: made(UNet, UNET)(*given()[:2], torch.tensor([-1, 1, 1])), "no such class: got -1 to 1"),
    ],
)
def test_bad_input_is_one_line(wrong, said):
    with pytest.raises(InputError, match=said) as caught:
        wrong()
    assert "\n" not in str(caught.value)


def test_a_network_without_classes_takes_no_label():
    config = DiTConfig("", 1, d_model=16, n_heads=2, size=8, patch=2, channels=1, classes=0)
    assert made(DiT, config)(*given()[:2]).shape == (3, 1, 8, 8)
    with pytest.raises(InputError, match="the network knows no classes: got labels, expected none"):
        made(DiT, config)(*given())
