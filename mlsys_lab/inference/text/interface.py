"""What generation and serving need of a tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol


class Message(NamedTuple):
    """A turn of a conversation; `role` is "system", "user", "assistant" or, for the result of a call, "tool".

    `tool_calls` are the assistant's, in OpenAI's format but with the arguments as an object.
    """

    role: str
    content: str
    tool_calls: Sequence[Mapping[str, Any]] = ()


class TokenBytes(Protocol):
    """Vocabulary: the bytes of each token."""

    def token_bytes(self, token: int) -> bytes:
        """Bytes of a token, none for a special one or padding; InputError for an id outside the vocabulary."""


class ChatTokenizer(TokenBytes, Protocol):
    """Tokenizer of a served model, with its chat template and the tokens at which the model stops."""

    @property
    def stop_token_ids(self) -> Sequence[int]:
        """Tokens that end an answer; each ends it alone."""

    @property
    def special_tokens(self) -> Mapping[int, str]:
        """Names of the special tokens, such as <|endoftext|>, by id."""

    def encode_prompt(self, text: str) -> list[int]:
        """Token ids of a text to continue, after the special tokens that the model expects at the start."""

    def encode_chat(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """Token ids of a conversation, up to where the assistant's answer starts.

        `tools` are functions in OpenAI's format, for the chat template to describe.
        """

    def encode_answer(self, messages: Sequence[Message]) -> tuple[list[int], int]:
        """Token ids of a conversation that ends with the assistant's answer, and how many of them precede it."""
