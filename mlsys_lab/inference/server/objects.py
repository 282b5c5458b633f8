"""Answers in OpenAI's form: completions, chats, and the chunks of both, of the pieces that the engine sends."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from mlsys_lab.inference.server.messages import Piece
from mlsys_lab.inference.server.protocol import MODEL, Wanted

Object = dict[str, Any]


class Usage:
    """Tokens of a request's prompt, and of its texts that have ended."""

    def __init__(self, prompt: int) -> None:
        self.prompt, self.completion = prompt, 0

    def add(self, piece: Piece) -> None:
        """Count in a text where this piece ends it."""
        self.completion += piece.kept

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
        self._read = [b""] * wanted.ask.count  # bytes of each text whose log-probabilities have been written

    def whole(self, pieces: Sequence[Piece], usage: Usage) -> Object:
        """Object of a whole answer, of all pieces of all its texts."""
        choices = []
        for choice in range(self.wanted.ask.count):
            own = [piece for piece in pieces if piece.choice == choice]
            text = "".join(piece.text for piece in own)
            content = {"message": {"role": "assistant", "content": text}} if self.wanted.chat else {"text": text}
            choices.append(content | self._rest(choice, own))
        return self._head("chat.completion" if self.wanted.chat else "text_completion", choices) | {"usage": usage.body}

    def first(self) -> list[Object]:
        """Chunks that come before any text: in a chat they say who speaks."""
        if not self.wanted.chat:
            return []
        start = {"delta": {"role": "assistant", "content": ""}, "finish_reason": None, "logprobs": None}
        return [self._chunk([start | {"index": choice}]) for choice in range(self.wanted.ask.count)]

    def chunk(self, piece: Piece) -> Object:
        """JSON object of a stream's chunk that brings one piece of text."""
        content: Object = {"text": piece.text}
        if self.wanted.chat:
            content = {"delta": {"content": piece.text} if piece.text or not piece.reason else {}}
        return self._chunk([content | self._rest(piece.choice, [piece])])

    def last(self, usage: Usage) -> list[Object]:
        """Chunks that come after all text: the usage, where it was asked for."""
        return [self._chunk([]) | {"usage": usage.body}] if self.wanted.include_usage else []

    def _chunk(self, choices: list[Object]) -> Object:
        return self._head("chat.completion.chunk" if self.wanted.chat else "text_completion", choices)

    def _head(self, kind: str, choices: list[Object]) -> Object:
        model = self.wanted.ask.adapter or MODEL
        return {"id": self.id, "object": kind, "created": self.created, "model": model, "choices": choices}

    def _rest(self, choice: int, pieces: Sequence[Piece]) -> Object:
        reason = pieces[-1].reason if pieces else None
        return {"index": choice, "logprobs": self._logprobs(pieces), "finish_reason": reason}

    def _logprobs(self, pieces: Sequence[Piece]) -> Object | None:
        """Tokens with their log-probabilities: all that the text keeps, or where it is streamed those of one piece."""
        if not self.wanted.ask.logprobs:
            return None
        tokens = [bytes(token) for piece in pieces for token in piece.tokens]
        logprobs = [logprob for piece in pieces for logprob in piece.logprobs]
        if not self.wanted.stream:
            tokens, logprobs = tokens[: pieces[-1].kept], logprobs[: pieces[-1].kept]
        texts = [token.decode(errors="replace") for token in tokens]
        if not self.wanted.chat:
            offsets = [self._offset(pieces[0].choice, token) for token in tokens]
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
