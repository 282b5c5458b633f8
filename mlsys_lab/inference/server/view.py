"""What watchers of an engine see: its sequences, its last steps and its blocks, never a text or a token."""

from __future__ import annotations

import time

from mlsys_lab.inference.engine.scheduler import Batch, Scheduler
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
        return not (self._shown_idle and not self._steps) and (late or self.scheduler.idle)

    def watch(self, on: bool) -> None:
        """Begin to take down steps, or go on where others watch already; or end it and forget them."""
        self.watched = on
        if not on:
            self._steps.clear()

    def note(self, batch: Batch) -> None:
        """Take down a step that has been run, before another one is scheduled."""
        running = {sequence.number: sequence for sequence in self.scheduler.running}
        # Who ended in this step is in no table any more; those it fed last were writers, in the order of the batch.
        ended = iter([sequence for sequence in batch.writers if sequence.number is None])
        fed = []
        for number, tokens in batch.new.items():
            sequence = running[number] if number in running else next(ended)
            written_before = len(sequence.tokens) - (sequence in batch.writers) - sequence.prompt
            fed.append([_name(sequence), len(tokens), len(tokens) == 1 and written_before > 0])
        self._steps.append({"step": self.scheduler.steps, "time_s": _now_s(), "wrote": len(batch.writers), "fed": fed})

    def show(self) -> View:
        """Make a view: of now, and of the steps since the last one."""
        steps, self._steps = self._steps, []
        self._shown_s, self._shown_idle = time.monotonic(), self.scheduler.idle
        scheduler, tables, limits = self.scheduler, self.scheduler.tables, self.scheduler.limits
        running = [
            _describe(one) | {"read": tables.length(one.number), "blocks": list(tables.table(one.number))}
            for one in scheduler.running
            if one.number is not None
        ]
        return View(
            time_s=_now_s(),
            slots=limits.sequences,
            budget=limits.tokens,
            blocks=len(tables.blocks.references),
            running=running,
            waiting=[_describe(one) for one in scheduler.waiting],
            kept=tables.blocks.kept,
            steps=steps,
        )


def _now_s() -> float:
    return round(time.monotonic(), 4)


def _name(sequence: Sequence) -> int:
    return sequence.rank[1]


def _describe(sequence: Sequence) -> dict[str, object]:
    written = len(sequence.tokens) - sequence.prompt
    return {"name": _name(sequence), "prompt": sequence.prompt, "written": written, "hits": sequence.hits}
