"""Chat template: a special token names the role at the start of each turn, and another ends the turn.

    <|system|> You are brief. <|end|> <|user|> What is a cache? <|end|> <|assistant|>

without the spaces. The model continues from there, and ends its turn with <|end|>. Text is never encoded as a special
token, so no message can imitate a turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlsys_lab.errors import InputError
from mlsys_lab.inference.text.interface import Message
from mlsys_lab.inference.text.tokenizer import Tokenizer

END = "<|end|>"
"""Special token that ends a turn, and each text of the training data."""
ROLES = {"system": "<|system|>", "user": "<|user|>", "assistant": "<|assistant|>"}
"""Special token that starts a turn, by role."""
SPECIAL = (END, *ROLES.values())


def encode_chat(tokenizer: Tokenizer, messages: Sequence[Message]) -> list[int]:
    """Token ids of a conversation, up to the token that starts the assistant's answer.

    InputError if there is no message, a role is unknown, a message is empty, a call or the result of one, a system
    message is not the first one, or the last message is not the user's.
    """
    if not messages:
        raise InputError("the conversation is empty", expected="one message or more")
    ids: list[int] = []
    for number, (role, content, calls) in enumerate(messages, start=1):
        if calls or role == "tool":
            raise InputError(
                "this model's chat template has no tool calls or results",
                got=f"{'calls' if calls else 'a result'} in message {number}",
                help="serve a model whose template has them with --model, or leave them out",
            )
        if role not in ROLES:
            raise InputError("unknown role in the conversation", got=role, expected=f"one of {', '.join(ROLES)}")
        if not content:
            raise InputError(f"message {number} of the conversation is empty", expected="text")
        if role == "system" and number > 1:
            raise InputError("a system message comes first", got=f"message {number} of {len(messages)}")
        ids += encode_turn(tokenizer, Message(role, content))
    if messages[-1].role != "user":
        raise InputError("the last message is not the user's", got=messages[-1].role, expected="user")
    return [*ids, tokenizer.special_id(ROLES["assistant"])]


@dataclass(frozen=True)
class BookTokenizer:
    """The tokenizer of the models that were trained on this book, as a `ChatTokenizer`."""

    tokenizer: Tokenizer

    @property
    def stop_token_ids(self) -> tuple[int]:
        """The token that ends a turn or a text."""
        return (self.tokenizer.special_id(END),)

    @property
    def special_tokens(self) -> dict[int, str]:
        """Names of the special tokens by id."""
        return {self.tokenizer.special_id(name): name for name in self.tokenizer.special}

    def encode_prompt(self, text: str) -> list[int]:
        """Token ids of a text; in training, every text follows the end token of another."""
        return [*self.stop_token_ids, *self.tokenizer.encode(text)]

    def encode_chat(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """Token ids of a conversation, up to the token that starts the assistant's answer; `tools` are ignored."""
        return encode_chat(self.tokenizer, messages)

    def encode_answer(self, messages: Sequence[Message]) -> tuple[list[int], int]:
        """Token ids of a conversation that ends with the assistant's answer, and how many of them precede it."""
        prompt = self.encode_chat(messages[:-1])
        return [*prompt, *self.tokenizer.encode(messages[-1].content), *self.stop_token_ids], len(prompt)

    def token_bytes(self, token: int) -> bytes:
        """Bytes of a token, none for a special one; InputError for an id outside the vocabulary."""
        return self.tokenizer.token_bytes(token)


def encode_turn(tokenizer: Tokenizer, message: Message) -> list[int]:
    """Token ids of one turn, from the token of its role to the one that ends it."""
    start, end = tokenizer.special_id(ROLES[message.role]), tokenizer.special_id(END)
    return [start, *tokenizer.encode(message.content), end]
