"""The book's own text as tokens: real text that is always at hand, without a download."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import mlsys_lab
from mlsys_lab.errors import InputError, MissingToolError

Tokens = NDArray[np.int64]
OTHER = "\ufffd"
"""Token that stands for every character too rare to be learnt."""
FEWEST = 8
"""How often a character must occur to be in the vocabulary."""
BLOCK = 1024
"""Tokens in a block; every tenth block is held out, so that both parts are of every chapter."""
HELD_OUT = 10


@dataclass(frozen=True)
class Corpus:
    """Text as token ids: `train` (D,) and `validation` (V,), int64; id i stands for the text `vocabulary[i]`."""

    vocabulary: tuple[str, ...]
    train: Tokens = field(repr=False)
    validation: Tokens = field(repr=False)

    def decode(self, ids: Tokens) -> str:
        """Text that a sequence of token ids stands for."""
        return "".join(self.vocabulary[i] for i in ids)


def course_text() -> str:
    """Text of all chapters, in order: from the installed package, or from the checkout that the package lies in.

    `MissingToolError` where neither holds them.
    """
    package = Path(str(mlsys_lab.__file__)).parent
    inside = package / "_chapters"
    folder = inside if inside.is_dir() else package.parent / "book" / "chapters"
    chapters = sorted(folder.glob("[0-9][0-9]-*.md"))
    if not chapters:
        raise MissingToolError("the book's text is missing", got=folder, help="install mlsys-lab again")
    return "\n".join(path.read_text(encoding="utf-8") for path in chapters)


def read_corpus(text: str | None = None, *, vocabulary_size: int = 512) -> Corpus:
    """Tokenise a text (the book's by default) in byte pairs, and hold a tenth of it out for validation.

    `InputError` for a text of fewer than 10 blocks of tokens, or fewer tokens in the vocabulary than characters.
    """
    vocabulary, ids = byte_pairs(course_text() if text is None else text, vocabulary_size)
    if len(ids) < HELD_OUT * BLOCK:
        raise InputError("too little text", got=f"{len(ids)} tokens", expected=f"at least {HELD_OUT * BLOCK}")
    held_out = (np.arange(len(ids)) // BLOCK) % HELD_OUT == HELD_OUT // 2
    return Corpus(vocabulary, ids[~held_out], ids[held_out])


def byte_pairs(text: str, vocabulary_size: int) -> tuple[tuple[str, ...], Tokens]:
    """Characters, merged again and again where the most frequent pair of neighbours stands: vocabulary and ids (D,).

    Gage 1994; for language models Sennrich et al. 2016, arXiv:1508.07909, here without a boundary at spaces. The first
    tokens are OTHER and the characters that occur FEWEST times. Stops early when no pair occurs twice.

    >>> vocabulary, ids = byte_pairs("abracadabra" * 8, 7)
    >>> vocabulary, [vocabulary[i] for i in ids[:5]]
    (('\ufffd', 'a', 'b', 'c', 'd', 'r', 'ab'), ['ab', 'r', 'a', 'c', 'a'])
    """
    counts = Counter(text)
    characters = [OTHER, *sorted(c for c, n in counts.items() if n >= FEWEST and c != OTHER)]
    if vocabulary_size < len(characters):
        raise InputError("vocabulary too small", got=vocabulary_size, expected=f"at least {len(characters)} characters")
    known = {character: i for i, character in enumerate(characters)}
    pairs, ids = learn_merges(np.array([known.get(c, 0) for c in text], dtype=np.int64), len(known), vocabulary_size)
    vocabulary = list(characters)
    for left, right in pairs:
        vocabulary.append(vocabulary[left] + vocabulary[right])
    return tuple(vocabulary), ids


def learn_merges(
    ids: Tokens,
    size: int,
    vocabulary_size: int,
    choose: Callable[[list[tuple[int, int]]], tuple[int, int]] = min,
) -> tuple[list[tuple[int, int]], Tokens]:
    """Merge the most frequent pair of neighbours, again and again: the pairs in order, and the merged ids.

    `ids` (D,) are 0 to `size` - 1; the pair that is merged first becomes id `size`, and so on until there are
    `vocabulary_size` ids. A negative id is a boundary, which no pair spans. Of the pairs that occur most often,
    `choose` takes the one to merge; by default that of lowest ids. Stops early when no pair occurs twice.

    >>> learn_merges(np.array([0, 1, 0, 1, -1, 1, 0]), 2, 4)
    ([(0, 1)], array([ 2,  2, -1,  1,  0]))
    """
    pairs: list[tuple[int, int]] = []
    while size < vocabulary_size and len(ids) > 1:
        inside = (ids[:-1] >= 0) & (ids[1:] >= 0)
        counted = np.bincount((ids[:-1] * size + ids[1:])[inside], minlength=size * size)
        if (most := counted.max()) < 2:
            break
        left, right = choose([divmod(int(pair), size) for pair in np.flatnonzero(counted == most)])
        ids = merge(ids, left, right, new=size)
        pairs.append((left, right))
        size += 1
    return pairs, ids


def merge(ids: Tokens, left: int, right: int, new: int) -> Tokens:
    """Replace each `left` that `right` follows by `new`, from the beginning on: ids (D,) -> (D or fewer,)."""
    places = np.flatnonzero((ids[:-1] == left) & (ids[1:] == right))
    if not len(places):
        return ids
    if left == right:
        places = np.array(_drop_overlaps(places.tolist()), dtype=np.int64)
    merged = ids.copy()
    merged[places] = new
    return np.delete(merged, places + 1)


def _drop_overlaps(places: Sequence[int]) -> list[int]:
    """From ascending places of a pair, leave out those that overlap the one before: of "aaa" one of two "aa"."""
    kept: list[int] = []
    for place in places:
        if not kept or place > kept[-1] + 1:
            kept.append(place)
    return kept
