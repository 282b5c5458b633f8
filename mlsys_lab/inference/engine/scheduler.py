"""The scheduler: which tokens of which sequences the next step of the model computes, and which sequence is preempted.

It sees only counts of tokens and blocks, and imports no torch, so that the engine, the simulator and the tests all run
this one class. Each step takes two calls, and a third one when a sequence ends:

    output = scheduler.schedule()                     # allocates blocks
    ...                                               # the model computes output.num_scheduled_tokens
    scheduler.update_from_output(output, token_ids)   # sampled tokens of each of output.sampled
    scheduler.finish(sequence)                        # once a sequence is complete

Every step composes a new batch (continuous batching: Orca, Yu et al., OSDI 2022) of one token of each decoding
sequence, and chunks of prompts within a token budget (chunked prefill: Sarathi-Serve, arXiv:2403.02310).
"""

from __future__ import annotations

import bisect
from collections import Counter, abc
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter

from mlsys_lab.errors import InputError
from mlsys_lab.inference.engine.block_manager import BlockManager
from mlsys_lab.inference.engine.sequence import Sequence
from mlsys_lab.validation import require_at_least_one, require_non_negative


@dataclass(frozen=True)
class SchedulerConfig:
    """Options of the scheduler; raises InputError if the token budget is below `max_num_seqs`.

    A step computes up to `max_num_batched_tokens` tokens, its token budget, of up to `max_num_seqs` sequences. One
    level of priority is worth `priority_aging_steps` steps of waiting, so that no sequence starves.
    """

    max_num_seqs: int = 16
    max_num_batched_tokens: int = 256
    priority_aging_steps: int = 1000
    enable_prefix_caching: bool = True

    def __post_init__(self) -> None:
        require_at_least_one(max_num_seqs=self.max_num_seqs, max_num_batched_tokens=self.max_num_batched_tokens)
        require_non_negative(priority_aging_steps=self.priority_aging_steps)
        if self.max_num_batched_tokens < self.max_num_seqs:
            expected = f"at least {self.max_num_seqs}, one for each sequence"
            raise InputError("max_num_batched_tokens", got=self.max_num_batched_tokens, expected=expected)


@dataclass
class SchedulerOutput:
    """One step: how many tokens of each sequence the model computes.

    `sampled` are the sequences whose next token is sampled in this step, `preempted` those that lost their blocks.
    `draft_token_ids` of a sampled sequence follow its own tokens and are part of `num_scheduled_tokens`.
    `remaining_token_budget` is what remains of `max_num_batched_tokens`.
    """

    remaining_token_budget: int
    num_scheduled_tokens: dict[Sequence, int] = field(default_factory=dict)
    sampled: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    draft_token_ids: dict[Sequence, list[int]] = field(default_factory=dict)

    @property
    def total_num_scheduled_tokens(self) -> int:
        """Number of tokens that the step computes, over all sequences."""
        return sum(self.num_scheduled_tokens.values())


class Scheduler:
    """Waiting and running sequences, on the blocks of one block manager.

    Sequences are ordered by priority, then by arrival. No sequence is admitted before one that is ahead of it in the
    queue; the last running sequence is preempted first, and keeps its place in the order. So the first sequence is
    never preempted, and every sequence finishes.
    """

    output_class = SchedulerOutput

    def __init__(self, block_manager: BlockManager, config: SchedulerConfig) -> None:
        self.block_manager, self.config = block_manager, config
        self.waiting: list[Sequence] = []  # both lists are sorted by sort_key
        self.running: list[Sequence] = []
        self.num_steps = 0
        self._num_added = 0

    @property
    def is_idle(self) -> bool:
        """Whether no sequence waits or runs."""
        return not self.waiting and not self.running

    def add(
        self, prompt_token_ids: Iterable[int], max_tokens: int, *, priority: int = 0, cache_salt: str | None = None
    ) -> Sequence:
        """Queue a sequence that may generate up to `max_tokens` tokens.

        A higher `priority` is scheduled earlier, unlike in vLLM.
        Raises InputError if the sequence can never fit: if it can outgrow all blocks even when it runs alone.
        """
        token_ids = list(prompt_token_ids)
        require_at_least_one(prompt=len(token_ids), max_tokens=max_tokens)
        needed = self.block_manager.blocks_for(len(token_ids) + max_tokens - 1)
        if needed > (num_blocks := self.block_manager.pool.num_blocks):
            got = f"{len(token_ids)} + {max_tokens} tokens, {needed} blocks"
            help_ = "ask for fewer tokens, or give the cache more blocks"
            raise InputError("the sequence can outgrow the cache", got=got, expected=f"up to {num_blocks}", help=help_)
        seq_id, self._num_added = self._num_added, self._num_added + 1
        sort_key = (self.num_steps - priority * self.config.priority_aging_steps, seq_id)
        seq = Sequence(seq_id, token_ids, len(token_ids), max_tokens, sort_key, cache_salt)
        bisect.insort(self.waiting, seq, key=attrgetter("sort_key"))
        return seq

    def schedule(self) -> SchedulerOutput:
        """Compose the next step and allocate its blocks; the step is empty only if no sequence waits or runs.

        In queue order, running sequences are scheduled and waiting sequences admitted, up to `max_num_seqs`, the token
        budget and the free blocks. One token of the budget is reserved for each decoding sequence, so that no prefill
        delays it.
        """
        num_decoding = sum(seq.num_pending_tokens == 1 for seq in self.running)
        output = self.output_class(self.config.max_num_batched_tokens - num_decoding)
        self.num_steps += 1
        num_continued, is_blocked = 0, False
        while True:
            first_waiting = self.waiting[0] if self.waiting and not is_blocked else None
            next_running = self.running[num_continued] if num_continued < len(self.running) else None
            if first_waiting and (next_running is None or first_waiting.sort_key < next_running.sort_key):
                is_admitted = first_waiting not in output.preempted and self._admit(first_waiting, output)
                is_blocked, num_continued = not is_admitted, num_continued + is_admitted
            elif next_running:
                num_continued += self._schedule_running(next_running, output)
            else:
                return output

    def update_from_output(self, output: SchedulerOutput, token_ids: abc.Sequence[Iterable[int]]) -> None:
        """Append the sampled tokens of each of `output.sampled`, and mark the scheduled tokens as computed.

        With draft tokens, these are the accepted ones and one more: the bonus token, or after a rejection the
        recovered token.
        """
        for seq, sampled_token_ids in zip(output.sampled, token_ids, strict=True):
            seq.token_ids += sampled_token_ids
        for seq, num_tokens in output.num_scheduled_tokens.items():
            # The last sampled token is never computed yet, and neither are rejected drafts.
            seq.num_computed_tokens = min(seq.num_computed_tokens + num_tokens, len(seq.token_ids) - 1)
            if self.config.enable_prefix_caching:
                self.block_manager.cache_full_blocks(seq)

    def finish(self, seq: Sequence) -> None:
        """Remove a sequence that is complete or aborted, and free its blocks."""
        (self.running if seq in self.running else self.waiting).remove(seq)
        self.block_manager.free(seq)

    def _schedule_tokens(self, seq: Sequence, num_tokens: int, output: SchedulerOutput) -> None:
        output.num_scheduled_tokens[seq] = num_tokens
        if num_tokens == seq.num_pending_tokens:
            output.sampled.append(seq)

    def _schedule_running(self, seq: Sequence, output: SchedulerOutput) -> bool:
        """Schedule the next token of a running sequence, or more of its prompt; False if it had to be preempted."""
        is_decoding = seq.num_pending_tokens == 1
        num_tokens = 1 if is_decoding else min(seq.num_pending_tokens, output.remaining_token_budget)
        if num_tokens == 0:
            return True
        while not self.block_manager.allocate_slots(seq, num_tokens):
            last = self.running[-1]
            self._preempt(last, output)
            if last is seq:
                return False
        output.remaining_token_budget -= 0 if is_decoding else num_tokens
        self._schedule_tokens(seq, num_tokens, output)
        return True

    def _admit(self, seq: Sequence, output: SchedulerOutput) -> bool:
        """Admit a waiting sequence if its tokens fit, preempting lower-priority sequences if that makes them fit.

        One block is left free for each running sequence, which will need one soon.
        """
        victims = self.running[-1:] if len(self.running) == self.config.max_num_seqs else []
        budget = output.remaining_token_budget + sum(victim.num_pending_tokens == 1 for victim in victims)
        if not budget or any(victim.sort_key < seq.sort_key for victim in victims):
            return False
        num_cached = self.block_manager.allocate_prefix(seq) if self.config.enable_prefix_caching else 0
        num_needed = self.block_manager.blocks_for(len(seq.token_ids)) - len(seq.block_table)
        while num_needed + len(self.running) - len(victims) > self._num_free_blocks_without(victims):
            remaining = self.running[: len(self.running) - len(victims)]
            if not remaining or remaining[-1].sort_key < seq.sort_key:
                self.block_manager.free(seq)
                return False
            victims.append(remaining[-1])
        for victim in victims:
            self._preempt(victim, output)
        self.block_manager.allocate_slots(seq, seq.num_pending_tokens)
        seq.num_cached_tokens += num_cached
        self._move_to_running(seq, output)
        num_tokens = min(seq.num_pending_tokens, output.remaining_token_budget)
        output.remaining_token_budget -= num_tokens
        self._schedule_tokens(seq, num_tokens, output)
        return True

    def _move_to_running(self, seq: Sequence, output: SchedulerOutput) -> None:
        """Move a sequence from `waiting` to `running`; its blocks are allocated."""
        self.waiting.remove(seq)
        bisect.insort(self.running, seq, key=attrgetter("sort_key"))

    def _num_free_blocks_without(self, victims: list[Sequence]) -> int:
        """Number of blocks that would be free if these sequences were preempted."""
        pool = self.block_manager.pool
        num_references = Counter(block for victim in victims for block in victim.block_table)
        return pool.num_free_blocks + sum(pool.ref_cnt[block] == n for block, n in num_references.items())

    def _preempt(self, seq: Sequence, output: SchedulerOutput) -> None:
        """Free the blocks of a running sequence and queue it again: it is recomputed when it is readmitted."""
        output.remaining_token_budget += seq.num_pending_tokens == 1
        self.block_manager.free(seq)
        seq.num_preemptions += 1
        self.running.remove(seq)
        bisect.insort(self.waiting, seq, key=attrgetter("sort_key"))
        output.preempted.append(seq)


def build(num_blocks: int, block_size: int, config: SchedulerConfig) -> Scheduler:
    """Make the scheduler of an engine, as the file of `mlsys-lab serve --scheduler` does."""
    return Scheduler(BlockManager(num_blocks, block_size), config)
