"""What tests of drawings read from one: its panels, their boxes, their words."""

from __future__ import annotations

from xml.etree import ElementTree

from book.drawings import draw


def svgs(name: str) -> list[ElementTree.Element]:
    """The panels of a drawing."""
    return list(ElementTree.fromstring(draw(name)).iter("svg"))


def boxes(svg: ElementTree.Element, tone: str, side: str = "width") -> list[float]:
    """Widths (or another attribute) of the boxes of a tone."""
    return [float(one.get(side, 0)) for one in svg.iter("rect") if one.get("class") == tone]


def words(svg: ElementTree.Element) -> list[str]:
    """Its texts, in the order in which they are drawn."""
    return [one.text or "" for one in svg.iter("text")]
