"""Explanatory drawings of the chapters: `draw("collectives.ring")` is the SVG that a page's {drawing} directive shows.

A module for each chapter, by its topic, with a dictionary DRAWINGS of functions without arguments; all are made of
the pieces in `kit`, those to scale on `axes`.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from markupsafe import Markup

from mlsys_lab.errors import InputError, did_you_mean

TOOLS = ("axes", "kit")
"""Modules that draw nothing themselves."""


def drawing_names() -> list[str]:
    """Names of all drawings, "topic.drawing", in the order of their modules."""
    topics = [one.name for one in iter_modules(__path__) if one.name not in TOOLS]
    return [f"{topic}.{name}" for topic in topics for name in import_module(f"{__name__}.{topic}").DRAWINGS]


def draw(name: str) -> Markup:
    """The drawing of this name as HTML with inline SVG. InputError for a name that there is not."""
    if name not in (known := drawing_names()):
        raise InputError("no such drawing", got=name, expected=", ".join(known), help=did_you_mean(name, known))
    topic, _, own = name.partition(".")
    drawn: Markup = import_module(f"{__name__}.{topic}").DRAWINGS[own]()
    return drawn
