"""Messages between the HTTP process and the engine's process: structs, each sent as one line of JSON with its type."""

from __future__ import annotations

import msgspec
from msgspec import Struct, field


class Message(Struct, tag=True):
    """Base of all messages."""


class EngineArgs(Message):
    """First command: how to build the engine.

    `scheduler` is a Python file that defines `build(num_blocks, block_size, config)`; None takes the package's own
    scheduler. `adapters` are folders by the names of the LoRA adapters.
    """

    num_blocks: int
    max_num_seqs: int
    scheduler: str | None = None
    adapters: dict[str, str] = field(default_factory=dict)


class GenerateRequest(Message):
    """Command: continue a `prompt`, text or token ids, or answer chat `messages`, pairs of role and content.

    Exactly one of the two is set. `adapter` None is the model itself. `max_tokens` None generates up to the end of the
    context. With `logprobs`, outputs carry each token's bytes and log-probability. The other fields are those of
    `engine.Request` and `engine.SamplingParams`.
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


class Abort(Message):
    """Command: abort a request unless it has finished."""

    request_id: int


class Watch(Message):
    """Command: start or stop sending snapshots."""

    is_enabled: bool


class Ready(Message):
    """First event: the model and its adapters are loaded."""

    adapter_bytes: int


class StartupFailed(Message):
    """First and last event of an engine that cannot start, with the reason in one line."""

    reason: str


class Accepted(Message):
    """Event: a request was accepted."""

    request_id: int
    num_prompt_tokens: int


class Rejected(Message):
    """Event: a request was rejected."""

    request_id: int
    reason: str


class OutputDelta(Message):
    """Event: what a step generated for sequence `index` of a request.

    `num_tokens` is the number of new tokens and `text` the text that has become final. If logprobs are requested,
    `token_bytes` and `logprobs` have an entry for each new token. When the sequence has finished, `finish_reason` is
    set, and `num_output_tokens` is its number of tokens without the stop sequence.
    """

    request_id: int
    index: int
    num_tokens: int
    text: str
    token_bytes: list[bytes]
    logprobs: list[float]
    finish_reason: str | None
    num_output_tokens: int


class EngineState(Message):
    """Event after each step: numbers of sequences, of the step's tokens, of used blocks and of steps."""

    num_waiting: int
    num_running: int
    num_batched_tokens: int
    num_used_blocks: int
    num_steps: int


class SequenceState(Struct, frozen=True):
    """A sequence's numbers of tokens and its block table, as in `engine.Sequence`."""

    seq_id: int
    num_prompt_tokens: int
    num_output_tokens: int
    num_computed_tokens: int
    num_cached_tokens: int
    block_table: list[int]


class StepRecord(Struct, frozen=True):
    """A step: its number, when it ended, tokens sampled, and what was scheduled: (seq_id, tokens, is_decode) each."""

    step: int
    time_s: float
    num_sampled: int
    scheduled: list[tuple[int, int, bool]]


class EngineSnapshot(Message):
    """Event while the engine is watched: its state, and the steps since the last snapshot; no text, no token ids.

    Running and waiting sequences are in scheduling order. `evictable_blocks` are unused blocks in the prefix cache.
    """

    time_s: float
    max_num_seqs: int
    max_num_batched_tokens: int
    num_blocks: int
    running: list[SequenceState]
    waiting: list[SequenceState]
    evictable_blocks: list[int]
    steps: list[StepRecord]


Command = EngineArgs | GenerateRequest | Abort | Watch
Event = Ready | StartupFailed | Accepted | Rejected | OutputDelta | EngineState | EngineSnapshot

decode_command = msgspec.json.Decoder(Command).decode
decode_event = msgspec.json.Decoder(Event).decode


def encode(message: Message) -> bytes:
    """Encode a message as a line of JSON."""
    return msgspec.json.encode(message) + b"\n"
