"""Answers in OpenAI's form: completions, chats, and the chunks of both, of the deltas that the engine sends."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from mlsys_lab.inference.server.messages import OutputDelta
from mlsys_lab.inference.server.protocol import MODEL, Wanted

Object = dict[str, Any]


class Usage:
    """Tokens of a request's prompt, and of its texts that have ended."""

    def __init__(self, prompt: int) -> None:
        self.prompt, self.completion = prompt, 0

    def add(self, delta: OutputDelta) -> None:
        """Count in a text where this delta ends it."""
        self.completion += delta.num_kept_tokens

    @property
    def body(self) -> Object:
        """Object with both numbers and their sum."""
        both = self.prompt + self.completion
        return {"prompt_tokens": self.prompt, "completion_tokens": self.completion, "total_tokens": both}


class Shape:
    """How one request's answer is written: its id and time, which all its chunks share, and the form of its choices."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.id = f"{'chatcmpl' if wanted.chat else 'cmpl'}-{secrets.token_hex(12)}"
        self.created = int(time.time())
        self._read = [b""] * wanted.ask.n  # bytes of each text whose log-probabilities have been written

    def whole(self, deltas: Sequence[OutputDelta], usage: Usage) -> Object:
        """Object of a whole answer, of all deltas of all its texts."""
        choices = []
        for choice in range(self.wanted.ask.n):
            own = [delta for delta in deltas if delta.index == choice]
            text = "".join(delta.text for delta in own)
            content = {"message": {"role": "assistant", "content": text}} if self.wanted.chat else {"text": text}
            choices.append(content | self._rest(choice, own))
        return self._head("chat.completion" if self.wanted.chat else "text_completion", choices) | {"usage": usage.body}

    def first(self) -> list[Object]:
        """Chunks that come before any text: in a chat they say who speaks."""
        if not self.wanted.chat:
            return []
        start = {"delta": {"role": "assistant", "content": ""}, "finish_reason": None, "logprobs": None}
        return [self._chunk([start | {"index": choice}]) for choice in range(self.wanted.ask.n)]

    def chunk(self, delta: OutputDelta) -> Object:
        """JSON object of a stream's chunk that brings one delta of text."""
        content: Object = {"text": delta.text}
        if self.wanted.chat:
            content = {"delta": {"content": delta.text} if delta.text or not delta.finish_reason else {}}
        return self._chunk([content | self._rest(delta.index, [delta])])

    def last(self, usage: Usage) -> list[Object]:
        """Chunks that come after all text: the usage, where it was asked for."""
        return [self._chunk([]) | {"usage": usage.body}] if self.wanted.include_usage else []

    def _chunk(self, choices: list[Object]) -> Object:
        return self._head("chat.completion.chunk" if self.wanted.chat else "text_completion", choices)

    def _head(self, kind: str, choices: list[Object]) -> Object:
        model = self.wanted.ask.adapter or MODEL
        return {"id": self.id, "object": kind, "created": self.created, "model": model, "choices": choices}

    def _rest(self, choice: int, deltas: Sequence[OutputDelta]) -> Object:
        reason = deltas[-1].finish_reason if deltas else None
        return {"index": choice, "logprobs": self._logprobs(deltas), "finish_reason": reason}

    def _logprobs(self, deltas: Sequence[OutputDelta]) -> Object | None:
        """Tokens with their log-probabilities: all that the text keeps, or where it is streamed those of one delta."""
        if not self.wanted.ask.logprobs:
            return None
        tokens = [bytes(token) for delta in deltas for token in delta.token_bytes]
        logprobs = [logprob for delta in deltas for logprob in delta.logprobs]
        if not self.wanted.stream:
            tokens, logprobs = tokens[: deltas[-1].num_kept_tokens], logprobs[: deltas[-1].num_kept_tokens]
        texts = [token.decode(errors="replace") for token in tokens]
        if not self.wanted.chat:
            offsets = [self._offset(deltas[0].index, token) for token in tokens]
            return {"tokens": texts, "token_logprobs": logprobs, "top_logprobs": None, "text_offset": offsets}
        content = [
            {"token": text, "bytes": list(token), "logprob": logprob, "top_logprobs": []}
            for text, token, logprob in zip(texts, tokens, logprobs, strict=True)
        ]
        return {"content": content}

    def _offset(self, choice: int, token: bytes) -> int:
        """Characters of a text before its next token, which is read now."""
        before = len(self._read[choice].decode(errors="ignore"))
        self._read[choice] += token
        return before
