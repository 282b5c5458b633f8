"""Messages between the process that speaks HTTP and the engine's, each a line of JSON: its name, then its fields."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True)
class Start:
    """To the engine, once: pages of its cache, texts that a step may hold, and a Python file that makes its scheduler.

    The file defines `build(pages, page, limits)`; None takes the package's own scheduler. `adapters` are folders by the
    names under which requests ask for them.
    """

    blocks: int
    sequences: int
    scheduler: str | None = None
    adapters: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ask:
    """To the engine: continue a prompt, text or token ids, or answer `chat`, pairs of role and content.

    Of prompt and chat one is there. `adapter` None asks the model as it is. `max_tokens` None takes what room there is;
    `logprobs`: whether tokens are sent, not their text alone. The other fields are those of `generate.Request` and
    `generate.Sampling`.
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
    adapter: str | None = None


@dataclass(frozen=True)
class Abort:
    """To the engine: forget a request, if it is still under way."""

    number: int


@dataclass(frozen=True)
class Watch:
    """To the engine: somebody watches, who wants a view at once and then as steps are run, or nobody does any more."""

    on: bool


@dataclass(frozen=True)
class Ready:
    """From the engine, once it has loaded the model, and adapters of so many bytes in memory."""

    adapter_bytes: int


@dataclass(frozen=True)
class Failed:
    """From the engine in place of `Ready`, and its last word: why it cannot start, in one line."""

    reason: str


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


@dataclass(frozen=True)
class View:
    """From the engine while it is watched: where it stands, and which steps it ran since the view before.

    Limits: a step has up to `slots` sequences and `budget` tokens, the cache `blocks`. Sequences that run and wait,
    in the order in which they are served: `name` a number, tokens of the `prompt` and `written`, `hits` found in the
    cache; of those that run also tokens in the cache (`read`) and their `blocks`. `kept` are blocks that nobody holds
    and that can still be found by a prompt. Steps: their number `step`, the time of their end, how many tokens they
    `wrote`, and what they `fed`, each [name, tokens, whether the sequence was writing, else it was read].
    """

    time_s: float
    slots: int
    budget: int
    blocks: int
    running: list[dict[str, Any]]
    waiting: list[dict[str, Any]]
    kept: list[int]
    steps: list[dict[str, Any]]


Message = Start | Ask | Abort | Watch | Ready | Failed | Begun | Refused | Piece | State | View


class Lines:
    """Messages as lines of bytes, and back."""

    KINDS: ClassVar[dict[str, type[Message]]] = {
        kind.__name__: kind for kind in (Start, Ask, Abort, Watch, Ready, Failed, Begun, Refused, Piece, State, View)
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
