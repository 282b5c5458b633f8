"""Numbers and units stay on one line, in prose and not in code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from docutils import nodes
from docutils.frontend import get_default_settings
from docutils.utils import new_document

sys.path.insert(0, str(Path(__file__).parents[2] / "book" / "_ext"))

import units  # a module of the book's extension folder

BOUND = "\N{NO-BREAK SPACE}"


@pytest.mark.parametrize("text", ["66 %", "80 GB", "3.35 TB/s", "989 TFLOP/s", "12 ms", "4 µs", "1.98 GHz", "700 W"])
def test_a_number_and_its_unit_are_bound(text: str) -> None:
    assert units.bind(text) == text.replace(" ", BOUND)


@pytest.mark.parametrize("text", ["3 steps", "a %", "12 sequences", "2 Bytes"])
def test_other_words_are_not(text: str) -> None:
    assert units.bind(text) == text


def test_a_value_in_a_node_of_its_own_is_bound_and_code_is_not() -> None:
    document = new_document("page", get_default_settings())
    values = [nodes.inline("", "", nodes.Text(number)) for number in ("52", "x", "61")]
    paragraph = nodes.paragraph("", "", *(part for value in values for part in (value, nodes.Text(" % "))))
    document += [paragraph, nodes.paragraph("", "", nodes.literal("", "5 ms"))]
    units.bind_page(None, document, "page")  # type: ignore[arg-type]
    assert paragraph.astext() == f"52{BOUND}% x % 61{BOUND}% "
    assert document[1].astext() == "5 ms"
