"""What watchers of an engine see: its sequences, its last steps and its blocks, never text or token ids."""

from __future__ import annotations

import time

from mlsys_lab.inference.engine.scheduler import Scheduler, SchedulerOutput
from mlsys_lab.inference.engine.sequence import Sequence
from mlsys_lab.inference.server.messages import View

EVERY_S = 0.1
"""Least time between two views, but for the one of an engine that has become idle."""


class Recorder:
    """Takes down the steps of a scheduler while somebody watches, and shows them with where it stands.

    A sequence is named by its number among all that have come, which it keeps when it is preempted.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.watched = False
        self._steps: list[dict[str, object]] = []
        self._shown_s = 0.0
        self._shown_idle = True

    @property
    def due(self) -> bool:
        """Whether there is something that watchers should see now."""
        late = time.monotonic() - self._shown_s >= EVERY_S
        return not (self._shown_idle and not self._steps) and (late or self.scheduler.is_idle)

    def watch(self, on: bool) -> None:
        """Begin to take down steps, or go on where others watch already; or end it and forget them."""
        self.watched = on
        if not on:
            self._steps.clear()

    def note(self, output: SchedulerOutput) -> None:
        """Record a step that has been run, before another one is scheduled."""
        fed = []
        for seq, n in output.num_scheduled_tokens.items():
            num_output_tokens_before = seq.num_output_tokens - (seq in output.sampled)
            fed.append([seq.seq_id, n, n == 1 and num_output_tokens_before > 0])
        step = {"step": self.scheduler.num_steps, "time_s": _now_s(), "wrote": len(output.sampled), "fed": fed}
        self._steps.append(step)

    def show(self) -> View:
        """Make a view: of now, and of the steps since the last one."""
        steps, self._steps = self._steps, []
        self._shown_s, self._shown_idle = time.monotonic(), self.scheduler.is_idle
        scheduler, config, pool = self.scheduler, self.scheduler.config, self.scheduler.block_manager.pool
        running = [
            _describe(seq) | {"read": seq.num_computed_tokens, "blocks": list(seq.block_table)}
            for seq in scheduler.running
        ]
        return View(
            time_s=_now_s(),
            slots=config.max_num_seqs,
            budget=config.max_num_batched_tokens,
            blocks=pool.num_blocks,
            running=running,
            waiting=[_describe(seq) for seq in scheduler.waiting],
            kept=pool.evictable_blocks,
            steps=steps,
        )


def _now_s() -> float:
    return round(time.monotonic(), 4)


def _describe(seq: Sequence) -> dict[str, object]:
    return {
        "name": seq.seq_id,
        "prompt": seq.num_prompt_tokens,
        "written": seq.num_output_tokens,
        "hits": seq.num_cached_tokens,
    }
