"""Responses in OpenAI's format: completions, chats and their chunks, built from the engine's outputs."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from mlsys_lab.inference.server.messages import GenerateRequest, OutputDelta, TokenLogprob
from mlsys_lab.inference.server.protocol import ApiRequest, ChatCompletionRequest, CompletionRequest
from mlsys_lab.inference.server.tool_calls import ToolCallParser
from mlsys_lab.inference.text.interface import ChatTokenizer, TokenBytes

Object = dict[str, Any]


class ResponseBuilder:
    """Builds the objects of one request's response; all its chunks have the same id and time.

    `generated` is the engine's request, and `tokenizer` has the bytes and names of its tokens.
    """

    def __init__(self, request: ApiRequest, generated: GenerateRequest, tokenizer: ChatTokenizer) -> None:
        self.request, self.generated, self.special_tokens = request, generated, tokenizer.special_tokens
        self.is_chat = isinstance(request, ChatCompletionRequest)
        self.id = f"{'chatcmpl' if self.is_chat else 'cmpl'}-{secrets.token_hex(12)}"
        self.created = int(time.time())
        self._num_output_tokens = 0
        self._num_cached_tokens = [0] * len(generated.prompts)
        # Of each sequence: bytes of the tokens in the logprobs so far, and the text that is still to be echoed.
        self._decoded = [b""] * generated.num_sequences
        self._parsers: list[ToolCallParser] = []
        if isinstance(request, ChatCompletionRequest) and request.uses_tools:
            self._parsers = [ToolCallParser() for _ in range(generated.num_sequences)]
            self._is_parallel = request.parallel_tool_calls
            self._is_forced = request.tool_choice != "auto"
        self._echo = [text for text in _echoed(request, tokenizer) for _ in range(generated.n)]

    def response(self, num_prompt_tokens: int, deltas: Sequence[OutputDelta]) -> Object:
        """Whole response, from all outputs of all sequences."""
        choices = []
        for index in range(self.generated.num_sequences):
            own = [delta for delta in deltas if delta.index == index]
            text = "".join(delta.text for delta in own)
            content: Object = {"text": self._take_echo(index) + text}
            if self.is_chat:
                text, calls = self._parse(index, text, is_last=True)
                message = {"content": text or None, "tool_calls": calls} if calls else {"content": text}
                content = {"message": {"role": "assistant"} | message}
            choices.append(content | self._common(index, own))
        kind = "chat.completion" if self.is_chat else "text_completion"
        return self._object(kind, choices) | {"usage": self._usage(num_prompt_tokens)}

    def first_chunks(self) -> list[Object]:
        """Chunks before any text: in a chat they name the role."""
        if not self.is_chat:
            return []
        start = {"delta": {"role": "assistant", "content": ""}, "finish_reason": None, "logprobs": None}
        return [self._chunk([start | {"index": index}]) for index in range(self.generated.num_sequences)]

    def chunk(self, delta: OutputDelta) -> Object | None:
        """Chunk of one output; None if all of it is held back as part of a call."""
        content: Object = {"text": self._take_echo(delta.index) + delta.text}
        if self.is_chat:
            first = self._parsers[delta.index].num_calls if self._parsers else 0
            text, calls = self._parse(delta.index, delta.text, is_last=delta.finish_reason is not None)
            fields: Object = {"content": text} if text or not (self._parsers or delta.finish_reason) else {}
            if calls:
                fields["tool_calls"] = [{"index": first + i} | call for i, call in enumerate(calls)]
            content = {"delta": fields}
        choice = content | self._common(delta.index, [delta])
        is_empty = self._parsers and not choice["delta"] and not choice["logprobs"] and not choice["finish_reason"]
        return None if is_empty else self._chunk([choice])

    def last_chunks(self, num_prompt_tokens: int) -> list[Object]:
        """Chunks after all text: the usage, if it is requested."""
        if not self.request.stream_options.include_usage:
            return []
        return [self._chunk([]) | {"usage": self._usage(num_prompt_tokens)}]

    def _parse(self, index: int, text: str, *, is_last: bool) -> tuple[str, list[Object]]:
        """Content and calls in a sequence's next piece of text."""
        if not self._parsers:
            return text, []
        parser = self._parsers[index]
        before = parser.num_calls
        content, calls = parser.add(text)
        if not self._is_parallel:
            calls = calls[: max(0, 1 - before)]
        if is_last and self._is_forced:
            calls += parser.end_forced()
        elif is_last:
            content += parser.end()
        return content, calls

    def _usage(self, num_prompt_tokens: int) -> Object:
        return {
            "prompt_tokens": num_prompt_tokens,
            "completion_tokens": self._num_output_tokens,
            "total_tokens": num_prompt_tokens + self._num_output_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(self._num_cached_tokens)},
        }

    def _take_echo(self, index: int) -> str:
        """The prompt before a sequence's first text, if it is to be echoed."""
        if not self._echo:
            return ""
        text, self._echo[index] = self._echo[index], ""
        return text

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
        prompt, number = divmod(index, self.generated.n)
        if not number:  # the first sequence of a prompt computes it
            cached = [self._num_cached_tokens[prompt], *(delta.num_cached_tokens for delta in deltas)]
            self._num_cached_tokens[prompt] = max(cached)
        finish_reason = deltas[-1].finish_reason if deltas else None
        if finish_reason == "stop" and self._parsers and self._parsers[index].num_calls:
            finish_reason = "tool_calls"
        return {"index": index, "logprobs": self._logprobs(deltas), "finish_reason": finish_reason}

    def _logprobs(self, deltas: Sequence[OutputDelta]) -> Object | None:
        """Tokens with their log-probabilities; a whole response leaves out those of the stop sequence."""
        if self.generated.num_logprobs is None:
            return None
        kept = slice(None if self.request.stream else deltas[-1].num_output_tokens)
        output = [one for delta in deltas for one in delta.logprobs][kept]
        if self.is_chat:
            return {"content": [self._chat_logprob(one) for one in output]}
        tokens = [one for delta in deltas for one in delta.prompt_logprobs] + output
        return {
            "tokens": [self._key(one.token_id, one.token_bytes) for one in tokens],
            "token_logprobs": [one.logprob for one in tokens],
            "top_logprobs": [self._top_logprobs(one) for one in tokens] if self.generated.num_logprobs else None,
            "text_offset": [self._offset(deltas[0].index, one.token_bytes) for one in tokens],
        }

    def _offset(self, index: int, token: bytes) -> int:
        """Number of characters before a sequence's next token, which is `token`."""
        before = len(self._decoded[index].decode(errors="ignore"))
        self._decoded[index] += token
        return before

    def _chat_logprob(self, one: TokenLogprob) -> Object:
        def describe(token_id: int, token_bytes: bytes, logprob: float | None) -> Object:
            text = self.special_tokens.get(token_id) or _decode(token_bytes)
            return {"token": text, "bytes": list(token_bytes), "logprob": logprob}

        top = [describe(*alternative) for alternative in one.top]
        return describe(one.token_id, one.token_bytes, one.logprob) | {"top_logprobs": top}

    def _top_logprobs(self, one: TokenLogprob) -> Object | None:
        """Log-probabilities of the token itself and of the likeliest ones; of equal keys, the first counts."""
        if one.logprob is None:
            return None
        found = {self._key(one.token_id, one.token_bytes): one.logprob}
        for token_id, token_bytes, logprob in one.top:
            found.setdefault(self._key(token_id, token_bytes), logprob)
        return found

    def _key(self, token_id: int, token_bytes: bytes) -> str:
        """A token's text: the name of a special one, and OpenAI's notation for bytes that are not UTF-8 by themselves.

        Ends of a character would all be U+FFFD otherwise, and special tokens the empty text.
        """
        try:
            return self.special_tokens.get(token_id) or token_bytes.decode()
        except UnicodeDecodeError:
            return "bytes:" + token_bytes.decode("ascii", errors="backslashreplace")


def _echoed(request: ApiRequest, vocabulary: TokenBytes) -> list[str]:
    """The text of each prompt, if the request wants it before the output."""
    if not isinstance(request, CompletionRequest) or not request.echo:
        return []
    return [
        one if isinstance(one, str) else _decode(b"".join(map(vocabulary.token_bytes, one))) for one in request.prompts
    ]


def _decode(token: bytes) -> str:
    return token.decode(errors="replace")
