"""Training data of the command line: texts or conversations as token ids, a tenth of them held out for validation.

Letters: D tokens of a text, S sequences, T tokens of a sequence.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from mlsys_lab.errors import InputError
from mlsys_lab.inference.text import ChatTokenizer, Message
from mlsys_lab.models.training import Tokens
from mlsys_lab.parallel.train.sequences import IGNORED, Sequences
from mlsys_lab.scaling.text import BLOCK, HELD_OUT

MAX_VALIDATION = 256
"""Largest number of held-out sequences whose loss is computed."""
Item = TypeVar("Item")
Encoded = tuple[list[int], list[bool]]
"""Token ids of a conversation, and which of them are targets."""


@dataclass(frozen=True)
class Dataset:
    """What a run trains on, and the sequences held out, with the bytes of the text of their targets."""

    train: Tokens | Sequences
    validation: Sequences
    validation_bytes: int

    def describe(self) -> str:
        """Size of the training data, for a line of the log."""
        if isinstance(self.train, Sequences):
            return f"{len(self.train):,} conversations with {self.train.num_targets:,} tokens to learn"
        return f"{len(self.train):,} tokens of text"

    def bits_per_byte(self, loss: float) -> float:
        """Validation loss in nats per token -> bits per byte of text, which compares models across tokenizers."""
        return loss * self.validation.num_targets / (math.log(2) * max(self.validation_bytes, 1))


def text_dataset(tokenizer: ChatTokenizer, documents: Sequence[str], seq_len: int) -> Dataset:
    """Encode documents one after the other, each between the tokens that start and end a text, and hold out blocks.

    Every tenth block of up to 1024 tokens is held out, so that both parts are of the whole text. Raises InputError for
    less text than ten sequences.
    """
    ids = np.array([token for text in documents for token in _encode_document(tokenizer, text)], dtype=np.int64)
    block = max(seq_len + 1, min(BLOCK, len(ids) // (2 * HELD_OUT)))
    if len(ids) < HELD_OUT * block:
        raise InputError("too little text", got=f"{len(ids)} tokens", expected=f"at least {HELD_OUT * block}")
    blocks = [ids[first : first + block] for first in range(0, len(ids), block)]
    train, held_out = _split([one for one in blocks if len(one) > seq_len])
    return _make_dataset(tokenizer, np.concatenate(train), Sequences.from_texts(held_out, seq_len))


def chat_dataset(
    tokenizer: ChatTokenizer, conversations: Sequence[Sequence[Message]], seq_len: int, log: Callable[[str], object]
) -> Dataset:
    """Conversations, each padded to a sequence of its own, whose targets are the assistant's tokens; a tenth held out.

    A conversation longer than T + 1 tokens is cut, and left out if no token of the assistant remains; `log` is called
    with a line that says how many. Raises InputError for fewer than two conversations.
    """
    fitting: list[list[Encoded]] = []  # sequences of each conversation
    num_cut = 0
    for number, messages in enumerate(conversations, start=1):
        try:
            encoded = list(encode_conversation(tokenizer, messages))
        except InputError as problem:
            raise InputError(f"conversation {number}: {problem}") from None
        num_cut += any(len(ids) > seq_len + 1 for ids, _ in encoded)
        if with_targets := [one for one in encoded if any(one[1][1 : seq_len + 1])]:
            fitting.append(with_targets)
    if num_cut:
        log(f"{num_cut} of {len(conversations)} conversations are longer than {seq_len} tokens and were cut")
    if len(fitting) < 2:
        got = f"{len(fitting)} with a token of the assistant in the first {seq_len + 1}"
        raise InputError("too few conversations", got=got, expected="at least 2", help="set --seq-len")
    train, held_out = (_pad([sequence for one in part for sequence in one], seq_len) for part in _split(fitting))
    return _make_dataset(tokenizer, train, held_out)


def encode_conversation(tokenizer: ChatTokenizer, messages: Sequence[Message]) -> Iterator[Encoded]:
    """Token ids of a conversation, and which of them the assistant generates, the token that ends an answer included.

    Each answer follows the prompt that a server would make of the messages before it. If a chat template renders
    earlier turns in another way later on (some remove reasoning), the conversation is several sequences, each with the
    answers that follow the same rendering.
    """
    ids: list[int] = []
    is_target: list[bool] = []
    for number, message in enumerate(messages, start=1):
        if message.role == "assistant":
            longer, num_prompt = tokenizer.encode_answer(messages[:number])
            if longer[: len(ids)] != ids:
                yield ids, is_target
                is_target = []
            stops = (i + 1 for i in range(num_prompt, len(longer)) if longer[i] in tokenizer.stop_token_ids)
            end = next(stops, len(longer))
            ids, is_target = longer, is_target + [num_prompt <= i < end for i in range(len(is_target), len(longer))]
    if ids:
        yield ids, is_target


def read_documents(path: Path) -> list[str]:
    """Texts of a file: of a .jsonl the field "text" of each line, of any other file its content."""
    if path.suffix == ".jsonl":
        return [_field(record, "text", str, where) for where, record in _read_jsonl(path)]
    return [_read(path)]


def read_conversations(path: Path) -> list[list[Message]]:
    """Conversations of a .jsonl file whose lines are {"messages": [{"role": ..., "content": ...}, ...]}."""
    return [
        [
            Message(_field(turn, "role", str, where), _field(turn, "content", str, where))
            for turn in _field(record, "messages", list, where)
        ]
        for where, record in _read_jsonl(path)
    ]


def _make_dataset(tokenizer: ChatTokenizer, train: Tokens | Sequences, held_out: Sequences) -> Dataset:
    """Take at most MAX_VALIDATION of the sequences held out, evenly spread, and count the bytes of their targets."""
    rows = np.linspace(0, len(held_out) - 1, min(len(held_out), MAX_VALIDATION)).astype(int)
    validation = Sequences(held_out.inputs[rows], held_out.targets[rows])
    counted, times = np.unique(validation.targets[validation.targets != IGNORED], return_counts=True)
    num_bytes = sum(len(tokenizer.token_bytes(int(one))) * int(n) for one, n in zip(counted, times, strict=True))
    return Dataset(train, validation, num_bytes)


def _encode_document(tokenizer: ChatTokenizer, text: str) -> list[int]:
    ids = tokenizer.encode_prompt(text)
    stops = tokenizer.stop_token_ids
    is_separated = not stops or ids[:1] == [stops[0]]  # every text follows the end token of another
    return ids if is_separated else [*ids, stops[0]]


def _split(items: Sequence[Item]) -> tuple[list[Item], list[Item]]:
    """Training part and held-out tenth; of fewer than ten items, one is held out."""
    period = min(HELD_OUT, len(items))
    held_out = [number % period == period // 2 for number in range(len(items))]
    train, validation = ([one for one, out in zip(items, held_out, strict=True) if out == which] for which in (0, 1))
    return train, validation


def _pad(encoded: Sequence[Encoded], seq_len: int) -> Sequences:
    padded = Sequences(
        np.zeros((len(encoded), seq_len), dtype=np.int64), np.full((len(encoded), seq_len), IGNORED, dtype=np.int64)
    )
    for row, (ids, is_target) in enumerate(encoded):
        inputs, targets = np.array(ids[:seq_len]), np.array(ids[1 : seq_len + 1])
        padded.inputs[row, : len(inputs)] = inputs
        padded.targets[row, : len(targets)] = np.where(is_target[1 : seq_len + 1], targets, IGNORED)
    return padded


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as problem:
        raise InputError(f"cannot read {path}", got=problem.strerror, expected="a text file") from None
    except UnicodeDecodeError as problem:
        raise InputError(f"{path} is not UTF-8", got=f"byte {problem.object[problem.start]:#04x}") from None


def _read_jsonl(path: Path) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(_read(path).split("\n"), start=1):
        if line.strip():
            where = f"{path}:{number}"
            try:
                yield where, json.loads(line)
            except (ValueError, RecursionError) as problem:
                raise InputError(f"{where} is not JSON", got=problem, expected="one object per line") from None


def _field(record: Any, name: str, kind: type[Item], where: str) -> Item:
    value = record.get(name) if isinstance(record, dict) else None
    if not isinstance(value, kind):
        raise InputError(f"{where} has no {name!r}", got=json.dumps(record)[:60], expected=f"an object with {name!r}")
    return value
