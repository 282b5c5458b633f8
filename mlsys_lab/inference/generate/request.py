"""What is asked of a model, and what it answered."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from mlsys_lab.errors import InputError
from mlsys_lab.inference.generate.sampling import Sampling
from mlsys_lab.inference.generate.stopping import StopStrings, TextStream
from mlsys_lab.models import Transformer


@dataclass(frozen=True)
class Request:
    """A prompt of token ids to be continued by up to `max_tokens` tokens, `count` times over.

    A text ends where it ends with one of the `stop` sequences of token ids, which is cut off; (id,) is one that ends
    with a token such as "end of text". It also ends before the first of the `stop_strings`, wherever tokens cut it;
    `stream` is then called for each text, and makes what turns its tokens into characters. `on_token` is called with
    each token as it is written, those that stop a text and of all `count` texts too; by beam search never. InputError
    for what no model could answer.
    """

    prompt: Sequence[int]
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop: Sequence[Sequence[int]] = ()
    count: int = 1
    stop_strings: Sequence[str] = ()
    stream: Callable[[], TextStream] | None = None
    on_token: Callable[[int], object] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt", _read_tokens("prompt", self.prompt))
        object.__setattr__(self, "stop", tuple(_read_tokens("stop sequence", sequence) for sequence in self.stop))
        self._check_strings()
        for name in ("max_tokens", "count"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{name} out of range", got=repr(value), expected="a whole number, at least 1")

    def _check_strings(self) -> None:
        if isinstance(self.stop_strings, str) or not all(isinstance(one, str) and one for one in self.stop_strings):
            expected = "a list of strings, none of them empty"
            raise InputError("stop strings", got=repr(self.stop_strings), expected=expected)
        object.__setattr__(self, "stop_strings", tuple(self.stop_strings))
        if self.stop_strings and self.stream is None:
            help_ = "give `stream`, which makes an incremental decoder"
            raise InputError("stop strings without text to find them in", got=repr(self.stop_strings[0]), help=help_)

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
    penalty and what was left out. `reason`: "stop", or "length" where `max_tokens` came first. `text` is in characters
    where the request has a `stream`; a stop string may begin within the last token, whose text then goes beyond it.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    reason: Literal["stop", "length"]
    text: str | None = None


class Text:
    """A text while it is written: tokens after the prompt, their log-probabilities, and whether it has ended.

    `shown` is what is certain to be in it, in characters: what may become a stop string is still held back.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.completion: Completion | None = None
        self.shown = ""
        self._stream = request.stream() if request.stream else None
        self._search = StopStrings(request.stop_strings)
        self._ends: list[int] = []  # characters up to the end of each token

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
        if self._stream:
            piece = self._stream.add(token)
            self._ends.append((self._ends[-1] if self._ends else 0) + len(piece))
            self.shown += self._search.add(piece)
        if self.request.on_token is not None:
            self.request.on_token(token)
        ending = [len(stop) for stop in self.request.stop if self.tokens[-len(stop) :] == list(stop)]
        if self._search.found:
            self._complete(sum(end < len(self.shown) for end in self._ends) + bool(self.shown), "stop")
        elif ending:
            self._complete(len(self.tokens) - max(ending), "stop")
        elif not self.left:
            self._complete(len(self.tokens), "length")

    def _complete(self, tokens: int, reason: Literal["stop", "length"]) -> None:
        """End the text after so many tokens."""
        if self._stream and not self._search.found:
            self.shown += self._search.end() + self._stream.end()
            if tokens < len(self.tokens):
                self.shown = self.shown[: self._ends[tokens - 1] if tokens else 0]
        kept, logprobs = tuple(self.tokens[:tokens]), tuple(self.logprobs[:tokens])
        self.completion = Completion(kept, logprobs, reason, self.shown if self._stream else None)
