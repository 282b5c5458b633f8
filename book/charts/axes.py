"""Axes of charts: where a value lies between the two ends, which values have ticks, and how these are written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from book.charts.figure import Value

TICKS = 6
"""Ticks that an axis has at most, but where its figure says which."""
PAD = 0.04  # of an axis' length, between its ends and the outermost values
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Axis:
    """Values from `low` to `high`, or places for categories; `log` values are given and kept as they are."""

    low: float
    high: float
    log: bool = False
    categories: list[str] = field(default_factory=list)
    ticks: list[tuple[float, str]] = field(default_factory=list)
    title: str = ""

    def place(self, value: Value) -> float:
        """Where a value lies: 0 at the low end, 1 at the high end."""
        at = self.categories.index(value) if isinstance(value, str) else value
        low, high = (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)
        return ((math.log10(at) if self.log else at) - low) / (high - low)


def make_axis(settings: dict[str, Any], values: Sequence[Value], *, zero: bool = False, pad: bool = True) -> Axis:
    """Make the axis of these values. zero: bars begin there; pad: leave room beyond the outermost values.

    settings: of Plotly's axis: type, range, rangemode, dtick, tickvals, ticktext, autorange, title.
    """
    title = settings.get("title", {}).get("text", "")
    if any(isinstance(one, str) for one in values):
        names = list(dict.fromkeys(str(one) for one in values))
        if settings.get("autorange") == "reversed":
            names.reverse()
        return Axis(-0.5, len(names) - 0.5, categories=names, title=title)
    log = settings.get("type") == "log"
    numbers = [float(one) for one in values if not log or float(one) > 0]
    low, high = min(numbers), max(numbers)
    if zero or settings.get("rangemode") == "tozero":
        low, high = min(low, 0.0), max(high, 0.0)
    if log:
        room = PAD * pad * math.log10(high / low)
        low, high = low / 10**room, high * 10**room
    else:
        room = PAD * pad * (high - low)
        low, high = low - room * (low != 0), high + room
    if "range" in settings:
        low, high = (10**one if log else one for one in settings["range"])
    if "tickvals" in settings:
        words = settings.get("ticktext", [number(one) for one in settings["tickvals"]])
        ticks = [(value, str(word)) for value, word in zip(settings["tickvals"], words, strict=True)]
    else:
        chosen = _log_ticks(low, high, settings.get("dtick")) if log else _ticks(low, high, settings.get("dtick"))
        ticks = [(value, number(value)) for value in chosen]
    inside = [one for one in ticks if low * (1 - 1e-9) <= one[0] <= high * (1 + 1e-9)]
    return Axis(low, high, log, ticks=inside, title=title)


def number(value: float) -> str:
    """Write a number for a tick: plain from a thousandth to a million, else with a power of ten.

    >>> number(0.05), number(32768), number(2e9), number(1e-5)
    ('0.05', '32,768', '2·10⁹', '10⁻⁵')
    """
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{float(f'{value:.6g}'):,.10g}"
    digits, _, exponent = f"{value:.2e}".partition("e")
    power = "10" + str(int(exponent)).translate(SUPERSCRIPT)
    return power if float(digits) == 1 else f"{float(digits):g}·{power}"


def _ticks(low: float, high: float, step: float | None) -> list[float]:
    if not step:
        rough = (high - low) / TICKS
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * one for one in (1, 2, 5, 10) if power * one >= rough)
    return [round(i * step, 12) for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float, step: float | None) -> list[float]:
    """Powers of ten, or 10 to the multiples of `step`; 1, 2 and 5 times them where there are fewer than two powers."""
    first, last = math.log10(low), math.log10(high)
    if not step and last - first < 2:
        powers = range(math.floor(first), math.ceil(last) + 1)
        few = [one * 10.0**power for power in powers for one in (1, 2, 5) if low <= one * 10.0**power <= high]
        return few if len(few) > 1 else _ticks(low, high, None)
    step = step or 1.0
    every = [i for i in range(math.ceil(first / step - 1e-9), math.floor(last / step + 1e-9) + 1)]
    thin = math.ceil(len(every) / TICKS)
    return [10 ** (i * step) for i in every if i % thin == 0]
