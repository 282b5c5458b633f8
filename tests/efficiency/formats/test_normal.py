"""NF4: derived numbers against those that QLoRA publishes."""

from __future__ import annotations

import pytest
import torch

from mlsys_lab.efficiency.formats import NF4, decode, encode, normal_float, round_to

PUBLISHED = [
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
]
"""arXiv:2305.14314, appendix E, made in float32 with a rounded offset: 2e-7 apart from the formula."""


def test_numbers_are_those_of_the_paper() -> None:
    assert NF4.values == pytest.approx(PUBLISHED, rel=0, abs=2e-7)
    assert (NF4.values[0], NF4.values[7], NF4.values[15]) == (-1, 0, 1)


def test_each_number_is_encoded_as_the_nearest() -> None:
    x = torch.linspace(-1.1, 1.1, 9973)
    book = decode(torch.arange(16).to(torch.uint8), NF4)
    assert torch.equal(encode(x, NF4), (x[:, None].double() - book).abs().argmin(-1).to(torch.uint8))


@pytest.mark.parametrize("bits", [2, 3, 5, 8])
def test_other_widths_are_code_books_with_a_zero(bits: int) -> None:
    book = normal_float(bits)
    assert book.bits == bits and 0.0 in book.values and (book.values[0], book.largest) == (-1, 1)
    numbers = decode(torch.arange(2**bits).to(torch.uint8), book)
    assert torch.equal(round_to(numbers, book), numbers)
