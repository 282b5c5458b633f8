"""Any schedule, drawn: no page is lost or held twice, nobody starves, every sequence ends with its own tokens."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlsys_lab.errors import InputError
from mlsys_lab.inference.cache import PageTables
from mlsys_lab.inference.engine import Batch, Limits, Scheduler, Sequence
from tests.sampling import keep

SCHEDULES = {"some": 300, "many": 10_000}


def following(tokens: list[int]) -> int:
    """The token that a model without memory writes after a text: it hangs on all of it."""
    return (7 * sum((place + 1) * token for place, token in enumerate(tokens)) + len(tokens)) % 5


class Pages:
    """A model's memory, as exact as can be: what lies in each slot is the text up to its token."""

    def __init__(self, tables: PageTables) -> None:
        self.tables = tables
        self.slots: dict[tuple[int, int], tuple[int, ...]] = {}

    def run(self, batch: Batch) -> None:
        """Move, write and commit; every token that is fed must find all those before it where the tables say."""
        page = self.tables.page
        for saved in batch.saves:
            saved.contents = [self.slots[saved.pages[i // page], i % page] for i in range(saved.length)]
        for old, new in batch.copies:
            self.slots |= {(new, i): self.slots[old, i] for i in range(page) if (old, i) in self.slots}
        for number, first, end, saved in batch.restores:
            table = self.tables.table(number)
            self.slots |= {(table[i // page], i % page): saved.contents[i] for i in range(first, end)}
        for number, new_tokens in batch.new.items():
            table, length = self.tables.table(number), self.tables.length(number)
            text = self.slots[table[(length - 1) // page], (length - 1) % page] if length else ()
            assert all(self.slots[table[i // page], i % page] == text[: i + 1] for i in range(length))
            for i, token in enumerate(new_tokens, start=length):
                text = (*text, token)
                self.slots[table[i // page], i % page] = text
        self.tables.commit(batch.new)


class World:
    """A scheduler at work on requests that come, are given up and end; everything is looked at after every step."""

    def __init__(self, pages: int, page: int, limits: Limits, seed: int) -> None:
        self.tables = PageTables(pages, page)
        self.scheduler, self.memory, self.seed = Scheduler(self.tables, limits), Pages(self.tables), seed
        self.asked: dict[Sequence, list[int]] = {}
        self.seen: Counter[str] = Counter()

    def add(self, prompt: list[int], max_tokens: int, priority: int) -> None:
        try:
            self.asked[self.scheduler.add(prompt, max_tokens, priority=priority)] = prompt
        except InputError as refused:
            assert "the text can outgrow the cache" in str(refused)
            assert self.tables.pages(len(prompt) + max_tokens - 1) > len(self.tables.blocks.references)

    def step(self) -> None:
        scheduler, limits = self.scheduler, self.scheduler.limits
        for sequence in scheduler.running:
            guess, sequence.drafts = list(sequence.tokens), []
            for place in range((self.seed + len(guess)) % 4):  # right, but for every third
                guess.append((following(guess) + (place % 3 == 2)) % 5)
                sequence.drafts.append(guess[-1])
        waiting = list(scheduler.waiting)
        batch = scheduler.schedule()
        assert batch.tokens <= limits.tokens and batch.left == limits.tokens - batch.tokens
        assert len(scheduler.running) <= limits.sequences and 0 <= scheduler.host_pages <= limits.host_pages
        assert bool(batch.new) or scheduler.idle
        admitted = [sequence.rank for sequence in waiting if sequence in scheduler.running]
        assert all(sequence.rank > max(admitted, default=(-1e9, 0)) for sequence in scheduler.waiting)
        lowest = min([*scheduler.running, *scheduler.waiting], key=lambda one: one.rank, default=None)
        assert lowest is None or lowest.number in batch.new, "the lowest rank goes on in every step"
        self.seen["preempted"] += len(batch.preempted)
        self.seen["saved"] += len(batch.saves)
        self.seen["restored"] += len(batch.restores)
        self.memory.run(batch)
        for sequence in batch.writers:
            accepted: list[int] = []
            for draft in [*sequence.drafts, None]:
                accepted.append(following(sequence.tokens + accepted))
                if accepted[-1] != draft:
                    break
            scheduler.write(sequence, accepted)
            if len(sequence.tokens) == sequence.most:
                self.end(sequence)
        self.look()

    def end(self, sequence: Sequence) -> None:
        self.scheduler.finish(sequence)
        expected = list(self.asked.pop(sequence))
        while len(expected) < len(sequence.tokens):
            expected.append(following(expected))
        self.seen["hit"] += sequence.hits > 0
        assert sequence.tokens == expected and len(expected) <= sequence.most

    def give_up(self, sequence: Sequence) -> None:
        self.scheduler.finish(sequence)
        del self.asked[sequence]
        self.look()

    def look(self) -> None:
        """Every page is held by as many tables as it has references; no sequence is in two places, or in none."""
        scheduler, tables = self.scheduler, self.tables
        held = Counter(page for number in tables.sequences for page in set(tables.table(number)))
        assert [held[page] for page in range(len(tables.blocks.references))] == tables.blocks.references
        assert tables.blocks.used == sum(map(bool, tables.blocks.references))
        assert {sequence.number for sequence in scheduler.running} == set(tables.sequences)
        assert set(scheduler.running) | set(scheduler.waiting) == set(self.asked)
        assert not set(scheduler.running) & set(scheduler.waiting)
        assert all(sequence.number is None for sequence in scheduler.waiting)
        saved = [len(sequence.saved.pages) for sequence in scheduler.waiting if sequence.saved]
        assert scheduler.host_pages == sum(saved) and not any(sequence.saved for sequence in scheduler.running)


BEGINNINGS = ([1, 2, 3, 4, 0, 1, 2, 3, 4], [1, 2, 3, 3, 3, 3], [0] * 7, [2])


def draw_limits(random: Random) -> Limits:
    sequences, host = random.randint(1, 5), random.choice([0, 3, 20])
    return Limits(
        sequences,
        tokens=sequences + random.randint(0, 8),
        preemption="swap" if host else "recompute",
        host_pages=host,
        patience=random.choice([0, 3, 50]),
        prefix_caching=random.random() < 0.8,
    )


def play(random: Random) -> World:
    """Requests that begin alike come, some are given up, in a pool with room for few, until all have ended."""
    pages, page = random.randint(2, 12), random.randint(1, 4)
    world = World(pages, page, draw_limits(random), seed=random.randint(0, 3))
    for _ in range(random.randint(2, 9)):
        prompt = random.choice(BEGINNINGS)[: random.randint(1, 9)] + random.choices(range(5), k=random.randint(0, 2))
        world.add(prompt, random.randint(1, 12), priority=random.choice([0, 0, 0, 1, -1]))
        if world.asked and random.random() < 0.1:
            world.give_up(random.choice([*world.asked]))
        for _ in range(random.choice([0, 0, 1, 2, 5])):
            world.step()
    for _ in range(20 * sum(sequence.most for sequence in world.asked)):
        if world.scheduler.idle:
            break
        world.step()
    assert world.scheduler.idle and not world.asked, "every request ends"
    assert world.tables.blocks.available == pages and world.scheduler.host_pages == 0
    return world


@pytest.mark.parametrize("schedules", keep([*SCHEDULES], ["some"]))
def test_any_schedule(schedules: str) -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=SCHEDULES[schedules], derandomize=schedules == "some", database=None)
    @given(st.integers(0, 2**40))
    def check(seed: int) -> None:
        seen.update(play(Random(seed)).seen)

    check()
    assert min(seen[kind] for kind in ("preempted", "saved", "restored", "hit")) > SCHEDULES[schedules] / 20


def step(scheduler: Scheduler) -> Batch:
    """A step in which every writer writes a 0 and nobody ends."""
    batch = scheduler.schedule()
    scheduler.tables.commit(batch.new)
    for sequence in batch.writers:
        scheduler.write(sequence, [0])
    return batch


def test_prompts_are_read_in_chunks_beside_those_who_write() -> None:
    scheduler = Scheduler(PageTables(40, 4), Limits(sequences=3, tokens=6))
    first = scheduler.add([1, 2], 9)
    step(scheduler)
    long, last = scheduler.add([2] * 12, 9), scheduler.add([3] * 4, 9)
    sizes = [[len(tokens) for tokens in step(scheduler).new.values()] for _ in range(4)]
    assert sizes == [[1, 5], [1, 5], [1, 2, 3], [1, 1, 1]]
    assert [len(one.tokens) for one in (first, long, last)] == [7, 14, 5]


def test_nobody_who_was_preempted_comes_back_in_the_same_step() -> None:
    """Both outgrow their pages at once: the second gives way, and the room that it left would do for it again."""
    scheduler = Scheduler(PageTables(5, 2), Limits(sequences=2, tokens=8))
    first, second = scheduler.add([1, 1], 8), scheduler.add([2] * 4, 6)
    batches = [step(scheduler) for _ in range(2)]
    assert not batches[1].preempted
    while not batches[-1].preempted:
        batches.append(step(scheduler))
    assert batches[-1].preempted == [second] and second in scheduler.waiting and first in scheduler.running


def test_who_is_admitted_leaves_a_page_for_each_that_runs() -> None:
    scheduler = Scheduler(PageTables(5, 2), Limits(sequences=4, tokens=20))
    scheduler.add([1, 1], 6)
    scheduler.add([2] * 6, 2)
    scheduler.add([3], 1)
    step(scheduler)
    assert len(scheduler.running) == 2, "one page is left, and two run"
    assert scheduler.tables.blocks.available == 1


def test_priority_is_worth_so_many_steps_of_waiting() -> None:
    scheduler = Scheduler(PageTables(40, 4), Limits(sequences=1, tokens=4, patience=3))
    running = scheduler.add([1], 20)
    step(scheduler)
    urgent = scheduler.add([2], 20, priority=1)
    batch = step(scheduler)
    assert batch.preempted == [running] and scheduler.running == [urgent]
    for _ in range(6):
        step(scheduler)
    late = scheduler.add([3], 20, priority=1)
    assert scheduler.waiting == [running, late], "it has waited for longer than priority is worth"


def test_who_shares_a_page_that_drafts_have_left_keeps_it_as_it_is() -> None:
    """A prompt is found in a page of drafts that were not accepted; its owner writes on, into a copy."""
    memory = Pages(PageTables(12, 4))
    scheduler = Scheduler(memory.tables, Limits(sequences=2, tokens=12, patience=9))
    owner = scheduler.add([1, 2], 9)
    for drafts, accepted in (([], [3]), ([4, 0], [0])):
        owner.drafts = drafts
        batch = scheduler.schedule()
        memory.run(batch)
        scheduler.write(owner, accepted)
    sharer = scheduler.add([1, 2, 3, 4, 1], 5, priority=1)
    batch = scheduler.schedule()
    assert sharer.hits == 4 and len(batch.copies) == 1
    memory.run(batch)
    scheduler.write(sharer, [0])
    scheduler.write(owner, [0])
    memory.run(scheduler.schedule())
