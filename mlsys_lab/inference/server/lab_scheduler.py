"""Adapter from lab 11's scheduler to the interface of the engine's `Scheduler`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from mlsys_lab.inference.engine.scheduler import SchedulerConfig, SchedulerOutput
from mlsys_lab.inference.engine.sequence import Sequence as EngineSequence


class Limits(NamedTuple):
    """Limits of a lab's scheduler: sequences and tokens of a step."""

    sequences: int
    tokens: int


Build = Callable[[int, int, Limits], Any]
"""Type of a lab's `build(pages, page, limits)`."""


class LabPool:
    """A lab's blocks with the counts of a `BlockPool`."""

    def __init__(self, blocks: Any) -> None:
        self._blocks = blocks
        self.num_blocks = len(blocks.references)

    @property
    def num_used_blocks(self) -> int:
        """Number of blocks that a sequence refers to."""
        return int(self._blocks.used)

    @property
    def evictable_blocks(self) -> list[int]:
        """Cached blocks that no sequence refers to."""
        return list(self._blocks.kept)


class LabBlockManager:
    """Block size and pool of a lab's tables."""

    def __init__(self, tables: Any) -> None:
        self.block_size, self.pool = int(tables.page), LabPool(tables.blocks)


class LabScheduler:
    """Builds a lab's scheduler, and mirrors each of its sequences in one of the engine's."""

    def __init__(self, build: Build, num_blocks: int, block_size: int, config: SchedulerConfig) -> None:
        self.config = config
        limits = Limits(config.max_num_seqs, config.max_num_batched_tokens)
        self._scheduler: Any = build(num_blocks, block_size, limits)
        self._tables: Any = self._scheduler.tables
        self.block_manager = LabBlockManager(self._tables)
        self._lab_sequences: dict[EngineSequence, Any] = {}
        self._num_added = 0

    @property
    def is_idle(self) -> bool:
        """Whether no sequence waits or runs."""
        return bool(self._scheduler.idle)

    @property
    def num_steps(self) -> int:
        """Number of steps so far."""
        return int(self._scheduler.steps)

    @property
    def waiting(self) -> list[EngineSequence]:
        """Waiting sequences in scheduling order."""
        return self._engine_sequences(self._scheduler.waiting)

    @property
    def running(self) -> list[EngineSequence]:
        """Running sequences in scheduling order."""
        return self._engine_sequences(self._scheduler.running)

    def add(
        self, prompt_token_ids: Iterable[int], max_tokens: int, *, priority: int = 0, cache_salt: str | None = None
    ) -> EngineSequence:
        """Queue a sequence; `cache_salt` must be None, because a lab's blocks have no salt."""
        assert cache_salt is None
        token_ids = list(prompt_token_ids)
        lab_seq = self._scheduler.add(list(token_ids), max_tokens, priority=priority)
        seq = EngineSequence(self._num_added, token_ids, len(token_ids), max_tokens)
        self._num_added += 1
        self._lab_sequences[seq] = lab_seq
        return seq

    def schedule(self) -> SchedulerOutput:
        """Compose the next step."""
        batch = self._scheduler.schedule()
        self._synchronise()
        by_number = {lab_seq.number: seq for seq, lab_seq in self._lab_sequences.items() if lab_seq.number is not None}
        counts = {number: len(tokens) for number, tokens in batch.new.items()}
        self._tables.reserve(counts)
        return SchedulerOutput(
            self.config.max_num_batched_tokens - sum(counts.values()),
            {by_number[number]: count for number, count in counts.items()},
            self._engine_sequences(batch.writers),
            self._engine_sequences(batch.preempted),
        )

    def update_from_output(self, output: SchedulerOutput, token_ids: Sequence[Iterable[int]]) -> None:
        """Commit the scheduled tokens to the lab's tables, and append the sampled ones."""
        for seq, n in output.num_scheduled_tokens.items():
            first = seq.num_computed_tokens
            self._tables.commit({self._lab_sequences[seq].number: seq.token_ids[first : first + n]})
        for seq, sampled in zip(output.sampled, token_ids, strict=True):
            seq.token_ids += sampled
            self._scheduler.write(self._lab_sequences[seq], list(sampled))
        self._synchronise()

    def finish(self, seq: EngineSequence) -> None:
        """Remove a sequence."""
        self._scheduler.finish(self._lab_sequences.pop(seq))
        seq.block_table, seq.num_computed_tokens = [], 0

    def _engine_sequences(self, sequences: Iterable[Any]) -> list[EngineSequence]:
        by_id = {id(lab_seq): seq for seq, lab_seq in self._lab_sequences.items()}
        return [by_id[id(lab_seq)] for lab_seq in sequences]

    def _synchronise(self) -> None:
        for seq, lab_seq in self._lab_sequences.items():
            is_running = lab_seq.number is not None
            seq.block_table = list(self._tables.table(lab_seq.number)) if is_running else []
            seq.num_computed_tokens = self._tables.length(lab_seq.number) if is_running else 0
            seq.num_cached_tokens = lab_seq.hits
