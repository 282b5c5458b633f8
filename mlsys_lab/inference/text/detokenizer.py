"""Incremental detokenization with stop strings, which may span several tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mlsys_lab.errors import InputError


class TextStream(Protocol):
    """Incremental decoder of one sequence."""

    def add(self, token: int) -> str:
        """Text that one more token completes, "" if it ends within a character."""
        ...

    def end(self) -> str:
        """Text that remains after the last token."""
        ...


class StopStrings:
    """Incremental search for the first of several strings.

    The first is the one that ends first; of several that end at the same character, the longest. So the result does not
    depend on token boundaries. Text that may be the start of a stop string is held back, because text that has been
    returned cannot be revoked.

    >>> search = StopStrings(["###"])
    >>> search.add("one#"), search.add("#two"), search.add(" ##"), search.add("#three"), search.found
    ('one', '##two', ' ', '', True)
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if isinstance(stops, str) or not all(isinstance(stop, str) and stop for stop in stops):
            raise InputError("stop strings", got=repr(stops), expected="a list of strings, none of them empty")
        self.stops, self.found, self._held = tuple(stops), False, ""

    def add(self, piece: str) -> str:
        """Append a piece; returns the text that is final, because it precedes any stop string."""
        self._held += piece
        found = [(start + len(stop), start) for stop in self.stops if (start := self._held.find(stop)) >= 0]
        self.found = bool(found)
        final = min(found)[1] if found else len(self._held) - self._num_possible()
        text, self._held = self._held[:final], "" if found else self._held[final:]
        return text

    def end(self) -> str:
        """Text that was held back and is not a stop string."""
        text, self._held = self._held, ""
        return text

    def _num_possible(self) -> int:
        """Number of characters at the end that may start a stop string."""
        longest = min(len(self._held), max(map(len, self.stops), default=1) - 1)
        return next(
            (n for n in range(longest, 0, -1) if any(stop.startswith(self._held[-n:]) for stop in self.stops)), 0
        )


class Detokenizer:
    """Text of one sequence while it is generated, up to a stop string; see `engine.sequence.Detokenizer`."""

    def __init__(self, stream: TextStream, stop_strings: Sequence[str] = ()) -> None:
        self.text = ""
        self._stream, self._search = stream, StopStrings(stop_strings)
        self._ends: list[int] = []  # characters up to the end of each token

    def add(self, token_id: int) -> int | None:
        """Append a token; if it completes a stop string, return how many of the tokens to keep, else None.

        The token in which the stop string starts is kept if it also contains text before the stop string.
        """
        piece = self._stream.add(token_id)
        self._ends.append((self._ends[-1] if self._ends else 0) + len(piece))
        self.text += self._search.add(piece)
        return sum(end < len(self.text) for end in self._ends) + bool(self.text) if self._search.found else None

    def finish(self, num_tokens: int) -> None:
        """Complete `text`, which ends with the first `num_tokens` tokens."""
        if self._search.found:
            return
        self.text += self._search.end() + self._stream.end()
        if num_tokens < len(self._ends):
            self.text = self.text[: self._ends[num_tokens - 1] if num_tokens else 0]
