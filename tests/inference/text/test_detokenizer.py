"""Stop strings are found wherever tokens cut them, and nothing of them is ever shown."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from mlsys_lab.errors import InputError
from mlsys_lab.inference.engine import Request, SamplingParams
from mlsys_lab.inference.engine.sequence import GenerationState, SampledToken
from mlsys_lab.inference.generate import generate
from mlsys_lab.inference.speculative import ModelDrafter, speculate
from mlsys_lab.inference.text import Detokenizer, StopStrings
from tests.inference.making import build, draw

WORDS = ("", "a", "b", "ab", "ba", "aab", "c ", "##", "#", "é", "n\n", "abc", "\n")
"""Text of the tokens 0 to 12 of the small models; the first has none of its own."""


class Words:
    """An incremental decoder of one text."""

    def add(self, token):
        return WORDS[token]

    def end(self):
        return ""


class Halves(Words):
    """A decoder that shows of a token what the one before completes, and the rest at the end."""

    def __init__(self):
        self.waiting = ""

    def add(self, token):
        shown, self.waiting = self.waiting, WORDS[token]
        return shown

    def end(self):
        return self.waiting


TEXTS = st.text("ab#", max_size=12)
STOPS = st.lists(st.text("ab#", min_size=1, max_size=4), min_size=1, max_size=3)


def before(text, stops):
    """What stands before the first stop string to be complete, of several the one that begins first."""
    for end in range(1, len(text) + 1):
        places = [place for stop in stops if (place := text[:end].find(stop)) >= 0]
        if places:
            return text[: min(places)]
    return None


@given(st.lists(TEXTS, max_size=6), STOPS)
@example(["xabcdy"], ["abcd", "bc"])
@example(["xab", "cdy"], ["abcd", "bc"])
@example(["abab"], ["bab", "abab", "ba"])
def test_several_stop_strings_cut_the_text_at_one_place_wherever_tokens_do(pieces, stops):
    search, shown = StopStrings(stops), ""
    for piece in pieces:
        shown += search.add(piece)
        if search.found:
            break
    expected = before("".join(pieces), stops)
    assert search.found == (expected is not None)
    assert shown + search.end() == ("".join(pieces) if expected is None else expected)


@given(st.lists(TEXTS, max_size=6), STOPS)
def test_pieces_are_cut_where_the_whole_text_is(pieces, stops):
    search, shown = StopStrings(stops), ""
    for letter in "".join(pieces):
        shown += search.add(letter)
        if search.found:
            break
    expected = before("".join(pieces), stops)
    assert search.found == (expected is not None)
    assert shown + search.end() == ("".join(pieces) if expected is None else expected)


@given(st.lists(TEXTS, max_size=6), STOPS)
def test_no_more_is_held_back_than_may_become_a_stop_string(pieces, stops):
    search, came, shown = StopStrings(stops), "", ""
    for piece in pieces:
        came, shown = came + piece, shown + search.add(piece)
        if search.found:
            assert not any(stop in shown for stop in stops)
            return
        held = came[len(shown) :]
        assert came.startswith(shown) and (not held or any(stop.startswith(held) for stop in stops))
        longer = [came[-n:] for n in range(len(held) + 1, len(came) + 1)]
        assert not any(stop.startswith(end) for stop in stops for end in longer)


def with_text(stop_strings=(), stream=Words):
    return lambda: Detokenizer(stream(), stop_strings)


def written(tokens, detokenizer, **options):
    request = Request([1], len(tokens), make_detokenizer=detokenizer, **options)
    state = GenerationState(request, torch.Generator())
    for at, token in enumerate(tokens):
        assert state.completion is None
        state.append(SampledToken(token, -float(at)))
        if state.completion:
            break
    return state.completion


@pytest.mark.parametrize(
    ("tokens", "stops", "text", "kept"),
    [
        ([3, 1, 6, 2], ["ac"], "ab", 1),  # "ab", "a", "c ": across two tokens
        ([3, 4, 6], ["bb"], "a", 1),  # from within the first token
        ([5, 1], ["aab"], "", 0),  # a whole token
        ([6, 5, 2], ["ab"], "c a", 2),  # the token that it begins in is kept
        ([8, 8, 1], ["##"], "", 0),
        ([3, 10, 1], ["\n", "n\n"], "ab", 1),  # both are complete at once: the one that begins first
        ([0, 0, 3, 6], ["c"], "ab", 3),
        ([9, 0, 12], ["\n"], "é", 1),
    ],
)
def test_texts_end_before_the_string(tokens, stops, text, kept):
    got = written(tokens, with_text(stops))
    assert (got.text, got.token_ids, got.finish_reason) == (text, tuple(tokens[:kept]), "stop")
    assert got.logprobs == tuple(-float(at) for at in range(kept))


def test_texts_without_one_are_whole():
    for stream in (Words, Halves):
        got = written([3, 8, 9], with_text(["##", "zz"], stream))
        assert (got.text, got.token_ids, got.finish_reason) == ("ab#é", (3, 8, 9), "length")
    assert written([3, 8], None).text is None


def test_a_string_that_ends_in_the_last_token_stops():
    got = written([3, 6], with_text(["bc"]))
    assert (got.text, got.finish_reason) == ("a", "stop")


def test_stop_tokens_cut_the_text_too():
    got = written([3, 8, 2, 9], with_text(["#bc"]), stop_token_sequences=[[8, 2]])
    assert (got.text, got.token_ids, got.finish_reason) == ("ab", (3,), "stop")


def test_generated_and_drafted_texts_stop_alike():
    model, greedy = build(), SamplingParams(temperature=0)
    free = generate(model, [Request(draw(4), 15, greedy, make_detokenizer=with_text())])[0][0]
    assert free.text == "".join(WORDS[token] for token in free.token_ids) and len(free.text) > 9
    for first in range(0, len(free.text) - 3, 3):
        stop = free.text[first : first + 3]
        request = Request(draw(4), 15, greedy, make_detokenizer=with_text([stop]))
        (got,) = generate(model, [request])[0]
        assert got.text == before(free.text, [stop]) and got.finish_reason == "stop"
        assert got.token_ids == free.token_ids[: len(got.token_ids)]
        drafted = speculate(model, request, ModelDrafter(model), num_speculative_tokens=5).completion
        assert (drafted.token_ids, drafted.text) == (got.token_ids, got.text)


def test_each_of_several_texts_has_a_stream_of_its_own():
    request = Request(draw(4), 9, SamplingParams(seed=1), n=3, make_detokenizer=with_text(stream=Halves))
    for one in generate(build(), [request])[0]:
        assert one.text == "".join(WORDS[token] for token in one.token_ids)


@pytest.mark.parametrize(
    ("stop_strings", "words"),
    [
        ([""], r"stop strings: got \[''\], expected a list of strings, none"),
        ("###", "stop strings: got '###', expected a list of strings"),
        ([3], r"stop strings: got \[3\]"),
    ],
)
def test_stop_strings_that_cannot_be(stop_strings, words):
    with pytest.raises(InputError, match=words) as refused:
        Detokenizer(Words(), stop_strings)
    assert "\n" not in str(refused.value)
