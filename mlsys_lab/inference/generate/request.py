"""What is asked of a model, and what it answered."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from mlsys_lab.errors import InputError
from mlsys_lab.inference.generate.sampling import Sampling
from mlsys_lab.models import Transformer


@dataclass(frozen=True)
class Request:
    """A prompt of token ids to be continued by up to `max_tokens` tokens, `count` times over.

    A text ends where it ends with one of the `stop` sequences of token ids, which is cut off; (id,) is one that ends
    with a token such as "end of text". InputError for what no model could answer.
    """

    prompt: Sequence[int]
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop: Sequence[Sequence[int]] = ()
    count: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt", _read_tokens("prompt", self.prompt))
        object.__setattr__(self, "stop", tuple(_read_tokens("stop sequence", sequence) for sequence in self.stop))
        for name in ("max_tokens", "count"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{name} out of range", got=repr(value), expected="a whole number, at least 1")
        if self.sampling.greedy and self.count > 1:
            raise InputError(
                "temperature 0 writes one text only", got=f"count={self.count}", help="give a temperature above 0"
            )

    def check(self, model: Transformer) -> None:
        """Raise InputError unless the model can answer: tokens that it knows, and room for them in its context."""
        c = model.config
        for name, tokens in (("prompt", self.prompt), *(("stop sequence", sequence) for sequence in self.stop)):
            unknown = [token for token in tokens if not 0 <= token < c.vocab_size]
            if unknown:
                expected = f"0 to {c.vocab_size - 1}"
                raise InputError(f"unknown token in the {name}", got=unknown[0], expected=expected)
        if len(self.prompt) >= c.context:
            raise InputError(
                "the prompt leaves no room in the context",
                got=f"{len(self.prompt)} tokens",
                expected=f"below {c.context}",
            )
        if len(self.prompt) + self.max_tokens > c.context:
            raise InputError(
                "prompt and max_tokens outgrow the context",
                got=f"{len(self.prompt)} + {self.max_tokens} tokens",
                expected=f"up to {c.context}",
            )
        top_k = self.sampling.top_k
        if top_k is not None and top_k > c.vocab_size:
            raise InputError("top_k is above the vocabulary", got=top_k, expected=f"up to {c.vocab_size}")


def _read_tokens(name: str, tokens: Sequence[int]) -> tuple[int, ...]:
    """Token ids as plain integers, of a list, array or tensor of them; InputError for none and for other things."""
    try:
        read = tuple(operator.index(token) for token in tokens)
    except TypeError:
        got = " ".join(repr(tokens).split())
        raise InputError(f"tokens of the {name}", got=got, expected="a list of whole numbers") from None
    if not read:
        raise InputError(f"the {name} is empty", expected="one token or more")
    return read


@dataclass(frozen=True)
class Completion:
    """A text that continues a prompt, without it and without the stop sequence that ended it.

    `logprobs` are natural logarithms of the probabilities that the model itself gave to the tokens, before temperature,
    penalty and what was left out. `reason`: "stop", or "length" where `max_tokens` came first.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    reason: Literal["stop", "length"]


class Text:
    """A text while it is written: tokens after the prompt, their log-probabilities, and whether it has ended."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.completion: Completion | None = None

    @property
    def everything(self) -> list[int]:
        """Tokens of the prompt and the text so far."""
        return [*self.request.prompt, *self.tokens]

    @property
    def left(self) -> int:
        """Number of tokens that may still be written."""
        return self.request.max_tokens - len(self.tokens)

    def add(self, token: int, logprob: float) -> None:
        """Write one token more; where it ends the text, `completion` is there."""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        ending = [len(stop) for stop in self.request.stop if self.tokens[-len(stop) :] == list(stop)]
        if ending:
            end = len(self.tokens) - max(ending)
            self.completion = Completion(tuple(self.tokens[:end]), tuple(self.logprobs[:end]), "stop")
        elif not self.left:
            self.completion = Completion(tuple(self.tokens), tuple(self.logprobs), "length")
