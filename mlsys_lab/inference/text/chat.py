"""Conversations as token ids: who speaks is a special token, which no text can imitate, and another ends each turn.

    <|system|> You are brief. <|end|> <|user|> What is a cache? <|end|> <|assistant|>

without the spaces. The model goes on from there, and ends its turn with <|end|>.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mlsys_lab.errors import InputError
from mlsys_lab.inference.text.tokenizer import Tokenizer

END = "<|end|>"
"""Special token that ends a turn, and between texts of the training data each text."""
ROLES = {"system": "<|system|>", "user": "<|user|>", "assistant": "<|assistant|>"}
"""Special token that begins a turn, by who speaks."""
SPECIAL = (END, *ROLES.values())


class Message(NamedTuple):
    """A turn of a conversation: who speaks ("system", "user" or "assistant"), and what is said."""

    role: str
    content: str


def encode_chat(tokenizer: Tokenizer, messages: Sequence[Message]) -> list[int]:
    """Token ids of a conversation, up to the token with which the assistant's answer begins.

    InputError for no message, an unknown role, an empty message, a system message that does not come first, and a
    conversation whose last word is the assistant's.
    """
    if not messages:
        raise InputError("the conversation is empty", expected="one message or more")
    ids: list[int] = []
    for place, (role, content) in enumerate(messages):
        if role not in ROLES:
            raise InputError("unknown role in the conversation", got=role, expected=f"one of {', '.join(ROLES)}")
        if not content:
            raise InputError(f"message {place + 1} of the conversation is empty", expected="text")
        if role == "system" and place > 0:
            raise InputError("a system message comes first", got=f"message {place + 1} of {len(messages)}")
        ids += encode_turn(tokenizer, Message(role, content))
    if messages[-1].role != "user":
        raise InputError("the last message is not the user's", got=messages[-1].role, expected="user")
    return [*ids, tokenizer.special_id(ROLES["assistant"])]


def encode_turn(tokenizer: Tokenizer, message: Message) -> list[int]:
    """Token ids of one turn, from the token of who speaks to the one that ends it."""
    begin, end = tokenizer.special_id(ROLES[message.role]), tokenizer.special_id(END)
    return [begin, *tokenizer.encode(message.content), end]
