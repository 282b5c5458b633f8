"""Stochastic rounding: unbiased, only ever to a neighbour, and repeatable."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import binomtest

from mlsys_lab.efficiency.formats import E2M1, E4M3, E5M2, INT4, NF4, Rounding, decode, round_to

pytestmark = pytest.mark.every_case
DRAWS, CHANCE = 40_000, 1e-9
"""Draws for each number, and the chance of each test that a right implementation fails: the seed is fixed."""
FORMATS = {"e4m3": E4M3, "e5m2": E5M2, "e2m1": E2M1, "int4": INT4, "nf4": NF4}


def draw(x: torch.Tensor, name: str, seed: int = 0) -> torch.Tensor:
    return round_to(x, FORMATS[name], rounding=Rounding.STOCHASTIC, generator=torch.Generator().manual_seed(seed))


def neighbours(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Each pair of neighbouring numbers (at most 40 of a format), subnormal ones and both signs among them."""
    format = FORMATS[name]
    numbers = decode(torch.arange(2**format.bits).to(torch.uint8), format)
    numbers = numbers[numbers.isfinite() & (numbers.abs() <= format.largest)].unique()
    pairs = torch.linspace(0, len(numbers) - 2, min(40, len(numbers) - 1)).long()
    return numbers[pairs], numbers[pairs + 1]


@pytest.mark.parametrize("fraction", [0.03125, 0.5, 0.875])
@pytest.mark.parametrize("name", FORMATS)
def test_it_is_unbiased(name: str, fraction: float) -> None:
    low, high = neighbours(name)
    x = low + fraction * (high - low)
    drawn = draw(x.expand(DRAWS, -1), name)
    assert ((drawn == low) | (drawn == high)).all()
    for ups, exact in zip((drawn == high).sum(0), ((x - low) / (high - low)).double(), strict=True):
        assert binomtest(int(ups), DRAWS, float(exact)).pvalue > CHANCE / len(x)


@pytest.mark.parametrize("name", FORMATS)
def test_representable_numbers_stay_and_larger_ones_saturate(name: str) -> None:
    low, high = neighbours(name)
    x = torch.cat([low, high])
    assert torch.equal(draw(x.expand(99, -1), name), x.expand(99, -1))
    assert (draw(torch.tensor([torch.inf, 1e9]).expand(99, -1), name) == FORMATS[name].largest).all()


def test_a_seed_repeats_itself() -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(3))
    assert torch.equal(draw(x, "e4m3", 1), draw(x, "e4m3", 1))
    assert not torch.equal(draw(x, "e4m3", 1), draw(x, "e4m3", 2))
