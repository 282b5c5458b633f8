"""Messages between the process that speaks HTTP and the engine's, each a line of JSON: its name, then its fields."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(frozen=True)
class Start:
    """To the engine, once: pages of its cache, and texts that a step may hold."""

    blocks: int
    sequences: int


@dataclass(frozen=True)
class Ask:
    """To the engine: continue a prompt, text or token ids, or answer `chat`, pairs of role and content.

    Of prompt and chat one is there. `max_tokens` None takes what room there is; `logprobs`: whether tokens are sent,
    not their text alone. The other fields are those of `generate.Request` and `generate.Sampling`.
    """

    number: int
    prompt: str | list[int] | None = None
    chat: list[tuple[str, str]] | None = None
    max_tokens: int | None = None
    count: int = 1
    temperature: float = 1.0
    top_p: float | None = None
    seed: int | None = None
    stop: list[str] = field(default_factory=list)
    logprobs: bool = False


@dataclass(frozen=True)
class Abort:
    """To the engine: forget a request, if it is still under way."""

    number: int


@dataclass(frozen=True)
class Ready:
    """From the engine, once it has loaded the model."""


@dataclass(frozen=True)
class Begun:
    """From the engine: a request was accepted, whose prompt has so many tokens."""

    number: int
    prompt_tokens: int


@dataclass(frozen=True)
class Refused:
    """From the engine: a request cannot be answered, and why."""

    number: int
    reason: str


@dataclass(frozen=True)
class Piece:
    """From the engine: what a step wrote of one text of a request.

    `written` is its number of new tokens, `text` the characters that became certain. With logprobs asked for, `tokens`
    are the bytes of each new token. At the end of a text `reason` says why, and `kept` how many tokens it has.
    """

    number: int
    choice: int
    written: int
    text: str
    tokens: list[list[int]]
    logprobs: list[float]
    reason: str | None
    kept: int


@dataclass(frozen=True)
class State:
    """From the engine after each step: texts that wait and run, tokens of the step, pages in use, steps so far."""

    waiting: int
    running: int
    batch_tokens: int
    blocks_used: int
    steps: int


Message = Start | Ask | Abort | Ready | Begun | Refused | Piece | State


class Lines:
    """Messages as lines of bytes, and back."""

    KINDS: ClassVar[dict[str, type[Message]]] = {
        kind.__name__: kind for kind in (Start, Ask, Abort, Ready, Begun, Refused, Piece, State)
    }

    @staticmethod
    def encode(message: Message) -> bytes:
        """Line of a message; half a character (a lone surrogate) is kept as it is."""
        return json.dumps([type(message).__name__, vars(message)]).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Message:
        """Message of a line that `encode` wrote."""
        name, fields = json.loads(line)
        return cls.KINDS[name](**fields)
