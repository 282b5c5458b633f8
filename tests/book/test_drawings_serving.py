"""Drawings of chapter 13 show what the scheduler, the page tables and the simulator do."""

from __future__ import annotations

import heapq
from collections import Counter
from itertools import pairwise
from random import Random

import pytest

from book.drawings.serving import ANSWERS, SLOTS, continuous_slots, static_slots
from mlsys_lab.configs import preset
from mlsys_lab.widgets.scheduler import OPENING, play
from tests.drawn import boxes, svgs, words

TONES = ("blue", "orange", "green", "violet")


def refilled(answers: list[int], slots: int) -> int:
    """Steps of slots each of which gets the next answer as soon as it is free."""
    free = [0] * slots
    for writes in answers:
        heapq.heappush(free, heapq.heappop(free) + writes)
    return max(free)


@pytest.mark.parametrize("seed", range(20))
def test_slots_write_each_answer_once_and_without_a_gap(seed: int) -> None:
    random = Random(seed)
    answers, slots = [random.randint(1, 9) for _ in range(random.randint(1, 20))], random.randint(1, 5)
    for rows in (static_slots(answers, slots), continuous_slots(answers, slots)):
        assert Counter(one for row in rows for one in row if one is not None) == dict(enumerate(answers))
        for row in rows:
            for number in {one for one in row if one is not None}:
                assert row[row.index(number) :][: answers[number]] == [number] * answers[number]
    assert len(continuous_slots(answers, slots)[0]) == refilled(answers, slots)
    longest = sum(max(answers[first : first + slots]) for first in range(0, len(answers), slots))
    assert len(static_slots(answers, slots)[0]) == longest


def test_both_kinds_of_batch_are_drawn_with_their_idle_places() -> None:
    drawn = svgs("serving.batching")
    for svg, steps in zip(drawn, (9 + 8 + 4, refilled(list(ANSWERS), SLOTS)), strict=True):
        idle = SLOTS * steps - sum(ANSWERS)
        assert words(svg) == [f"{steps} steps, {idle} of {SLOTS * steps} places idle"]
        assert len(boxes(svg, "quiet")) == idle
        assert sum(len(boxes(svg, tone)) for tone in TONES) == sum(ANSWERS)


def test_each_step_of_the_budget_holds_the_tokens_of_its_requests() -> None:
    (svg,) = svgs("serving.budget")
    fed = Counter(name for state in play(OPENING, 6) for name, count in state["new"].items() for _ in range(count))
    assert Counter(one for one in words(svg) if one in "ABCDE") == fed
    assert len(boxes(svg, "blue")) + len(boxes(svg, "orange")) == sum(fed.values()) + 2  # with the key


def test_the_tree_of_beginnings_shares_the_pages_that_lie_on_its_way() -> None:
    (svg,) = svgs("serving.prefix")
    a, b, c = ([int(page) for page in one.split()[1:]] for one in words(svg) if one.startswith("pages"))
    assert a[:4] == b[:4] and a[:2] == c[:2] and not set(a[4:]) & set(b[4:]) and not set(a[2:]) & set(c[2:])
    parts = [int(one.rpartition(" ")[2]) for one in words(svg) if ": " in one]
    system, document, *own = parts
    whole = 3 * system + 2 * document + sum(own)
    assert words(svg)[-1] == f"{sum(parts)} tokens read instead of {whole}"


def test_times_of_a_request_have_its_tokens_and_one_gap_less() -> None:
    (svg,) = svgs("serving.latency")
    tokens = boxes(svg, "green", "x")
    gaps = [after - before for before, after in pairwise(tokens)]
    assert f"{len(gaps)} × TPOT, their mean" in words(svg) and min(gaps) > 0
    assert max(gaps) > 1.5 * min(gaps), "gaps that are all alike would show nothing"


def test_what_is_sent_is_the_cache_of_a_token() -> None:
    (svg,) = svgs("serving.apart")
    config = preset("llama3-70b")
    kilobytes = 2 * 2 * config.n_layers * config.n_kv_heads * config.head_dim / 1e3
    assert f"keys and values: {kilobytes:.0f} KB a token" in words(svg)
