"""Axes of a drawing that is to scale: where a value lies, and the lines, ticks and numbers along its edges."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from book.drawings.kit import line, text

SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
OVER = 4
"""How far a line goes on beyond the last value, in px."""


def power_of_ten(number: float) -> str:
    """A power of ten, such as 10²²."""
    return "10" + str(round(math.log10(number))).translate(SUPERSCRIPTS)


@dataclass(frozen=True)
class Scale:
    """Places in px of the values from `low` at `start` to `high` at `end`; by their logarithm if `log`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Where a value lies."""
        part = (
            math.log(value / self.low) / math.log(self.high / self.low)
            if self.log
            else (value - self.low) / (self.high - self.low)
        )
        return self.start + (self.end - self.start) * part


@dataclass(frozen=True)
class Axes:
    """Two scales; that of `y` starts at the bottom."""

    x: Scale
    y: Scale

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where a point lies."""
        return self.x(x), self.y(y)

    def frame(
        self,
        along: Iterable[float],
        up: Iterable[float],
        *,
        label_x: str,
        label_y: str,
        name_x: Callable[[float], str] = power_of_ten,
        name_y: Callable[[float], str] = str,
    ) -> list[str]:
        """The two lines, each with its label at its end, and ticks and numbers at these values."""
        left, bottom = self.x.start, self.y.start
        pieces = [
            line(left, bottom, self.x.end + OVER, bottom, "plain"),
            line(left, self.y.end - OVER, left, bottom, "plain"),
            text(self.x.end + OVER, bottom + 36, label_x, "quiet", size="small", anchor="end"),
            text(left + 6, self.y.end, label_y, "quiet", size="small", anchor="start"),
        ]
        for value in along:
            x = self.x(value)
            pieces += [line(x, bottom, x, bottom + 5), text(x, bottom + 18, name_x(value), "quiet", size="small")]
        for value in up:
            y = self.y(value)
            pieces += [line(left - 4, y, left, y)]
            pieces.append(text(left - 6, y + 4, name_y(value), "quiet", size="small", anchor="end"))
        return pieces
