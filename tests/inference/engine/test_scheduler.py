"""Any schedule, drawn: no block is lost or held twice, no sequence starves, each ends with its own tokens."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlsys_lab.errors import InputError
from mlsys_lab.inference.engine import (
    BlockManager,
    Scheduler,
    SchedulerConfig,
    SchedulerOutput,
    Sequence,
    block_manager,
)
from mlsys_lab.inference.speculative.engine import SpeculativeScheduler
from mlsys_lab.inference.swap import SwapConfig, SwapOutput, SwappingScheduler
from tests.sampling import keep

SCHEDULES = {"some": 300, "many": 10_000}


def following(tokens: list[int]) -> int:
    """The token that a model without memory generates after a sequence: it depends on all of it."""
    return (7 * sum((place + 1) * token for place, token in enumerate(tokens)) + len(tokens)) % 5


class Memory:
    """A model's KV cache, as exact as can be: what a slot holds is the sequence up to its token."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.slots: dict[tuple[int, int], tuple[int, ...]] = {}

    def run(self, output: SchedulerOutput) -> None:
        """Swap, then compute; every token that is computed must find all those before it in its sequence's blocks."""
        size = self.block_size
        for swapped in output.swap_out if isinstance(output, SwapOutput) else ():
            swapped.contents = [self.slots[swapped.blocks[i // size], i % size] for i in range(swapped.num_tokens)]
        for one in output.swap_in if isinstance(output, SwapOutput) else ():
            table = one.seq.block_table
            self.slots |= {(table[i // size], i % size): one.swapped.contents[i] for i in range(one.first, one.end)}
        for seq, n in output.num_scheduled_tokens.items():
            table, length = seq.block_table, seq.num_computed_tokens
            text = self.slots[table[(length - 1) // size], (length - 1) % size] if length else ()
            assert all(self.slots[table[i // size], i % size] == text[: i + 1] for i in range(length))
            new_tokens = (seq.token_ids + output.draft_token_ids.get(seq, []))[length : length + n]
            assert len(new_tokens) == n
            for i, token in enumerate(new_tokens, start=length):
                text = (*text, token)
                self.slots[table[i // size], i % size] = text


class EveryExtra(SpeculativeScheduler, SwappingScheduler):
    """The scheduler with drafts and with swapping."""


class World:
    """A scheduler at work on requests that arrive, are aborted and finish; all is checked after every step."""

    def __init__(self, num_blocks: int, block_size: int, config: SwapConfig, seed: int) -> None:
        self.block_manager = BlockManager(num_blocks, block_size)
        self.scheduler, self.memory, self.seed = EveryExtra(self.block_manager, config), Memory(block_size), seed
        self.asked: dict[Sequence, list[int]] = {}
        self.seen: Counter[str] = Counter()

    def add(self, prompt: list[int], max_tokens: int, priority: int) -> None:
        try:
            self.asked[self.scheduler.add(prompt, max_tokens, priority=priority)] = prompt
        except InputError as refused:
            assert "the sequence can outgrow the cache" in str(refused)
            assert self.block_manager.blocks_for(len(prompt) + max_tokens - 1) > self.block_manager.pool.num_blocks

    def step(self) -> None:
        scheduler, config = self.scheduler, self.scheduler.config
        scheduler.draft_token_ids = {}
        for seq in scheduler.running:
            guess = list(seq.token_ids)
            for place in range((self.seed + len(guess)) % 4):  # right, but for every third
                guess.append((following(guess) + (place % 3 == 2)) % 5)
            scheduler.draft_token_ids[seq] = guess[len(seq.token_ids) :]
        waiting = list(scheduler.waiting)
        output = scheduler.schedule()
        assert isinstance(output, SwapOutput)
        num_tokens = output.total_num_scheduled_tokens
        assert output.remaining_token_budget == config.max_num_batched_tokens - num_tokens >= 0
        assert len(scheduler.running) <= config.max_num_seqs
        assert 0 <= scheduler.num_used_host_blocks <= scheduler.num_host_blocks
        assert bool(output.num_scheduled_tokens) or scheduler.is_idle
        admitted = [seq.sort_key for seq in waiting if seq in scheduler.running]
        assert all(seq.sort_key > max(admitted, default=(-1e9, 0)) for seq in scheduler.waiting)
        first = min([*scheduler.running, *scheduler.waiting], key=lambda seq: seq.sort_key, default=None)
        assert first is None or first in output.num_scheduled_tokens, "the first sequence continues in every step"
        self.seen["preempted"] += len(output.preempted)
        self.seen["swapped out"] += len(output.swap_out)
        self.seen["swapped in"] += len(output.swap_in)
        self.seen["drafted"] += len(output.draft_token_ids)
        self.memory.run(output)
        sampled: list[list[int]] = []
        for seq in output.sampled:
            accepted: list[int] = []
            for draft in [*output.draft_token_ids.get(seq, []), None]:
                accepted.append(following(seq.token_ids + accepted))
                if accepted[-1] != draft:
                    break
            sampled.append(accepted)
        scheduler.update_from_output(output, sampled)
        for seq in output.sampled:
            if seq.num_output_tokens == seq.max_tokens:
                self.end(seq)
        self.check()

    def end(self, sequence: Sequence) -> None:
        self.scheduler.finish(sequence)
        expected = list(self.asked.pop(sequence))
        while len(expected) < len(sequence.token_ids):
            expected.append(following(expected))
        self.seen["hit"] += sequence.num_cached_tokens > 0
        assert sequence.token_ids == expected and sequence.num_output_tokens <= sequence.max_tokens

    def abort(self, sequence: Sequence) -> None:
        self.scheduler.finish(sequence)
        del self.asked[sequence]
        self.check()

    def check(self) -> None:
        """Every block is in as many tables as it has references; each sequence either waits or runs."""
        scheduler, pool = self.scheduler, self.block_manager.pool
        held = Counter(block for seq in scheduler.running for block in set(seq.block_table))
        assert [held[block] for block in range(pool.num_blocks)] == pool.ref_cnt
        assert pool.num_used_blocks == sum(map(bool, pool.ref_cnt))
        for seq in scheduler.running:
            assert len(seq.block_table) * self.block_manager.block_size >= seq.num_computed_tokens
        assert set(scheduler.running) | set(scheduler.waiting) == set(self.asked)
        assert not set(scheduler.running) & set(scheduler.waiting)
        assert not any(seq.block_table or seq.num_computed_tokens for seq in scheduler.waiting)
        assert not set(scheduler.swapped) & set(scheduler.running)


PREFIXES = ([1, 2, 3, 4, 0, 1, 2, 3, 4], [1, 2, 3, 3, 3, 3], [0] * 7, [2])


def draw_config(random: Random) -> SwapConfig:
    max_num_seqs, num_host_blocks = random.randint(1, 5), random.choice([0, 3, 20])
    return SwapConfig(
        max_num_seqs,
        max_num_batched_tokens=max_num_seqs + random.randint(0, 8),
        num_host_blocks=num_host_blocks,
        priority_aging_steps=random.choice([0, 3, 50]),
        enable_prefix_caching=random.random() < 0.8,
    )


def play(random: Random) -> World:
    """Requests with common prefixes arrive, some are aborted, in a pool with room for few, until all have finished."""
    num_blocks, block_size = random.randint(2, 12), random.randint(1, 4)
    world = World(num_blocks, block_size, draw_config(random), seed=random.randint(0, 3))
    for _ in range(random.randint(2, 9)):
        prompt = random.choice(PREFIXES)[: random.randint(1, 9)] + random.choices(range(5), k=random.randint(0, 2))
        world.add(prompt, random.randint(1, 12), priority=random.choice([0, 0, 0, 1, -1]))
        if world.asked and random.random() < 0.1:
            world.abort(random.choice([*world.asked]))
        for _ in range(random.choice([0, 0, 1, 2, 5])):
            world.step()
    for _ in range(20 * sum(seq.num_prompt_tokens + seq.max_tokens for seq in world.asked)):
        if world.scheduler.is_idle:
            break
        world.step()
    assert world.scheduler.is_idle and not world.asked, "every request finishes"
    assert world.block_manager.pool.num_free_blocks == num_blocks and world.scheduler.num_used_host_blocks == 0
    return world


@pytest.mark.parametrize("schedules", keep([*SCHEDULES], ["some"]))
def test_any_schedule(schedules: str) -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=SCHEDULES[schedules], derandomize=schedules == "some", database=None)
    @given(st.integers(0, 2**40))
    def check(seed: int) -> None:
        seen.update(play(Random(seed)).seen)

    check()
    assert (
        min(seen[kind] for kind in ("preempted", "swapped out", "swapped in", "drafted", "hit"))
        > SCHEDULES[schedules] / 20
    )


def make_scheduler(num_blocks: int, block_size: int, *limits: int, **options: int) -> Scheduler:
    return Scheduler(BlockManager(num_blocks, block_size), SchedulerConfig(*limits, **options))


def step(scheduler: Scheduler) -> SchedulerOutput:
    """A step in which every sampled sequence gets a 0 and none finishes."""
    output = scheduler.schedule()
    scheduler.update_from_output(output, [[0]] * len(output.sampled))
    return output


def test_prompts_are_computed_in_chunks_alongside_decoding_sequences() -> None:
    scheduler = make_scheduler(40, 4, 3, 6)
    first = scheduler.add([1, 2], 9)
    step(scheduler)
    long, last = scheduler.add([2] * 12, 9), scheduler.add([3] * 4, 9)
    sizes = [list(step(scheduler).num_scheduled_tokens.values()) for _ in range(4)]
    assert sizes == [[1, 5], [1, 5], [1, 2, 3], [1, 1, 1]]
    assert [len(seq.token_ids) for seq in (first, long, last)] == [7, 14, 5]


def test_no_preempted_sequence_is_readmitted_in_the_same_step() -> None:
    """Both outgrow their blocks at once: the second is preempted, and the blocks that it freed would be enough."""
    scheduler = make_scheduler(5, 2, 2, 8)
    first, second = scheduler.add([1, 1], 8), scheduler.add([2] * 4, 6)
    outputs = [step(scheduler) for _ in range(2)]
    assert not outputs[1].preempted
    while not outputs[-1].preempted:
        outputs.append(step(scheduler))
    assert outputs[-1].preempted == [second] and second in scheduler.waiting and first in scheduler.running


@pytest.mark.parametrize(("num_blocks", "budget"), [(16, 30), (40, 3)], ids=["blocks", "budget"])
def test_no_sequence_is_preempted_for_one_that_is_not_admitted(num_blocks: int, budget: int) -> None:
    """Preempting the last sequence would free a slot, but not the blocks or the token budget that are needed too."""
    scheduler = make_scheduler(num_blocks, 2, 2, budget, priority_aging_steps=9)
    last = scheduler.add([1] * 8, 9)
    step(scheduler)
    first = scheduler.add([2] * 20, 2, priority=2)
    step(scheduler)
    refused = scheduler.add([3] * 20, 2, priority=1)
    assert not step(scheduler).preempted
    assert scheduler.running == [first, last] and scheduler.waiting == [refused]


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_blocks_are_hashed_only_for_the_prefix_cache(enable_prefix_caching: bool) -> None:
    scheduler = make_scheduler(9, 2, 1, 8, enable_prefix_caching=enable_prefix_caching)
    seq = scheduler.add([1] * 6, 2)
    step(scheduler)
    assert len(seq.block_hashes) == (3 if enable_prefix_caching else 0)


def test_a_waiting_sequence_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = make_scheduler(9, 2, 2, 20)
    scheduler.add([1] * 8, 9)
    step(scheduler)
    scheduler.add([1] * 8 + [2] * 8, 2)  # four blocks are in the cache, and there is no room for four more
    counts: list[int] = []
    hash_block = block_manager.hash_block
    monkeypatch.setattr(block_manager, "hash_block", lambda *given: counts.append(1) or hash_block(*given))
    step(scheduler)
    assert scheduler.waiting and len(counts) == 5  # four hits and a miss
    step(scheduler)
    assert scheduler.waiting and len(counts) == 6  # the block that the running sequence has filled


def test_admission_leaves_a_free_block_for_each_running_sequence() -> None:
    scheduler = make_scheduler(5, 2, 4, 20)
    scheduler.add([1, 1], 6)
    scheduler.add([2] * 6, 2)
    scheduler.add([3], 1)
    step(scheduler)
    assert len(scheduler.running) == 2, "one block is free, and two sequences run"
    assert scheduler.block_manager.pool.num_free_blocks == 1


def test_priority_is_worth_so_many_steps_of_waiting() -> None:
    scheduler = make_scheduler(40, 4, 1, 4, priority_aging_steps=3)
    running = scheduler.add([1], 20)
    step(scheduler)
    urgent = scheduler.add([2], 20, priority=1)
    output = step(scheduler)
    assert output.preempted == [running] and scheduler.running == [urgent]
    for _ in range(6):
        step(scheduler)
    late = scheduler.add([3], 20, priority=1)
    assert scheduler.waiting == [running, late], "it has waited for longer than priority is worth"


def test_blocks_of_rejected_drafts_are_not_cached() -> None:
    """The drafts [4, 0] fill a block with the tokens [1, 2, 3, 4], but 4 is rejected."""
    memory = Memory(4)
    config = SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=12, priority_aging_steps=9)
    scheduler = SpeculativeScheduler(BlockManager(12, 4), config)
    drafting = scheduler.add([1, 2], 9)
    for drafts, accepted in (([], [3]), ([4, 0], [0])):
        scheduler.draft_token_ids = {drafting: drafts}
        output = scheduler.schedule()
        memory.run(output)
        scheduler.update_from_output(output, [accepted])
    assert drafting.num_computed_tokens == 3 and len(drafting.block_table) == 1
    other = scheduler.add([1, 2, 3, 4, 1], 5, priority=1)
    output = scheduler.schedule()
    assert other.num_cached_tokens == 0
    memory.run(output)
    scheduler.update_from_output(output, [[0], [0]])
    memory.run(scheduler.schedule())
