"""What lies in each slot of a cache while sequences come, grow and go: states of a run, to be looked at.

The caches find the slots; no model runs, since where a token's keys and values lie does not depend on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from mlsys_lab.inference.cache.contiguous import Contiguous
from mlsys_lab.inference.cache.paged import Paged
from mlsys_lab.inference.cache.slots import StepAttention


@dataclass(frozen=True)
class Text:
    """A sequence that comes before step `arrives`: its prompt's tokens, and how many it writes before it goes."""

    name: str
    prompt: tuple[int, ...]
    writes: int
    arrives: int = 1

    @property
    def length(self) -> int:
        """Tokens of the prompt and those that are written."""
        return len(self.prompt) + self.writes

    def tokens_from(self, position: int, chunk: int) -> tuple[int, ...]:
        """Tokens of one step from this position on: up to `chunk` of the prompt, or one that is written."""
        return self.prompt[position : position + chunk] or (0,)


@dataclass(frozen=True)
class Slot:
    """A slot after a step: position of the token in it (None where there is none), by whom it is held, and seen next.

    `holders` are names of the texts that the slot is set aside for, more than one where they share it; `seen` says
    whether a next query reads it.
    """

    position: int | None
    holders: tuple[str, ...]
    seen: bool


@dataclass(frozen=True)
class Filling:
    """A cache after a step: its slots, how many are held and wasted, and each text's new tokens as (first, end).

    `shared` are tokens of texts that came before this step and found them in the cache already.
    """

    slots: tuple[Slot, ...]
    held: int
    wasted: int
    new: dict[str, tuple[int, int]]
    shared: dict[str, int]


def fillings(cache: Contiguous | Paged, slots: int, texts: Sequence[Text], *, chunk: int = 4) -> list[Filling]:
    """Feed a cache of so many slots these texts and return its state before the first step and after each.

    In a step every text gets its prompt's next `chunk` tokens, or one token that it writes; one that has written all
    goes before the next step. InputError where the cache has no room, or takes no chunk of this size.
    """
    written: dict[int, int] = {}  # by slot: the position in it
    running: dict[str, int] = {}  # by text: its number in the cache
    by_name = {text.name: text for text in texts}
    waiting = sorted(texts, key=lambda text: text.arrives)
    states = [_state(cache, slots, written, running, {}, {})]
    while waiting or running:
        for name in [name for name, number in running.items() if cache.length(number) == by_name[name].length]:
            cache.drop(running.pop(name))
        shared = {}
        while waiting and waiting[0].arrives <= len(states):
            text = waiting.pop(0)
            running[text.name] = cache.start(text.prompt)
            shared[text.name] = cache.length(running[text.name])
        new = {}
        if running:
            before = {name: cache.length(number) for name, number in running.items()}
            tokens = {running[name]: by_name[name].tokens_from(length, chunk) for name, length in before.items()}
            step = cache.prepare(tokens)
            attend = cast(StepAttention, step.attend)
            written |= zip(map(int, attend.written), step.positions[0].tolist(), strict=True)
            cache.commit(step)
            new = {name: (length, cache.length(running[name])) for name, length in before.items()}
        states.append(_state(cache, slots, written, running, new, shared))
    return states


def _state(
    cache: Contiguous | Paged,
    slots: int,
    written: dict[int, int],
    running: dict[str, int],
    new: dict[str, tuple[int, int]],
    shared: dict[str, int],
) -> Filling:
    holders: list[tuple[str, ...]] = [()] * slots
    positions: list[int | None] = [None] * slots
    seen: set[int] = set()
    for name, number in running.items():
        room, length = _room(cache, number), cache.length(number)
        for slot in room:
            holders[slot] = (*holders[slot], name)
        for slot in cache.find_slots(number, max(0, length - len(room)), length).tolist():
            positions[slot] = written[slot]
        seen |= set(cache.find_slots(number, cache.find_oldest(length), length).tolist())
    made = tuple(
        Slot(position, names, slot in seen)
        for slot, (position, names) in enumerate(zip(positions, holders, strict=True))
    )
    slot_bytes = cache.storage.slot_bytes
    return Filling(made, cache.bytes_held // slot_bytes, cache.bytes_wasted // slot_bytes, new, shared)


def _room(cache: Contiguous | Paged, number: int) -> list[int]:
    """Slots that are set aside for a sequence, filled or not."""
    size = len(cache.tables.table(number)) * cache.page if isinstance(cache, Paged) else cache.capacity
    room: list[int] = cache.find_slots(number, 0, size).tolist()
    return room
