"""Byte pairs: any text comes back, merges are those of the library `tokenizers`, bad files and ids are one line."""

import unicodedata
from collections import Counter
from itertools import pairwise

import pytest
import regex
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import models, pre_tokenizers

from mlsys_lab.errors import InputError
from mlsys_lab.inference.text import Tokenizer, learn
from mlsys_lab.inference.text.tokenizer import BYTES, cut
from mlsys_lab.scaling import course_text

TEXT = course_text()
SMALL = learn(TEXT[:20_000] + "αβγ αβγ 日本 日本 " * 5, 400, ("<|end|>", "<|user|>"))
ANY = st.text() | st.text("ab \n'sαé日🙂0_", max_size=40)


def library(tokenizer: Tokenizer, split: bool) -> Library:
    """The library's tokenizer with our merges, written in the characters that it has for bytes; pieces cut or given."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(BYTES) if byte not in printable]
    characters = {byte: chr(byte) for byte in printable} | {byte: chr(BYTES + i) for i, byte in enumerate(others)}
    names = ["".join(characters[b] for b in tokenizer.token_bytes(i)) for i in range(BYTES + len(tokenizer.merges))]
    vocabulary = {name: i for i, name in enumerate(names)}
    assert len(vocabulary) == len(names)
    built = Library(models.BPE(vocab=vocabulary, merges=[(names[a], names[b]) for a, b in tokenizer.merges]))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split)
    return built


OF_PIECES, OF_TEXT = library(SMALL, split=False), library(SMALL, split=True)


@given(ANY)
def test_any_text_comes_back(text):
    ids = SMALL.encode(text)
    assert SMALL.decode(ids) == text
    assert all(0 <= i < SMALL.vocab_size - len(SMALL.special) for i in ids)


@given(ANY)
def test_pieces_are_the_whole_text_and_encoded_as_the_library_encodes_them(text):
    pieces = cut(text)
    assert "".join(pieces) == text
    assert SMALL.encode(text) == (OF_PIECES.encode(pieces, is_pretokenized=True).ids if pieces else [])


def test_the_book_is_cut_and_encoded_as_the_library_does_it():
    assert SMALL.encode(TEXT) == OF_TEXT.encode(TEXT).ids


def greatest(words):
    """Of the pairs of bytes that occur most often, the greatest."""
    counted = Counter(pair for word in words for pair in pairwise(word))
    return max(counted, key=lambda pair: (counted[pair], pair))


def lowest_ids(ids):
    """Of the pairs of bytes that occur most often, that of lowest ids."""

    def choose(words):
        counted = Counter(pair for word in words for pair in pairwise(word))
        return min(counted, key=lambda pair: (-counted[pair], ids[pair[0]], ids[pair[1]]))

    return choose


@pytest.mark.parametrize("ties", ["lowest ids", "greatest bytes"])
def test_merges_are_those_of_a_plain_loop_over_bytes(ties):
    text = TEXT[1000:2500]
    words, merges = [[bytes([b]) for b in piece.encode()] for piece in cut(text)], []
    ids = {bytes([b]): b for b in range(BYTES)}
    choose = greatest if ties == "greatest bytes" else lowest_ids(ids)
    while len(merges) < 60:
        left, right = choose(words)
        ids[left + right] = BYTES + len(merges)
        merges.append((ids[left], ids[right]))
        merged = []
        for word in words:
            out, i = [], 0
            while i < len(word):
                together = word[i : i + 2] == [left, right]
                out.append(left + right if together else word[i])
                i += 2 if together else 1
            merged.append(out)
        words = merged
    assert list(learn(text, BYTES + 60, ties=ties).merges) == merges


def library_pieces(text):
    """Pieces as the library cuts them, by its own places in the text."""
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return [text[start:end] for _, (start, end) in split.pre_tokenize_str(text)]


MARKED = "x² 10⁹ ½cup Ⅷ. ①② 3ⅻ5 ௰ 一二 e\u0301 _a_ \x1c \x1f\x1f a\x1db \x85\xa0 \u3000x \u200b'lls it's 've"


ASSIGNED = st.characters(exclude_categories=("Cn", "Cs"))  # of others, the newer table of Unicode may know the kind


@given(st.text(ASSIGNED, max_size=30) | st.text(MARKED, max_size=20))
@example(MARKED)
def test_pieces_are_those_of_gpt_2(text):
    assert cut(text) == library_pieces(text)


def test_every_character_is_cut_as_in_gpt_2():
    known = [c for c in map(chr, range(0x110000)) if unicodedata.category(c) not in ("Cn", "Cs")]
    text = "".join(f"x{c}1{c}-{c} {c}" for c in known)
    pattern = regex.compile(r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
    assert cut(text) == pattern.findall(text)


def test_no_token_spans_two_pieces():
    tokens = [SMALL.decode([token]) for token in range(SMALL.vocab_size)]
    assert all(len(cut(text)) <= 1 for text in tokens)
    assert max(map(len, tokens)) > 3


def test_special_tokens_stand_for_no_text_and_no_text_for_them():
    end = SMALL.special_id("<|end|>")
    assert end == SMALL.vocab_size - 2 and SMALL.decode([end]) == ""
    assert end not in SMALL.encode("<|end|>") and SMALL.decode(SMALL.encode("<|end|>")) == "<|end|>"
    with pytest.raises(InputError, match=r"no such special token: got <\|x\|>, expected one of <\|end\|>, <\|user\|>"):
        SMALL.special_id("<|x|>")


@pytest.mark.parametrize("token", [-1, 400, 10**9])
def test_an_unknown_token_is_one_line(token):
    with pytest.raises(InputError, match=f"unknown token: got {token}, expected 0 to 399"):
        SMALL.decode([65, token])


def test_half_a_character_is_one_line():
    with pytest.raises(InputError, match=r"half a character: got '\\ud800', expected text in UTF-8"):
        SMALL.encode("a\ud800b")


def test_it_is_saved_and_read(tmp_path):
    SMALL.save(tmp_path / "tokenizer.json")
    assert Tokenizer.load(tmp_path / "tokenizer.json") == SMALL


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"merges": [[1]], "special": []}', '{"merges": [[1, 300]], "special": []}', "\xff"]
)
def test_a_damaged_file_is_one_line(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(InputError) as caught:
        Tokenizer.load(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_one_line(tmp_path):
    with pytest.raises(InputError, match="is no tokenizer: got FileNotFoundError"):
        Tokenizer.load(tmp_path / "tokenizer.json")


def test_a_vocabulary_without_room_and_names_twice_are_one_line():
    with pytest.raises(InputError, match="vocabulary too small: got 256, expected at least 257"):
        learn("a", 256, ("<|end|>",))
    with pytest.raises(InputError, match="special tokens have one name each: got a, a"):
        Tokenizer((), ("a", "a"))
    assert learn("abc", 1000).merges == ()
