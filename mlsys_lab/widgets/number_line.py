"""Interactive number line: the numbers of several formats, scaled to the same range, and where each rounds a number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

import anywidget
import traitlets

from mlsys_lab.efficiency.formats.elements import (
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E5M2,
    INT3,
    INT4,
    INT8,
    ElementFormat,
)
from mlsys_lab.efficiency.formats.normal import NF4
from mlsys_lab.errors import InputError, did_you_mean
from mlsys_lab.widgets.modules import esm
from mlsys_lab.widgets.page import table

FORMATS: Mapping[str, ElementFormat] = {
    "int3": INT3,
    "int4": INT4,
    "fp4 e2m1": E2M1,
    "nf4": NF4,
    "fp6 e3m2": E3M2,
    "fp6 e2m3": E2M3,
    "int8": INT8,
    "fp8 e4m3": E4M3,
    "fp8 e5m2": E5M2,
}


def values_of(format: ElementFormat) -> list[float]:
    """All finite numbers of a format in ascending order, its largest scaled to 1; symmetric integers without -2ᵇ⁻¹."""
    numbers = {format.value(code) for code in range(2**format.bits)}
    return sorted(number / format.largest for number in numbers if abs(number) <= format.largest)


def number_line_data(shown: Iterable[str] = ("int4", "fp4 e2m1", "nf4"), *, number: float = 0.3) -> dict[str, Any]:
    """Data of the figure, which initially shows these of `FORMATS` and rounds `number`, from -1 to 1.

    InputError for an unknown format, and a number out of range.
    """
    shown = list(shown)
    for name in shown:
        if name not in FORMATS:
            expected = f"one of {', '.join(FORMATS)}"
            raise InputError("no such format", got=repr(name), expected=expected, help=did_you_mean(name, FORMATS))
    if not -1 <= number <= 1:
        raise InputError("number out of range", got=number, expected="-1 to 1")
    return {
        "formats": [{"name": name, "values": values_of(format)} for name, format in FORMATS.items()],
        "shown": shown,
        "number": number,
        "zoom": 1.0,
    }


def number_line_table(data: Mapping[str, Any]) -> str:
    """Numbers of the formats from 0 to 1 as an HTML table for pages without JavaScript; of 8 bits only their count."""
    rows = []
    for one in data["formats"]:
        positive = [value for value in one["values"] if value >= 0]
        listed = ", ".join(f"{value:.3g}" for value in positive) if len(positive) <= 16 else ""
        rows.append((one["name"], len(one["values"]), listed))
    return table(("format", "numbers", "from 0 to 1"), rows)


class NumberLine(anywidget.AnyWidget):
    """Notebook figure of the numbers of formats: `NumberLine.of(["int4", "nf4"], number=0.3)`.

    shown: names of the formats drawn. number: what is rounded, from -1 to 1. zoom: largest magnitude in the picture.
    """

    _esm = esm("number_line")
    formats: traitlets.List[Any] = traitlets.List(traitlets.Dict(), minlen=1).tag(sync=True)
    shown: traitlets.List[str] = traitlets.List(traitlets.Unicode()).tag(sync=True)
    number = traitlets.Float(0.3).tag(sync=True)
    zoom = traitlets.Float(1.0).tag(sync=True)

    @classmethod
    def of(cls, shown: Iterable[str] = ("int4", "fp4 e2m1", "nf4"), **options: Any) -> Self:
        """Figure that initially shows these formats; `options` are keyword arguments of `number_line_data`."""
        return cls(**number_line_data(shown, **options))
