"""Contents of a cache's slots while sequences arrive, grow and finish, for figures.

The caches allocate the slots; no model runs, because the slots do not depend on the keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlsys_lab.inference.cache.contiguous import Contiguous
from mlsys_lab.inference.cache.paged import Paged


@dataclass(frozen=True)
class Arrival:
    """A sequence that arrives before step `step`: its prompt tokens, and how many output tokens it generates."""

    name: str
    prompt: tuple[int, ...]
    num_output_tokens: int
    step: int = 1

    @property
    def length(self) -> int:
        """Number of prompt and output tokens."""
        return len(self.prompt) + self.num_output_tokens

    def tokens_from(self, position: int, chunk: int) -> tuple[int, ...]:
        """Tokens of one step from this position on: up to `chunk` of the prompt, or one output token."""
        return self.prompt[position : position + chunk] or (0,)


@dataclass(frozen=True)
class Slot:
    """A slot after a step: position of its token (None if empty), and whether the next query reads it.

    `owners` are the names of the sequences that the slot is allocated to, more than one if they share it.
    """

    position: int | None
    owners: tuple[str, ...]
    is_visible: bool


@dataclass(frozen=True)
class Filling:
    """A cache after a step: its slots, and each sequence's new tokens as positions (first, end).

    `num_cached_tokens` are the prompt tokens of newly arrived sequences that were found in the cache.
    """

    slots: tuple[Slot, ...]
    num_allocated: int
    num_wasted: int
    new_tokens: dict[str, tuple[int, int]]
    num_cached_tokens: dict[str, int]


def fillings(
    cache: Contiguous | Paged, num_slots: int, arrivals: Sequence[Arrival], *, chunk: int = 4
) -> list[Filling]:
    """Feed sequences to a cache of `num_slots` slots; returns its state before the first step and after each.

    In a step every sequence computes the next `chunk` tokens of its prompt, or one output token; a complete sequence is
    dropped before the next step. InputError if the cache has no room, or cannot take chunks of this size.
    """
    positions: dict[int, int] = {}  # by slot: the position of its token
    running: dict[str, int] = {}  # by name: the number in the cache
    by_name = {arrival.name: arrival for arrival in arrivals}
    waiting = sorted(arrivals, key=lambda arrival: arrival.step)
    states = [_state(cache, num_slots, positions, running, {}, {})]
    while waiting or running:
        for name in [name for name, number in running.items() if cache.length(number) == by_name[name].length]:
            cache.drop(running.pop(name))
        cached = {}
        while waiting and waiting[0].step <= len(states):
            arrival = waiting.pop(0)
            running[arrival.name] = cache.start(arrival.prompt)
            cached[arrival.name] = cache.length(running[arrival.name])
        new = {}
        if running:
            before = {name: cache.length(number) for name, number in running.items()}
            tokens = {running[name]: by_name[name].tokens_from(length, chunk) for name, length in before.items()}
            cache.commit(cache.prepare(tokens))
            new = {name: (length, cache.length(running[name])) for name, length in before.items()}
            for name, (first, end) in new.items():
                positions |= zip(cache.find_slots(running[name], first, end).tolist(), range(first, end), strict=True)
        states.append(_state(cache, num_slots, positions, running, new, cached))
    return states


def _state(
    cache: Contiguous | Paged,
    num_slots: int,
    positions: dict[int, int],
    running: dict[str, int],
    new: dict[str, tuple[int, int]],
    cached: dict[str, int],
) -> Filling:
    owners: list[tuple[str, ...]] = [()] * num_slots
    filled: list[int | None] = [None] * num_slots
    visible: set[int] = set()
    for name, number in running.items():
        allocated, length = _allocated_slots(cache, number), cache.length(number)
        for slot in allocated:
            owners[slot] = (*owners[slot], name)
        for slot in cache.find_slots(number, max(0, length - len(allocated)), length).tolist():
            filled[slot] = positions[slot]
        visible |= set(cache.find_slots(number, cache.model.oldest_visible(length), length).tolist())
    slots = tuple(
        Slot(position, names, slot in visible)
        for slot, (position, names) in enumerate(zip(filled, owners, strict=True))
    )
    slot_bytes = cache.kv_cache.slot_bytes
    return Filling(slots, cache.bytes_held // slot_bytes, cache.bytes_wasted // slot_bytes, new, cached)


def _allocated_slots(cache: Contiguous | Paged, number: int) -> list[int]:
    size = len(cache.block_table(number)) * cache.block_size if isinstance(cache, Paged) else cache.capacity
    slots: list[int] = cache.find_slots(number, 0, size).tolist()
    return slots
