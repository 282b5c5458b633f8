"""Numbers of the Triton chapter that a first edition had wrong, from the page's own cells."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from mlsys_lab import hardware
from mlsys_lab.kernels.attention import cost

PAGE = (Path(__file__).parents[2] / "book" / "chapters" / "06-triton.md").read_text("utf-8")


def run_cell(marker: str, **names: Any) -> dict[str, Any]:
    """The names after the one code cell that contains `marker`."""
    cells = re.findall(r"^```\{code-cell\} python\n(.*?)^```$", PAGE, re.S | re.M)
    (cell,) = [cell for cell in cells if marker in cell]
    exec(cell, names)
    return names


@pytest.fixture
def h100() -> hardware.Device:
    return hardware.device("H100")


def test_exponentials_take_half_as_long_as_the_products(h100: hardware.Device) -> None:
    def head(tokens: int, width: int, heads: int) -> cost.Shape:
        return cost.Shape(1, heads, heads, tokens, tokens, width, causal=True)

    page = run_cell("def exponential_s", h100=h100, cost=cost, head=head)
    pairs = 16 * 4096 * 4097 / 2
    assert pairs == pytest.approx(134.25e6, rel=1e-4)
    assert page["exponentials_s"] == pytest.approx(pairs / (132 * 16 * 1.83e9), rel=1e-3)
    assert page["products_s"] == pytest.approx(2 * page["exponentials_s"])


def test_offsets_wrap_at_the_row_the_page_names() -> None:
    page = run_cell("first_bad_row =", torch=torch)
    row, width = page["first_bad_row"], page["VOCAB"]
    assert (row - 1) * width < 2**31 <= row * width
    assert (page["row"] * width).item() == row * width - 2**32


def test_tf32_operands_are_truncated_to_ten_bits() -> None:
    page = run_cell("def truncate_to_tf32", torch=torch)
    truncated = page["truncate_to_tf32"](torch.tensor([1.0009, 1 + 2**-10, -1.999]))
    assert truncated.tolist() == [1.0, 1 + 2**-10, -(2 - 2**-9)]
    assert 1e-4 < page["dot_error"]["tf32"] < 2 * 2**-10
    assert page["dot_error"]["ieee"] < 1e-5
