"""A scheduler in the words of lab 11, behind the interface of the engine's `Scheduler`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from mlsys_lab.inference.engine.scheduler import SchedulerConfig, SchedulerOutput
from mlsys_lab.inference.engine.sequence import Sequence as EngineSequence


class Limits(NamedTuple):
    """A scheduler's limits, as lab 11 calls them."""

    sequences: int
    tokens: int


Build = Callable[[int, int, Limits], Any]
"""Type of a lab's `build(pages, page, limits)`."""


class LabPool:
    """Counts of a lab's blocks, as of a `BlockPool`."""

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
    """Makes a lab's scheduler, and mirrors each of its sequences in one of the engine's."""

    def __init__(self, build: Build, num_blocks: int, block_size: int, config: SchedulerConfig) -> None:
        self.config = config
        limits = Limits(config.max_num_seqs, config.max_num_batched_tokens)
        self._scheduler: Any = build(num_blocks, block_size, limits)
        self._tables: Any = self._scheduler.tables
        self.block_manager = LabBlockManager(self._tables)
        self._theirs: dict[EngineSequence, Any] = {}
        self._num_added = 0

    @property
    def is_idle(self) -> bool:
        """Whether no sequence waits or runs."""
        return bool(self._scheduler.idle)

    @property
    def num_steps(self) -> int:
        """Steps so far."""
        return int(self._scheduler.steps)

    @property
    def waiting(self) -> list[EngineSequence]:
        """Waiting sequences, in their order."""
        return self._mirror(self._scheduler.waiting)

    @property
    def running(self) -> list[EngineSequence]:
        """Running sequences, in their order."""
        return self._mirror(self._scheduler.running)

    def add(
        self, prompt_token_ids: Iterable[int], max_tokens: int, *, priority: int = 0, cache_salt: str | None = None
    ) -> EngineSequence:
        """Queue a sequence; `cache_salt` must be None, because a lab's blocks have no salt."""
        assert cache_salt is None
        token_ids = list(prompt_token_ids)
        theirs = self._scheduler.add(list(token_ids), max_tokens, priority=priority)
        seq = EngineSequence(self._num_added, token_ids, len(token_ids), max_tokens)
        self._num_added += 1
        self._theirs[seq] = theirs
        return seq

    def schedule(self) -> SchedulerOutput:
        """Compose the next step."""
        batch = self._scheduler.schedule()
        self._synchronise()
        by_number = {theirs.number: seq for seq, theirs in self._theirs.items() if theirs.number is not None}
        counts = {number: len(tokens) for number, tokens in batch.new.items()}
        self._tables.reserve(counts)
        return SchedulerOutput(
            self.config.max_num_batched_tokens - sum(counts.values()),
            {by_number[number]: count for number, count in counts.items()},
            self._mirror(batch.writers),
            self._mirror(batch.preempted),
        )

    def update_from_output(self, output: SchedulerOutput, token_ids: Sequence[Iterable[int]]) -> None:
        """Commit the scheduled tokens to the lab's tables, and write the sampled ones."""
        for seq, n in output.num_scheduled_tokens.items():
            first = seq.num_computed_tokens
            self._tables.commit({self._theirs[seq].number: seq.token_ids[first : first + n]})
        for seq, sampled in zip(output.sampled, token_ids, strict=True):
            seq.token_ids += sampled
            self._scheduler.write(self._theirs[seq], list(sampled))
        self._synchronise()

    def finish(self, seq: EngineSequence) -> None:
        """Remove a sequence."""
        self._scheduler.finish(self._theirs.pop(seq))
        seq.block_table, seq.num_computed_tokens = [], 0

    def _mirror(self, sequences: Iterable[Any]) -> list[EngineSequence]:
        ours = {id(theirs): seq for seq, theirs in self._theirs.items()}
        return [ours[id(theirs)] for theirs in sequences]

    def _synchronise(self) -> None:
        for seq, theirs in self._theirs.items():
            runs = theirs.number is not None
            seq.block_table = list(self._tables.table(theirs.number)) if runs else []
            seq.num_computed_tokens = self._tables.length(theirs.number) if runs else 0
            seq.num_cached_tokens = theirs.hits
