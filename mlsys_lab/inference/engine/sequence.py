"""A text in the engine: its tokens, how far it may grow, and where its keys and values are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Saved:
    """Keys and values of a sequence's first `length` tokens in host memory; they lay in `pages`.

    `contents` are put in by whoever moves them; a scheduler without a model leaves them None.
    """

    pages: list[int]
    length: int
    contents: Any = None


@dataclass(eq=False)
class Sequence:
    """A prompt and what has been written after it, as a scheduler sees it.

    `tokens` are those of the prompt, the first `prompt` of them, and those written; never more than `most`. `adapter`
    is the name of the one that it is written under, None for the model as it is.
    `rank` orders sequences: the lowest is served first and preempted last. `number` is the sequence's in the page
    tables while it runs, else None; `saved` are its keys and values while it is swapped out. `drafts` are guesses of
    the next tokens, to be checked in the next step. Counted on the way: tokens that were in the cache already when it
    was admitted (`hits`), and times that it was preempted (`preemptions`).
    """

    tokens: list[int]
    prompt: int
    most: int
    rank: tuple[float, int]
    adapter: str | None = None
    number: int | None = None
    saved: Saved | None = None
    drafts: list[int] = field(default_factory=list)
    hits: int = 0
    preemptions: int = 0
