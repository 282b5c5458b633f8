"""Digits: data in its range, a judge that reads it, measures with known values, and pictures that open."""

from __future__ import annotations

import math
import struct
import zlib

import pytest
import torch

from mlsys_lab.diffusion.digits import (
    accuracy,
    diversity,
    feature_distance,
    load_digits,
    memorised_fraction,
    sheet,
    train_classifier,
    write_png,
)
from mlsys_lab.diffusion.digits.evaluation import frechet_distance, nearest_distances
from mlsys_lab.diffusion.pretrained import load_classifier
from mlsys_lab.errors import InputError


def test_digits_are_in_range_and_none_is_in_both_parts():
    train, held_out = load_digits()
    assert (len(train.images), len(held_out.images)) == (1437, 360)
    for part in (train, held_out):
        assert part.images.shape[1:] == (1, 8, 8) and float(part.images.min()) == -1 and float(part.images.max()) == 1
        assert torch.bincount(part.labels).min() > 0.07 * len(part.labels)
    assert float(nearest_distances(held_out.images, train.images).min()) > 0


def test_a_classifier_is_trained_in_seconds():
    train, held_out = load_digits()
    assert accuracy(train_classifier(train, steps=60), *held_out) > 0.9


def test_the_judge_reads_held_out_digits_clean_and_noisy():
    """360 digits know a share of 0.98 to 0.007."""
    judge, (_, held_out) = load_classifier(), load_digits()
    assert accuracy(judge, *held_out) > 0.96
    sigma = torch.full((360,), 0.5)
    noisy = held_out.images + 0.5 * torch.randn(held_out.images.shape, generator=torch.Generator().manual_seed(0))
    assert float((judge(noisy, sigma).argmax(1) == held_out.labels).double().mean()) > 0.85
    assert float(judge(noisy, torch.full((360,), 20.0)).exp().max(1).values.mean()) < 0.6


def test_the_frechet_distance_of_gaussians_is_their_formula():
    """Samples with exact moments: ±√n·axis; means 3 apart, deviations 1 and 2 in each of two axes: 9 + 2·(2 - 1)²."""
    axes = torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1]], dtype=torch.float64) * math.sqrt(1.5)
    shift = torch.tensor([3.0, 0], dtype=torch.float64)
    assert frechet_distance(axes, 2 * axes + shift) == pytest.approx(9 + 2)
    assert frechet_distance(axes, axes) == pytest.approx(0, abs=1e-12)
    turn = torch.tensor([[0.6, -0.8], [0.8, 0.6]], dtype=torch.float64)
    stretched = axes * torch.tensor([1.0, 5.0], dtype=torch.float64)
    assert frechet_distance(stretched @ turn.T, axes @ turn.T) == pytest.approx(frechet_distance(stretched, axes))


def test_the_distance_grows_with_what_is_wrong_with_images():
    judge, (train, held_out) = load_classifier(), load_digits()
    own = feature_distance(judge, train.images[:360], held_out.images)
    noise = torch.randn(held_out.images.shape, generator=torch.Generator().manual_seed(0))
    one_class = train.images[train.labels == 7]
    assert own < 0.8 * feature_distance(judge, held_out.images + 0.8 * noise, held_out.images)
    assert own < 0.2 * feature_distance(judge, one_class, held_out.images)


def test_variety_and_copies():
    train, held_out = load_digits()
    repeated = train.images[:10].repeat(36, 1, 1, 1)
    labels = train.labels[:10].repeat(36)
    assert diversity(repeated, labels) < diversity(train.images[:360], train.labels[:360])
    assert diversity(repeated[:10].repeat(3, 1, 1, 1) * 0, torch.arange(10).repeat(3)) == 0
    assert memorised_fraction(held_out.images, train.images, held_out.images) == pytest.approx(0.05, abs=0.01)
    assert memorised_fraction(train.images[:100] * 0.99, train.images, held_out.images) == 1


def read_png(path):
    """Size and pixels of a grey PNG, by the format's own words."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(data):
        (length,), kind = struct.unpack(">I", data[at : at + 4]), data[at + 4 : at + 8]
        body = data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0] == zlib.crc32(kind + body)
        chunks[kind], at = body, at + 12 + length
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    rows = torch.frombuffer(bytearray(zlib.decompress(chunks[b"IDAT"])), dtype=torch.uint8).reshape(height, width + 1)
    assert not rows[:, 0].any() and list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    return rows[:, 1:]


def test_a_sheet_has_each_image_in_its_place(tmp_path):
    images = torch.full((5, 1, 8, 8), -1.0)
    images[4, 0, 0, 0] = 3.0  # beyond the range: black
    write_png(tmp_path / "a.png", sheet(images, columns=3, zoom=2))
    pixels = read_png(tmp_path / "a.png")
    assert pixels.shape == (2 * 10 * 2, 3 * 10 * 2)
    black = (pixels == 0).nonzero()
    assert int((pixels != 255).sum()) == 4 and black.min(0).values.tolist() == [22, 22]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda path: sheet(torch.zeros(0, 1, 8, 8)), "not images for a sheet: got"),
        (lambda path: sheet(torch.zeros(3, 8, 8)), "not images for a sheet: got"),
        (
            lambda path: write_png(path / "none" / "a.png", torch.zeros(2, 2, dtype=torch.uint8)),
            "cannot write the picture",
        ),
        (lambda path: frechet_distance(torch.zeros(1, 2), torch.zeros(5, 2)), "too few images for a distance: got 1"),
    ],
)
def test_bad_input_is_one_line(tmp_path, wrong, said):
    with pytest.raises(InputError, match=said):
        wrong(tmp_path)
