"""Stop strings in text that comes in pieces, which tokens cut anywhere: also within a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class TextStream(Protocol):
    """Whatever turns tokens, one by one, into text: an incremental decoder of one text."""

    def add(self, token: int) -> str:
        """Text that one token more completes, "" where it ends within a character."""
        ...

    def end(self) -> str:
        """Text of what is left once no token comes any more."""
        ...


class StopStrings:
    """Search for the first of some strings in text that comes in pieces.

    The first is the one that is complete first, as if the text came character by character; of several that end at the
    same character, the longest. So the result does not depend on where tokens cut the text. What may become a stop
    string is held back, so that text once given out is never taken back.

    >>> search = StopStrings(["###"])
    >>> search.add("one#"), search.add("#two"), search.add(" ##"), search.add("#three"), search.found
    ('one', '##two', ' ', '', True)
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops, self.found, self._held = tuple(stops), False, ""

    def add(self, piece: str) -> str:
        """Text that certainly stands before any stop string, now that `piece` has come."""
        self._held += piece
        found = [(place + len(stop), place) for stop in self.stops if (place := self._held.find(stop)) >= 0]
        self.found = bool(found)
        certain = min(found)[1] if found else len(self._held) - self._possible()
        text, self._held = self._held[:certain], "" if found else self._held[certain:]
        return text

    def end(self) -> str:
        """Text that was held back: no stop string came of it."""
        text, self._held = self._held, ""
        return text

    def _possible(self) -> int:
        """Characters at the end that a stop string may begin with."""
        longest = min(len(self._held), max(map(len, self.stops), default=1) - 1)
        return next(
            (n for n in range(longest, 0, -1) if any(stop.startswith(self._held[-n:]) for stop in self.stops)), 0
        )
