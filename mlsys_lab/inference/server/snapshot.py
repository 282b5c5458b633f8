"""Snapshots of an engine for watchers: sequences, recent steps and blocks, never text or token ids."""

from __future__ import annotations

import time

from mlsys_lab.inference.engine.scheduler import Scheduler, SchedulerOutput
from mlsys_lab.inference.engine.sequence import Sequence
from mlsys_lab.inference.server.messages import EngineSnapshot, SequenceState, StepRecord

INTERVAL_S = 0.1
"""Shortest time between two snapshots, except for that of an engine that has become idle."""


class SnapshotRecorder:
    """Records the steps of a scheduler while it is watched, and takes snapshots."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.is_enabled = False
        self._steps: list[StepRecord] = []
        self._taken_s = 0.0
        self._was_idle = True

    @property
    def is_due(self) -> bool:
        """Whether a snapshot should be taken now."""
        if self._was_idle and not self._steps:
            return False
        return self.scheduler.is_idle or time.monotonic() - self._taken_s >= INTERVAL_S

    def enable(self, is_enabled: bool) -> None:
        """Start recording, or keep recording for another watcher; or stop, and drop the recorded steps."""
        self.is_enabled = is_enabled
        if not is_enabled:
            self._steps.clear()

    def record(self, output: SchedulerOutput) -> None:
        """Record a step after it has run and before the next one is scheduled."""
        scheduled = []
        for seq, num_tokens in output.num_scheduled_tokens.items():
            num_output_tokens_before = seq.num_output_tokens - (seq in output.sampled)
            scheduled.append((seq.seq_id, num_tokens, num_tokens == 1 and num_output_tokens_before > 0))
        self._steps.append(StepRecord(self.scheduler.num_steps, _now_s(), len(output.sampled), scheduled))

    def take(self) -> EngineSnapshot:
        """Take a snapshot, with the steps since the last one."""
        steps, self._steps = self._steps, []
        self._taken_s, self._was_idle = time.monotonic(), self.scheduler.is_idle
        scheduler, config, pool = self.scheduler, self.scheduler.config, self.scheduler.block_manager.pool
        return EngineSnapshot(
            time_s=_now_s(),
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            num_blocks=pool.num_blocks,
            running=[_state(seq) for seq in scheduler.running],
            waiting=[_state(seq) for seq in scheduler.waiting],
            evictable_blocks=pool.evictable_blocks,
            steps=steps,
        )


def _now_s() -> float:
    return round(time.monotonic(), 4)


def _state(seq: Sequence) -> SequenceState:
    return SequenceState(
        seq.seq_id,
        seq.num_prompt_tokens,
        seq.num_output_tokens,
        seq.num_computed_tokens,
        seq.num_cached_tokens,
        list(seq.block_table),
    )
