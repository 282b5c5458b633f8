"""Byte-level byte-pair encoding (BPE): the most frequent pairs of tokens in a training text are merged.

Sennrich et al. 2016 (arXiv:1508.07909); on bytes as in GPT-2 (Radford et al. 2019, §2.2). Ids 0 to 255 are the bytes,
followed by the merges in the order in which they were learnt, and the special tokens.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np

from mlsys_lab.errors import InputError
from mlsys_lab.scaling.text import Tokens, learn_merges, merge

SPACE = r"\t-\r\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
"""Unicode white space; Python's `\\s` has four more control characters."""
PIECES = (
    rf"'(?:[sdmt]|ll|ve|re)| ?[^\W\d_{{numbers}}]+| ?[\d{{numbers}}]+| ?(?:[^\w{SPACE}]|_)+"
    rf"|[{SPACE}]+(?![^{SPACE}])|[{SPACE}]+"
)
"""GPT-2's pre-tokenization: a word, a number or punctuation, each with a preceding space; white space.

`numbers` are numerals such as ² and Ⅷ, which Python's regular expressions treat as letters.
"""
BYTES = 256
BOUNDARY = -1


@dataclass(frozen=True)
class Tokenizer:
    """Text to token ids and back; `merges` are the learnt pairs of ids, `special` the names of special tokens.

    Any text can be encoded, and decodes to itself. Special tokens decode to no text, and text is never encoded as one.
    """

    merges: tuple[tuple[int, int], ...]
    special: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for number, pair in enumerate(self.merges, start=BYTES):
            if not all(0 <= part < number for part in pair):
                raise InputError(f"token {number} merges others", got=list(pair), expected=f"two ids below {number}")
        if len(set(self.special)) < len(self.special):
            raise InputError("special tokens have one name each", got=", ".join(self.special))

    @property
    def vocab_size(self) -> int:
        """Number of tokens: bytes, merged pairs and special tokens."""
        return BYTES + len(self.merges) + len(self.special)

    def special_id(self, name: str) -> int:
        """Id of a special token; InputError for a name that is not one."""
        if name not in self.special:
            raise InputError("no such special token", got=name, expected=f"one of {', '.join(self.special)}")
        return BYTES + len(self.merges) + self.special.index(name)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; InputError if it contains a lone surrogate, which has no UTF-8 encoding."""
        ids = _split(text)
        for number, (left, right) in enumerate(self.merges, start=BYTES):
            ids = merge(ids, left, right, new=number)
        return [int(i) for i in ids[ids != BOUNDARY]]

    def decode(self, ids: Iterable[int]) -> str:
        """Text of token ids; U+FFFD for bytes that are not UTF-8. InputError for an id outside the vocabulary."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """Bytes of a token, none for a special one; InputError for an id outside the vocabulary."""
        if not 0 <= token < self.vocab_size:
            raise InputError("unknown token", got=token, expected=f"0 to {self.vocab_size - 1}")
        return self._bytes[token]

    @cached_property
    def _bytes(self) -> list[bytes]:
        table = [bytes([i]) for i in range(BYTES)]
        for left, right in self.merges:
            table.append(table[left] + table[right])
        return table + [b""] * len(self.special)

    def save(self, path: Path) -> None:
        """Write the tokenizer as JSON."""
        document = {"special": self.special, "merges": self.merges}
        path.write_text(json.dumps(document, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Read a tokenizer that `save` wrote; InputError for any other file."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            merges = tuple((int(left), int(right)) for left, right in document["merges"])
            return cls(merges, tuple(map(str, document["special"])))
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as problem:
            got = " ".join(f"{type(problem).__name__}: {problem}".split())
            raise InputError(f"{path} is no tokenizer", got=got, expected="JSON with merges and special") from None


def learn(
    text: str,
    vocab_size: int,
    special: Sequence[str] = (),
    *,
    ties: Literal["lowest ids", "greatest bytes"] = "lowest ids",
) -> Tokenizer:
    """Train a tokenizer of up to `vocab_size` tokens on a text; fewer if no pair occurs twice.

    Of equally frequent pairs, the one with the lowest ids is merged, as in the library `tokenizers`; or the one whose
    tokens have the greatest bytes, as in Stanford CS336. InputError if `vocab_size` is below the number of bytes and
    special tokens.
    """
    minimum = BYTES + len(special)
    if vocab_size < minimum:
        raise InputError("vocabulary too small", got=vocab_size, expected=f"at least {minimum}")
    choose = _take_greatest_bytes() if ties == "greatest bytes" else min
    merges, _ = learn_merges(_split(text), BYTES, vocab_size - len(special), choose)
    return Tokenizer(tuple(merges), tuple(special))


def _take_greatest_bytes() -> Callable[[list[tuple[int, int]]], tuple[int, int]]:
    """Make a function that chooses the pair with the greatest bytes at each merge."""
    table = [bytes([i]) for i in range(BYTES)]

    def choose(pairs: list[tuple[int, int]]) -> tuple[int, int]:
        left, right = max(pairs, key=lambda pair: (table[pair[0]], table[pair[1]]))
        table.append(table[left] + table[right])
        return left, right

    return choose


def cut(text: str) -> list[str]:
    """Pre-tokenize a text: split it into pieces, which no token spans.

    >>> cut("It's 2x² at Ⅷ.")
    ['It', "'s", ' 2', 'x', '²', ' at', ' Ⅷ', '.']
    """
    numbers = sorted(c for c in set(text) if unicodedata.category(c) in ("Nl", "No"))
    return re.findall(PIECES.format(numbers="".join(numbers)), text)


def _split(text: str) -> Tokens:
    """Bytes of a text as ids, with a boundary after each piece."""
    try:
        pieces = [piece.encode() for piece in cut(text)]
    except UnicodeEncodeError as problem:
        half = problem.object[problem.start]
        raise InputError("the text holds half a character", got=ascii(half), expected="text in UTF-8") from None
    return np.array([*chain.from_iterable([*piece, BOUNDARY] for piece in pieces)], dtype=np.int64)
