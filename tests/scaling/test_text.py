"""The book's text as tokens, and from the wheel alone."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mlsys_lab
from mlsys_lab.errors import InputError, MissingToolError
from mlsys_lab.scaling import byte_pairs, course_text, read_corpus
from mlsys_lab.scaling.text import BLOCK, FEWEST, HELD_OUT, OTHER


def naive(text, size):
    """The same merges, one list at a time."""
    kept = sorted(c for c in set(text) if text.count(c) >= FEWEST)
    vocabulary = [OTHER, *kept]
    ids = [vocabulary.index(c) if c in kept else 0 for c in text]
    while len(vocabulary) < size:
        pairs = list(pairwise(ids))
        best = min(set(pairs), key=lambda pair: (-pairs.count(pair), pair), default=None)
        if best is None or pairs.count(best) < 2:
            break
        merged, i = [], 0
        while i < len(ids):
            together = tuple(ids[i : i + 2]) == best
            merged.append(len(vocabulary) if together else ids[i])
            i += 2 if together else 1
        vocabulary.append(vocabulary[best[0]] + vocabulary[best[1]])
        ids = merged
    return tuple(vocabulary), ids


@given(st.text("ab ", max_size=120), st.integers(5, 12))
def test_merges_are_those_of_a_plain_loop(text, size):
    vocabulary, ids = byte_pairs(text, size)
    assert (vocabulary, ids.tolist()) == naive(text, size)


def test_tokens_stand_for_the_text_but_for_its_rare_characters():
    text = course_text()
    corpus = read_corpus(text)
    _, ids = byte_pairs(text, 512)
    assert len(corpus.vocabulary) == 512
    decoded = corpus.decode(ids)
    assert len(decoded) == len(text)
    wrong = [a for a, b in zip(text, decoded, strict=True) if a != b]
    assert len(wrong) / len(text) < 0.005
    assert all(text.count(character) < FEWEST for character in set(wrong))


def test_a_tenth_is_held_out_in_blocks_of_every_part():
    corpus = read_corpus()
    assert len(corpus.train) > 50_000 * 0.9
    assert len(corpus.validation) / (len(corpus.train) + len(corpus.validation)) == pytest.approx(
        1 / HELD_OUT, abs=0.02
    )
    assert len(corpus.validation) >= 4 * BLOCK


def test_the_chapters_of_the_checkout_are_read_in_order():
    text = course_text()
    places = [text.index(f"# {title}") for title in ("Automatic differentiation", "Inside PyTorch")]
    assert 0 < places[0] < places[1]


def test_a_package_without_text_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(mlsys_lab, "__file__", str(tmp_path / "mlsys_lab" / "__init__.py"))
    with pytest.raises(MissingToolError, match="the book's text is missing"):
        course_text()
    (tmp_path / "mlsys_lab" / "_chapters").mkdir(parents=True)
    (tmp_path / "mlsys_lab" / "_chapters" / "01-x.md").write_text("inside the wheel")
    assert course_text() == "inside the wheel"


def test_too_little_text_is_one_line():
    with pytest.raises(InputError, match=r"too little text: got \d+ tokens, expected at least 10240"):
        read_corpus("a few words, " * 100)
    with pytest.raises(InputError, match="vocabulary too small: got 2, expected at least 3 characters"):
        byte_pairs("ab" * 100, 2)


def test_ids_are_whole_numbers_within_the_vocabulary():
    corpus = read_corpus()
    for ids in (corpus.train, corpus.validation):
        assert ids.dtype == np.int64 and ids.min() >= 0 and ids.max() < len(corpus.vocabulary)
