"""Text as it comes: pieces join to the whole, and no character is ever shown in halves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsys_lab.errors import InputError
from mlsys_lab.inference.text import Stream, learn

TOKENIZER = learn("αβγ αβγ the cat the cat 日本 " * 5, 280, ("<|end|>",))


def pieces(ids):
    stream = Stream(TOKENIZER)
    return [*map(stream.add, ids), stream.end()]


@given(st.text() | st.text("aé日🙂\ufffd", max_size=20))
def test_pieces_join_to_the_text_without_a_replacement_that_it_does_not_hold(text):
    came = pieces(TOKENIZER.encode(text))
    assert "".join(came) == text and came[-1] == ""
    assert sum(piece.count("\ufffd") for piece in came) == text.count("\ufffd")


@given(st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=30))
def test_pieces_of_any_tokens_join_to_what_decode_gives(ids):
    assert "".join(pieces(ids)) == TOKENIZER.decode(ids)


def test_a_character_comes_once_it_is_whole():
    ids = list("🙂".encode())
    assert pieces(ids) == ["", "", "", "🙂", ""]
    assert pieces(ids[:3]) == ["", "", "", "\ufffd"]


def test_an_unknown_token_is_one_line():
    with pytest.raises(InputError, match=f"unknown token: got 280, expected 0 to {TOKENIZER.vocab_size - 1}"):
        Stream(TOKENIZER).add(280)
