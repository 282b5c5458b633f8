"""Messages between the HTTP process and the engine's process: structs, each sent as one line of JSON with its type."""

from __future__ import annotations

import msgspec
from msgspec import Struct, field


class Message(Struct, tag=True):
    """Base of all messages."""


class EngineArgs(Message):
    """First command: how to build the engine.

    `model` and `draft` are folders of checkpoints; None takes the package's own model, and no drafts. `scheduler` is a
    Python file that defines `build(num_blocks, block_size, config)`; None takes the package's own scheduler. `adapters`
    are folders by the names of the LoRA adapters. `trace` is a file that steps and requests are written to.
    """

    num_blocks: int
    max_num_seqs: int
    model: str | None = None
    draft: str | None = None
    scheduler: str | None = None
    adapters: dict[str, str] = field(default_factory=dict)
    trace: str | None = None


class GenerateRequest(Message):
    """Command: continue each of `prompts`, lists of token ids, `n` times.

    `adapter` None is the model itself. `max_tokens` None generates up to the end of the context, 0 nothing. With
    `num_logprobs` 0 or more, outputs carry each token's log-probability and those of as many likeliest tokens; with
    `prompt_logprobs` the first output of a sequence carries those of the prompt too. `stop_token_ids` end a sequence,
    unless `ignore_eos` the model's own do so too. Outputs are texts of `grammar`, if there is one. The other fields are
    those of `engine.SamplingParams`.
    """

    request_id: int
    prompts: list[list[int]]
    max_tokens: int | None = None
    n: int = 1
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: list[tuple[int, float]] = field(default_factory=list)
    seed: int | None = None
    stop: list[str] = field(default_factory=list)
    stop_token_ids: list[int] = field(default_factory=list)
    ignore_eos: bool = False
    grammar: str | None = None
    num_logprobs: int | None = None
    prompt_logprobs: bool = False
    adapter: str | None = None

    @property
    def num_sequences(self) -> int:
        """Sequences of all prompts."""
        return len(self.prompts) * self.n


class Abort(Message):
    """Command: abort a request unless it has finished."""

    request_id: int


class Watch(Message):
    """Command: start or stop sending snapshots."""

    is_enabled: bool


class Ready(Message):
    """First event: the model and its adapters are loaded. `max_model_len`: tokens of a prompt and its output."""

    adapter_bytes: int
    max_model_len: int


class StartupFailed(Message):
    """First and last event of an engine that cannot start, with the reason in one line."""

    reason: str


class Accepted(Message):
    """Event: a request was accepted, with the number of tokens of all its prompts."""

    request_id: int
    num_prompt_tokens: int


class TokenLogprob(Struct, frozen=True):
    """A token, its log-probability (None for the first of a prompt), and the likeliest tokens with bytes and theirs."""

    token_id: int
    token_bytes: bytes
    logprob: float | None
    top: list[tuple[int, bytes, float]] = field(default_factory=list)


class Rejected(Message):
    """Event: a request was rejected."""

    request_id: int
    reason: str


class OutputDelta(Message):
    """Event: what a step generated for sequence `index` of a request; prompt p has sequences `n` p to `n` (p + 1) - 1.

    `num_tokens` is the number of new tokens and `text` the text that has become final. If they are requested,
    `logprobs` has an entry for each new token, and `prompt_logprobs` for each token of the prompt, once. When the
    sequence has finished, `finish_reason` is set, and `num_output_tokens` is its number of tokens without the stop
    sequence. The last three are those of `engine.SequenceStats`.
    """

    request_id: int
    index: int
    num_tokens: int
    text: str
    logprobs: list[TokenLogprob]
    finish_reason: str | None
    num_output_tokens: int
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    queue_time_s: float = 0.0


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
