"""A tokenizer whose tokens are bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mlsys_lab.inference.text import Message


class Letters:
    """`ChatTokenizer` of single bytes; a conversation is what its messages say, one after another."""

    stop_token_ids: Sequence[int] = ()
    special_tokens: Mapping[int, str] = {300: "<|end|>", 301: "<|pad|>"}

    def encode_prompt(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_chat(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        return self.encode_prompt("".join(message.content for message in messages))

    def token_bytes(self, token: int) -> bytes:
        return b"" if token in self.special_tokens else bytes([token])
