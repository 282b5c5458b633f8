"""Requests, sequences and their outputs; importing this module does not import torch."""

from __future__ import annotations

import math
import operator
from collections import abc
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from mlsys_lab.errors import InputError
from mlsys_lab.validation import is_integer, require_integer

if TYPE_CHECKING:
    import torch

    from mlsys_lab.models import Transformer

TopLogprobs = tuple[tuple[int, float], ...]
"""Likeliest tokens with their log-probabilities, in falling order."""


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is sampled; raises InputError for values that are out of range or contradict each other.

    `temperature` divides the logits; 0 is greedy. `top_k`, `top_p` and `min_p` mask unlikely tokens, in this order,
    each on what the filter before it kept. `repetition_penalty` above 1 makes tokens of the prompt and the output less
    likely, and is applied first; then `presence_penalty` is subtracted from the logits of tokens that the output has,
    `frequency_penalty` for each time that it has them, and `logit_bias` is added, pairs of a token and a number. The
    same `seed` gives the same tokens every time; None draws a new seed.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None

    def __post_init__(self) -> None:
        for name in ("presence_penalty", "frequency_penalty"):
            _require_number(name, getattr(self, name), -math.inf, math.inf, "a number")
        _require_number("temperature", self.temperature, 0, math.inf, "0 (greedy) or a positive number")
        _require_number("repetition_penalty", self.repetition_penalty, math.ulp(0.0), math.inf, "a positive number")
        for name in ("top_p", "min_p"):
            if getattr(self, name) is not None:
                _require_number(name, getattr(self, name), math.ulp(0.0), 1, "above 0, at most 1, or None")
        for name, lowest in (("top_k", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and not is_integer(value, at_least=lowest):
                expected = f"a whole number from {lowest}, or None"
                raise InputError(f"{name} out of range", got=repr(value), expected=expected)
        unused = [name for name in ("top_k", "top_p", "min_p") if getattr(self, name) is not None]
        if self.is_greedy and unused:
            raise InputError(
                "temperature 0 always takes the likeliest token, so there is nothing to leave out",
                got=", ".join(f"{name}={getattr(self, name)}" for name in unused),
                help="leave these out, or give a temperature above 0",
            )

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is always chosen."""
        return self.temperature == 0

    @cached_property
    def without_seed(self) -> SamplingParams:
        """The same parameters without a seed, by which sequences are sampled together."""
        return replace(self, seed=None)

    @property
    def needs_tokens(self) -> bool:
        """Whether the next token's probabilities depend on which tokens the sequence has, beyond the logits."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


class SampledToken(NamedTuple):
    """A sampled token, its log-probability, and the likeliest tokens with theirs, as many as the request wants."""

    token_id: int
    logprob: float
    top_logprobs: TopLogprobs = ()


class Detokenizer(Protocol):
    """Incremental detokenizer of one sequence, which also looks for stop strings."""

    text: str
    """Stable prefix of the text, which no later token can change."""

    def add(self, token_id: int) -> int | None:
        """Append a token; if it completes a stop string, return how many of the tokens to keep, else None."""

    def finish(self, num_tokens: int) -> None:
        """Flush the rest of the first `num_tokens` tokens to `text`: the sequence has finished."""


class Constraint(Protocol):
    """Limits one sequence to the texts of a grammar, token by token."""

    def mask(self) -> torch.Tensor:
        """Tokens that may come next, (V,), bool; at least one of them may."""

    def accept(self, token_id: int) -> Literal["stop", "length"] | None:
        """Advance by a sampled token; returns the finish reason if the sequence ends with it, else None.

        That is "stop" if the text is complete, and "length" if the grammar cannot be followed any further.
        """


@dataclass(frozen=True)
class Request:
    """A prompt to be continued by up to `max_tokens` tokens, `n` times.

    A sequence ends when its last tokens equal one of `stop_token_sequences`, which is then cut off; an end-of-text
    token is the stop sequence (id,). With each token come the log-probabilities of the `num_top_logprobs` likeliest
    ones. `make_detokenizer` makes the detokenizer of each sequence, which may end the sequence at a stop string;
    `make_constraint` makes the constraint of each, which ends it where its text is complete.
    `on_token` is called with each sampled token of all `n` sequences. Raises InputError for values that are invalid for
    every model.
    """

    prompt_token_ids: abc.Sequence[int]
    max_tokens: int
    sampling_params: SamplingParams = field(default_factory=SamplingParams)
    stop_token_sequences: abc.Sequence[abc.Sequence[int]] = ()
    n: int = 1
    num_top_logprobs: int = 0
    make_detokenizer: Callable[[], Detokenizer] | None = None
    make_constraint: Callable[[], Constraint] | None = None
    on_token: Callable[[int], object] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt_token_ids", _normalize_token_ids("prompt", self.prompt_token_ids))
        stops = tuple(_normalize_token_ids("stop sequence", tokens) for tokens in self.stop_token_sequences)
        object.__setattr__(self, "stop_token_sequences", stops)
        for name in ("max_tokens", "n"):
            require_integer(name, getattr(self, name))

    def validate(self, model: Transformer) -> None:
        """Raise InputError for tokens outside the model's vocabulary, and if the request exceeds its context length."""
        c, num_prompt_tokens = model.config, len(self.prompt_token_ids)
        stops = [("stop sequence", tokens) for tokens in self.stop_token_sequences]
        for name, tokens in (("prompt", self.prompt_token_ids), *stops):
            if unknown := [token for token in tokens if not 0 <= token < c.vocab_size]:
                raise InputError(f"unknown token in the {name}", got=unknown[0], expected=f"0 to {c.vocab_size - 1}")
        if num_prompt_tokens >= c.context:
            got, expected = f"{num_prompt_tokens} tokens", f"below {c.context}"
            raise InputError("the prompt leaves no room in the context", got=got, expected=expected)
        if num_prompt_tokens + self.max_tokens > c.context:
            got, expected = f"{num_prompt_tokens} + {self.max_tokens} tokens", f"up to {c.context}"
            raise InputError("prompt and max_tokens outgrow the context", got=got, expected=expected)
        top_k = self.sampling_params.top_k
        if top_k is not None and top_k > c.vocab_size:
            raise InputError("top_k is above the vocabulary", got=top_k, expected=f"up to {c.vocab_size}")
        if unknown := [token for token, _ in self.sampling_params.logit_bias if not 0 <= token < c.vocab_size]:
            raise InputError("unknown token in logit_bias", got=unknown[0], expected=f"0 to {c.vocab_size - 1}")
        if not 0 <= self.num_top_logprobs <= c.vocab_size:
            expected = f"0 to {c.vocab_size}"
            raise InputError("num_top_logprobs out of range", got=self.num_top_logprobs, expected=expected)


@dataclass(frozen=True)
class CompletionOutput:
    """Finished output sequence, without the prompt and the stop sequence.

    `logprobs` are the natural logarithms of the probabilities that the model gave to the tokens, before temperature,
    penalty and filters. `text` is None for a request without a detokenizer. If a stop string begins inside the
    last token, that token is still in `token_ids`, so that decoding them gives more than `text`.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: Literal["stop", "length"]
    text: str | None = None


class SequenceStats(NamedTuple):
    """What became of a sequence: prompt tokens from the prefix cache, preemptions, seconds before its first step."""

    num_cached_tokens: int = 0
    num_preemptions: int = 0
    queue_time_s: float = 0.0


NO_STATS = SequenceStats()


@dataclass(frozen=True)
class SequenceDelta:
    """New tokens that one step generated for sequence `index` of request `request_id`.

    `text` is the text that became stable in this step, None without a detokenizer; `completion` is set once the
    sequence has finished. `stats` are those up to now.
    """

    request_id: int
    index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str | None
    completion: CompletionOutput | None
    top_logprobs: tuple[TopLogprobs, ...] = ()
    stats: SequenceStats = NO_STATS


class GenerationState:
    """Output of one sequence while it is generated: tokens, log-probabilities and text, and its random generator."""

    def __init__(self, request: Request, generator: torch.Generator, request_id: int = 0, index: int = 0) -> None:
        self.request, self.generator, self.request_id, self.index = request, generator, request_id, index
        self.output_token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.top_logprobs: list[TopLogprobs] = []
        self.completion: CompletionOutput | None = None
        self.detokenizer = request.make_detokenizer() if request.make_detokenizer else None
        self.constraint = request.make_constraint() if request.make_constraint else None

    @property
    def token_ids(self) -> list[int]:
        """Prompt tokens and output tokens."""
        return [*self.request.prompt_token_ids, *self.output_token_ids]

    @property
    def num_tokens_left(self) -> int:
        """Number of tokens that may still be generated."""
        return self.request.max_tokens - len(self.output_token_ids)

    @property
    def text(self) -> str | None:
        """Text so far, None without a detokenizer."""
        return self.detokenizer.text if self.detokenizer else None

    def append(self, sampled: SampledToken) -> None:
        """Append a sampled token; sets `completion` if the token ends the sequence."""
        token_id = sampled.token_id
        self.output_token_ids.append(token_id)
        self.logprobs.append(sampled.logprob)
        self.top_logprobs.append(sampled.top_logprobs)
        num_kept = self.detokenizer.add(token_id) if self.detokenizer else None
        reason = self.constraint.accept(token_id) if self.constraint else None
        ending = [
            len(stop) for stop in self.request.stop_token_sequences if self.output_token_ids[-len(stop) :] == list(stop)
        ]
        if num_kept is not None:
            self._finish(num_kept, "stop")
        elif ending:
            self._finish(len(self.output_token_ids) - max(ending), reason or "stop")
        elif reason or not self.num_tokens_left:
            self._finish(len(self.output_token_ids), reason or "length")

    def extend(self, sampled: Iterable[SampledToken], stats: SequenceStats = NO_STATS) -> SequenceDelta:
        """Append the tokens of one step, up to the end of the sequence."""
        num_before, text_before = len(self.output_token_ids), self.text
        for one in sampled:
            if self.completion is None:
                self.append(one)
        new_tokens, new_logprobs = tuple(self.output_token_ids[num_before:]), tuple(self.logprobs[num_before:])
        text = None if self.text is None else self.text[len(text_before or "") :]
        top = tuple(self.top_logprobs[num_before:])
        return SequenceDelta(self.request_id, self.index, new_tokens, new_logprobs, text, self.completion, top, stats)

    def call_on_token(self, token_ids: Iterable[int]) -> None:
        """Call the request's `on_token` with new tokens; it may abort the request."""
        if self.request.on_token is not None:
            for token_id in token_ids:
                self.request.on_token(token_id)

    def _finish(self, num_tokens: int, reason: Literal["stop", "length"]) -> None:
        if self.detokenizer:
            self.detokenizer.finish(num_tokens)
        kept, logprobs = tuple(self.output_token_ids[:num_tokens]), tuple(self.logprobs[:num_tokens])
        self.completion = CompletionOutput(kept, logprobs, reason, self.text)


@dataclass(eq=False)
class Sequence:
    """Prompt and output tokens as the scheduler sees them, and the blocks that hold their keys and values.

    The first `num_computed_tokens` tokens have their keys and values in the blocks of `block_table`, in this order;
    `block_hashes` are those of the full blocks, `prefix_hashes` those that were looked up for admission.
    `num_cached_tokens` counts the tokens found in the prefix cache, summed over all admissions of the sequence.
    Sequences with different `cache_salt` share no blocks. `sort_key` orders sequences: the lowest is scheduled first
    and preempted last.
    """

    seq_id: int
    token_ids: list[int]
    num_prompt_tokens: int
    max_tokens: int
    sort_key: tuple[float, int] = (0, 0)
    cache_salt: str | None = None
    block_table: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    prefix_hashes: list[bytes] = field(default_factory=list)

    @property
    def num_output_tokens(self) -> int:
        """Number of tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_pending_tokens(self) -> int:
        """Number of tokens whose keys and values must be computed before the next token can be sampled."""
        return len(self.token_ids) - self.num_computed_tokens


def _require_number(name: str, value: object, lowest: float, highest: float, expected: str) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not lowest <= float(value) <= highest or float(value) == math.inf:  # type: ignore[arg-type]
        raise InputError(f"{name} out of range", got=repr(value), expected=expected)


def _normalize_token_ids(name: str, tokens: abc.Sequence[int]) -> tuple[int, ...]:
    """Token ids of a list, array or tensor as plain integers; raises InputError if empty or not integers."""
    try:
        token_ids = tuple(operator.index(token) for token in tokens)
    except TypeError:
        got = " ".join(repr(tokens).split())
        raise InputError(f"tokens of the {name}", got=got, expected="a list of whole numbers") from None
    if not token_ids:
        raise InputError(f"the {name} is empty", expected="one token or more")
    return token_ids
