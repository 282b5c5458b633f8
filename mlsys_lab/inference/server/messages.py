"""Messages between the process that speaks HTTP and the engine's, each a line of JSON: its name, then its fields."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True)
class Start:
    """To the engine, once: blocks of its KV cache, sequences of a step, and a Python file that makes its scheduler.

    The file defines `build(num_blocks, block_size, config)`; None takes the package's own scheduler. `adapters` are
    folders by the names of the LoRA adapters.
    """

    num_blocks: int
    max_num_seqs: int
    scheduler: str | None = None
    adapters: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class GenerateRequest:
    """To the engine: continue a `prompt`, text or token ids, or answer chat `messages`, pairs of role and content.

    One of the two is set. `adapter` None is the model itself. `max_tokens` None generates up to the end of the context;
    with `logprobs`, tokens are sent next to their text. The other fields are those of `engine.Request` and
    `engine.SamplingParams`.
    """

    request_id: int
    prompt: str | list[int] | None = None
    messages: list[tuple[str, str]] | None = None
    max_tokens: int | None = None
    n: int = 1
    temperature: float = 1.0
    top_p: float | None = None
    seed: int | None = None
    stop: list[str] = field(default_factory=list)
    logprobs: bool = False
    adapter: str | None = None


@dataclass(frozen=True)
class Abort:
    """To the engine: abort a request if it has not finished."""

    request_id: int


@dataclass(frozen=True)
class Watch:
    """To the engine: send a view now and then as steps are run, or stop to do so."""

    on: bool


@dataclass(frozen=True)
class Ready:
    """From the engine, once it has loaded the model and its adapters."""

    adapter_bytes: int


@dataclass(frozen=True)
class Failed:
    """From the engine in place of `Ready`, and its last word: why it cannot start, in one line."""

    reason: str


@dataclass(frozen=True)
class Accepted:
    """From the engine: a request was accepted."""

    request_id: int
    num_prompt_tokens: int


@dataclass(frozen=True)
class Rejected:
    """From the engine: a request was rejected, and why."""

    request_id: int
    reason: str


@dataclass(frozen=True)
class OutputDelta:
    """From the engine: what a step generated for sequence `index` of a request.

    `num_tokens` is the number of new tokens, `text` the newly certain text. If logprobs are asked for, `token_bytes`
    are the bytes of each new token. When the sequence has finished, `finish_reason` is set, and `num_kept_tokens` is
    its number of tokens.
    """

    request_id: int
    index: int
    num_tokens: int
    text: str
    token_bytes: list[list[int]]
    logprobs: list[float]
    finish_reason: str | None
    num_kept_tokens: int


@dataclass(frozen=True)
class EngineState:
    """From the engine after each step: numbers of sequences, of the step's tokens, of used blocks and of steps."""

    num_waiting: int
    num_running: int
    num_batched_tokens: int
    num_used_blocks: int
    num_steps: int


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


Message = (
    Start | GenerateRequest | Abort | Watch | Ready | Failed | Accepted | Rejected | OutputDelta | EngineState | View
)


class Lines:
    """Messages as lines of bytes, and back."""

    KINDS: ClassVar[dict[str, type[Message]]] = {
        kind.__name__: kind
        for kind in (
            Start,
            GenerateRequest,
            Abort,
            Watch,
            Ready,
            Failed,
            Accepted,
            Rejected,
            OutputDelta,
            EngineState,
            View,
        )
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
