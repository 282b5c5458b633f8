"""A server without a model: the engine's own scheduler on its pages, and a clock that says how long each step takes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from mlsys_lab.inference.cache.tables import PageTables
from mlsys_lab.inference.engine.scheduler import Batch, Limits, Scheduler
from mlsys_lab.inference.engine.sequence import Saved
from mlsys_lab.inference.engine.sequence import Sequence as Running
from mlsys_lab.inference.simulator.clock import Clock
from mlsys_lab.inference.simulator.load import Arrival
from mlsys_lab.inference.simulator.metrics import Served


@dataclass(frozen=True)
class Simulation:
    """What came of a load: each request in the order of arrival, steps taken, means over them, and preemptions.

    `mean_cache` is the fraction of the cache's pages that sequences held, on average over the busy time.
    """

    served: tuple[Served, ...]
    steps: int
    busy_s: float
    mean_sequences: float
    mean_tokens: float
    mean_cache: float
    preemptions: int


class Replica:
    """One engine and the load that is still to come to it: requests are seen between steps, as the engine sees them.

    A text always ends with the last token that it may write. With `cached`, prompts come with the keys and values of
    all tokens but the last, as from devices that have read them.
    """

    def __init__(
        self,
        arrivals: Sequence[Arrival],
        clock: Clock,
        *,
        pages: int,
        page: int = 16,
        limits: Limits | None = None,
        cached: bool = False,
    ) -> None:
        self.clock, self.cached = clock, cached
        self.tables = PageTables(pages, page)
        self.scheduler = Scheduler(self.tables, limits or Limits())
        self.coming = deque(sorted(arrivals, key=lambda one: one.time_s))
        self.served: dict[Running, Served] = {}
        self.busy_s, self.stepped_s = 0.0, 0.0
        self.sequences, self.tokens, self.preemptions, self.held_s = 0, 0, 0, 0.0

    @property
    def due_s(self) -> float | None:
        """Moment from which there is something to do: 0 while requests are inside; None once all have ended."""
        if not self.scheduler.idle:
            return 0.0
        return self.coming[0].time_s if self.coming else None

    def step(self, now: float) -> float:
        """Take in who has come by `now`, run the next step from then on, and return the moment at which it ends."""
        while self.coming and self.coming[0].time_s <= now:
            self._add(self.coming.popleft())
        batch = self.scheduler.schedule()
        parts = [(len(new), self.tables.length(number)) for number, new in batch.new.items()]
        took_s = self.clock(parts, _moved(batch))
        self.stepped_s, self.busy_s = now + took_s, self.busy_s + took_s
        self.sequences, self.tokens = self.sequences + len(parts), self.tokens + batch.tokens
        self.preemptions += len(batch.preempted)
        self.held_s += took_s * (1 - self.tables.blocks.available / len(self.tables.blocks.references))
        self.tables.commit(batch.new)
        for sequence in batch.writers:
            self.served[sequence].tokens_s.append(self.stepped_s)
            self.scheduler.write(sequence, [0])
            if len(sequence.tokens) == sequence.most:
                self.scheduler.finish(sequence)
        return self.stepped_s

    def result(self) -> Simulation:
        """What has come of the load so far."""
        steps = max(1, self.scheduler.steps)
        return Simulation(
            tuple(self.served.values()),
            self.scheduler.steps,
            self.busy_s,
            self.sequences / steps,
            self.tokens / steps,
            self.held_s / self.busy_s if self.busy_s else 0.0,
            self.preemptions,
        )

    def _add(self, one: Arrival) -> None:
        sequence = self.scheduler.add(one.prompt, one.writes)
        if self.cached and len(one.prompt) > 1:
            sequence.saved = Saved([], len(one.prompt) - 1)  # restored when admitted, as one that was swapped out
        self.served[sequence] = Served(one.time_s)


def simulate(
    arrivals: Sequence[Arrival],
    clock: Clock,
    *,
    pages: int,
    page: int = 16,
    limits: Limits | None = None,
    cached: bool = False,
) -> Simulation:
    """Serve a load on `pages` pages of `page` tokens; with `cached`, prompts come with their keys and values.

    InputError for a request that outgrows all pages.
    """
    (done,) = take_turns([Replica(arrivals, clock, pages=pages, page=page, limits=limits, cached=cached)])
    return done


def take_turns(models: Sequence[Replica]) -> list[Simulation]:
    """Serve several models on the same devices, a step of one at a time: next is who has not run for longest."""
    now = 0.0
    while due := [(one.due_s, one) for one in models if one.due_s is not None]:
        now = max(now, min(due_s for due_s, _ in due))
        now = min((one for due_s, one in due if due_s <= now), key=lambda one: one.stepped_s).step(now)
    return [one.result() for one in models]


def _moved(batch: Batch) -> int:
    """Tokens whose keys and values go to host memory or come back from it."""
    restored = sum(end - first for _, first, end, saved in batch.restores if saved.pages)
    return restored + sum(saved.length for saved in batch.saves)
