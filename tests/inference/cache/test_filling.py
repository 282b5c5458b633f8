from __future__ import annotations

import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.inference.cache import Contiguous, Paged, SlidingWindow
from mlsys_lab.inference.cache.filling import Arrival, fillings
from tests.inference.making import build

ARRIVALS = (
    Arrival("A", tuple(range(7)), 3),
    Arrival("B", (0, 1, 2, 3, 4, 5, 9), 2, step=3),
    Arrival("C", (8,), 4, step=4),
)
SLOTS = 36


def made(kind: str) -> Contiguous | Paged:
    if kind == "window":
        return SlidingWindow(build(window=4), sequences=4, chunk=3)
    model = build()
    return Paged(model, num_blocks=12, block_size=3) if kind == "paged" else Contiguous(model, sequences=3, capacity=12)


@pytest.mark.parametrize("kind", ["contiguous", "paged", "window"])
def test_slots_add_up_to_what_the_cache_says(kind: str) -> None:
    states = fillings(made(kind), SLOTS, ARRIVALS, chunk=3)
    for state in states:
        assert sum(bool(slot.owners) for slot in state.slots) == state.num_allocated
        assert sum(slot.is_visible for slot in state.slots) == state.num_allocated - state.num_wasted
        assert all(slot.position is not None for slot in state.slots if slot.is_visible)
        assert all(slot.owners for slot in state.slots if slot.position is not None)
    assert states[0].num_allocated == states[-1].num_allocated == 0 and states[-1].new_tokens == {}


@pytest.mark.parametrize("kind", ["contiguous", "paged", "window"])
def test_every_text_gets_each_of_its_tokens_once(kind: str) -> None:
    states = fillings(made(kind), SLOTS, ARRIVALS, chunk=3)
    for one in ARRIVALS:
        first = next(number for number, state in enumerate(states) if one.name in state.new_tokens)
        spans = [state.new_tokens[one.name] for state in states if one.name in state.new_tokens]
        assert first == one.step and spans[0][0] == states[first].num_cached_tokens[one.name]
        assert [end for _, end in spans[:-1]] == [start for start, _ in spans[1:]] and spans[-1][1] == one.length
        assert all(end - start == 1 or end <= len(one.prompt) for start, end in spans)
        assert max(end - start for start, end in spans) <= 3


def test_a_window_sees_the_last_tokens_and_blocks_share_a_prefix() -> None:
    window = fillings(made("window"), SLOTS, ARRIVALS, chunk=3)
    for state in window:
        for one, (_, end) in state.new_tokens.items():
            seen = {slot.position for slot in state.slots if slot.is_visible and one in slot.owners}
            assert seen == set(range(max(0, end - 3), end))  # a window of 4, the next query's own token among them
    paged = fillings(made("paged"), SLOTS, ARRIVALS, chunk=3)
    assert paged[3].num_cached_tokens == {"B": 6}
    assert [slot.position for slot in paged[3].slots if slot.owners == ("A", "B")] == [0, 1, 2, 3, 4, 5]
    contiguous = fillings(made("contiguous"), SLOTS, ARRIVALS, chunk=3)
    assert contiguous[3].num_cached_tokens == {"B": 0} and not any(len(slot.owners) > 1 for slot in contiguous[3].slots)


def test_a_cache_without_room_says_so() -> None:
    with pytest.raises(InputError, match="every row of the cache is taken"):
        fillings(Contiguous(build(), sequences=2, capacity=12), 24, ARRIVALS)
