"""Responses in OpenAI's format: completions, chats and their chunks, built from the engine's outputs."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from mlsys_lab.inference.server.messages import OutputDelta
from mlsys_lab.inference.server.protocol import ApiRequest, ChatCompletionRequest

Object = dict[str, Any]


class ResponseBuilder:
    """Builds the objects of one request's response; all its chunks have the same id and time."""

    def __init__(self, request: ApiRequest) -> None:
        self.request = request
        self.is_chat = isinstance(request, ChatCompletionRequest)
        self.id = f"{'chatcmpl' if self.is_chat else 'cmpl'}-{secrets.token_hex(12)}"
        self.created = int(time.time())
        self.has_logprobs = request.to_engine().logprobs
        self._num_output_tokens = 0
        self._decoded = [b""] * request.n  # bytes of each sequence's tokens in the logprobs so far

    def response(self, num_prompt_tokens: int, deltas: Sequence[OutputDelta]) -> Object:
        """Whole response, from all outputs of all sequences."""
        choices = []
        for index in range(self.request.n):
            own = [delta for delta in deltas if delta.index == index]
            text = "".join(delta.text for delta in own)
            content = {"message": {"role": "assistant", "content": text}} if self.is_chat else {"text": text}
            choices.append(content | self._common(index, own))
        kind = "chat.completion" if self.is_chat else "text_completion"
        return self._object(kind, choices) | {"usage": self._usage(num_prompt_tokens)}

    def first_chunks(self) -> list[Object]:
        """Chunks before any text: in a chat they name the role."""
        if not self.is_chat:
            return []
        start = {"delta": {"role": "assistant", "content": ""}, "finish_reason": None, "logprobs": None}
        return [self._chunk([start | {"index": index}]) for index in range(self.request.n)]

    def chunk(self, delta: OutputDelta) -> Object:
        """Chunk of one output."""
        content: Object = {"text": delta.text}
        if self.is_chat:
            content = {"delta": {"content": delta.text} if delta.text or not delta.finish_reason else {}}
        return self._chunk([content | self._common(delta.index, [delta])])

    def last_chunks(self, num_prompt_tokens: int) -> list[Object]:
        """Chunks after all text: the usage, if it is requested."""
        if not self.request.stream_options.include_usage:
            return []
        return [self._chunk([]) | {"usage": self._usage(num_prompt_tokens)}]

    def _usage(self, num_prompt_tokens: int) -> Object:
        total = num_prompt_tokens + self._num_output_tokens
        completion = {"completion_tokens": self._num_output_tokens, "total_tokens": total}
        return {"prompt_tokens": num_prompt_tokens} | completion

    def _chunk(self, choices: list[Object]) -> Object:
        return self._object("chat.completion.chunk" if self.is_chat else "text_completion", choices)

    def _object(self, kind: str, choices: list[Object]) -> Object:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.request.model,
            "choices": choices,
        }

    def _common(self, index: int, deltas: Sequence[OutputDelta]) -> Object:
        self._num_output_tokens += sum(delta.num_output_tokens for delta in deltas)
        finish_reason = deltas[-1].finish_reason if deltas else None
        return {"index": index, "logprobs": self._logprobs(deltas), "finish_reason": finish_reason}

    def _logprobs(self, deltas: Sequence[OutputDelta]) -> Object | None:
        """Tokens with their log-probabilities; a whole response leaves out those of the stop sequence."""
        if not self.has_logprobs:
            return None
        kept = slice(None if self.request.stream else deltas[-1].num_output_tokens)
        tokens = [token for delta in deltas for token in delta.token_bytes][kept]
        logprobs = [logprob for delta in deltas for logprob in delta.logprobs][kept]
        texts = [token.decode(errors="replace") for token in tokens]
        if not self.is_chat:
            offsets = [self._offset(deltas[0].index, token) for token in tokens]
            return {"tokens": texts, "token_logprobs": logprobs, "top_logprobs": None, "text_offset": offsets}
        content = [
            {"token": text, "bytes": list(token), "logprob": logprob, "top_logprobs": []}
            for text, token, logprob in zip(texts, tokens, logprobs, strict=True)
        ]
        return {"content": content}

    def _offset(self, index: int, token: bytes) -> int:
        """Number of characters before a sequence's next token, which is `token`."""
        before = len(self._decoded[index].decode(errors="ignore"))
        self._decoded[index] += token
        return before
