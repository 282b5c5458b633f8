"""The scheduler: which tokens of which sequences go into the next step of the model, and who gives way to whom.

It knows tokens by their number and memory by its pages, and imports no torch: an engine with a model, a simulator with
a clock and a test with neither run this one class. Each step takes three calls, and a fourth where a text ends:

    batch = scheduler.schedule()                  # pages are set aside
    ...                                           # work out keys and values of batch.new, commit them to the tables
    for sequence in batch.writers:
        scheduler.write(sequence, tokens)         # what the model gave
        scheduler.finish(sequence)                # once its text is complete

Every step is put together anew (continuous batching: Orca, Yu et al., OSDI 2022), of single tokens of those who write
and chunks of prompts under a budget of tokens (Sarathi-Serve, arXiv:2403.02310). Orca's selective batching, in which
matrix products see all tokens at once and attention each sequence for itself, is what `cache.extend` does with them.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from mlsys_lab.errors import InputError
from mlsys_lab.inference.cache.tables import PageTables
from mlsys_lab.inference.engine.sequence import Saved, Sequence
from mlsys_lab.validation import require_at_least_one, require_non_negative


@dataclass(frozen=True)
class Limits:
    """What a step may hold, and what happens where memory is short; InputError for limits that no step can keep.

    A step has up to `tokens` tokens of up to `sequences` sequences. Who is preempted forgets its keys and values and
    has them worked out again ("recompute"), or moves them to host memory while its `host_pages` last ("swap").
    One step of priority is worth `patience` steps of waiting, so that nobody waits for ever.
    """

    sequences: int = 16
    tokens: int = 256
    preemption: Literal["recompute", "swap"] = "recompute"
    host_pages: int = 0
    patience: int = 1000
    prefix_caching: bool = True

    def __post_init__(self) -> None:
        require_at_least_one(sequences=self.sequences, tokens=self.tokens)
        require_non_negative(host_pages=self.host_pages, patience=self.patience)
        if self.tokens < self.sequences:
            expected = f"at least {self.sequences}, one for each sequence"
            raise InputError("tokens of a step", got=self.tokens, expected=expected)
        if self.preemption not in ("recompute", "swap"):
            raise InputError("preemption", got=repr(self.preemption), expected="'recompute' or 'swap'")


@dataclass
class Batch:
    """One step: new tokens by number in the page tables, and what has to be moved before, in this order.

    `saves` go from pages to host memory, `copies` from page to page, `restores` (number, first, end, saved) back from
    host memory to the pages of positions first to end - 1. `writers` are those whose next token the step gives; each
    has its `drafts` checked, if it has any. `left` tokens of the budget are not used.
    """

    left: int
    new: dict[int, list[int]] = field(default_factory=dict)
    writers: list[Sequence] = field(default_factory=list)
    saves: list[Saved] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    restores: list[tuple[int, int, int, Saved]] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Number of new tokens of all sequences."""
        return sum(map(len, self.new.values()))


class Scheduler:
    """Sequences that wait and sequences that run, on the pages of `tables`.

    Ranks decide everything: by priority, then by who came first. Nobody is admitted before one of a lower rank that
    waits, whoever gives way has the highest rank of those that run, and it comes back at its rank. So the lowest rank
    always goes on, and every sequence ends.
    """

    def __init__(self, tables: PageTables, limits: Limits) -> None:
        self.tables, self.limits = tables, limits
        self.waiting: list[Sequence] = []  # by rank, as are those that run
        self.running: list[Sequence] = []
        self.host_pages = 0
        self.steps = 0
        self._added = 0

    @property
    def idle(self) -> bool:
        """Whether no sequence waits or runs."""
        return not self.waiting and not self.running

    def add(self, prompt: Iterable[int], max_tokens: int, *, priority: int = 0, adapter: str | None = None) -> Sequence:
        """Let a sequence wait that may write up to `max_tokens` tokens; a higher `priority` is served earlier.

        Sequences under different adapters go into one step, and share no page. InputError for one that would not fit
        into all pages, even alone.
        """
        tokens = list(prompt)
        require_at_least_one(prompt=len(tokens), max_tokens=max_tokens)
        most = len(tokens) + max_tokens
        pages, needed = len(self.tables.blocks.references), self.tables.pages(most - 1)
        if needed > pages:
            raise InputError(
                "the text can outgrow the cache",
                got=f"{len(tokens)} + {max_tokens} tokens, {needed} pages",
                expected=f"up to {pages} pages",
                help="ask for fewer tokens, or give the cache more pages",
            )
        rank = (self.steps - priority * self.limits.patience, self._added)
        self._added += 1
        sequence = Sequence(tokens, len(tokens), most, rank, adapter)
        self._wait(sequence)
        return sequence

    def schedule(self) -> Batch:
        """Put the next step together, and set its pages aside; an empty one only where nobody waits or runs.

        In the order of ranks, those that run go on and those that wait are admitted, until slots, tokens or pages are
        all taken. Tokens of those who write are set aside first: no prompt keeps them waiting.
        """
        batch = Batch(self.limits.tokens - sum(self._pending(sequence) == 1 for sequence in self.running))
        self.steps += 1
        done, blocked = 0, False
        while True:
            head = self.waiting[0] if self.waiting and not blocked else None
            following = self.running[done] if done < len(self.running) else None
            if head and (following is None or head.rank < following.rank):
                admitted = head not in batch.preempted and self._admit(head, batch)
                blocked, done = not admitted, done + admitted
            elif following:
                done += self._continue(following, batch)
            else:
                break
        self._add_drafts(batch)
        return batch

    def write(self, sequence: Sequence, tokens: Iterable[int]) -> None:
        """Add tokens to a sequence of the last batch: accepted drafts and the one after them.

        Drafts that were not accepted leave the tables.
        """
        assert sequence.number is not None
        sequence.tokens += tokens
        sequence.drafts = []
        self.tables.truncate(sequence.number, min(self.tables.length(sequence.number), len(sequence.tokens) - 1))

    def finish(self, sequence: Sequence) -> None:
        """Forget a sequence, whether it has written all or is not wanted any more; its room is free at once."""
        if sequence.number is None:
            self.waiting.remove(sequence)
        else:
            self.running.remove(sequence)
            self.tables.drop(sequence.number)
            sequence.number = None
        self._forget_saved(sequence)

    def _pending(self, sequence: Sequence) -> int:
        """Tokens that are still to be fed before the next one can be written."""
        assert sequence.number is not None
        return len(sequence.tokens) - self.tables.length(sequence.number)

    def _wait(self, sequence: Sequence) -> None:
        bisect.insort(self.waiting, sequence, key=_rank)

    def _feed(self, sequence: Sequence, count: int, batch: Batch) -> None:
        assert sequence.number is not None
        first = self.tables.length(sequence.number)
        batch.new[sequence.number] = sequence.tokens[first : first + count]
        if first + count == len(sequence.tokens):
            batch.writers.append(sequence)

    def _continue(self, sequence: Sequence, batch: Batch) -> bool:
        """Feed a running sequence its next token, or more of its prompt; False where it had to give way."""
        assert sequence.number is not None
        pending = self._pending(sequence)
        count = 1 if pending == 1 else min(pending, batch.left)
        if count == 0:
            return True
        while (copies := self.tables.try_reserve({sequence.number: count})) is None:
            last = self.running[-1]
            self._preempt(last, batch)
            if last is sequence:
                return False
        batch.copies += copies
        batch.left -= count if pending > 1 else 0
        self._feed(sequence, count, batch)
        return True

    def _admit(self, sequence: Sequence, batch: Batch) -> bool:
        """Let a waiting sequence run if there is a slot, a token and room for all of it, those of higher rank aside.

        Besides its own pages, one is left for each sequence that runs already: it will need one soon.
        """
        while len(self.running) >= self.limits.sequences:
            if not self._make_way(sequence, batch):
                return False
        if not batch.left:
            return False
        number = self.tables.start(sequence.tokens if self.limits.prefix_caching else (), sequence.adapter)
        hits = self.tables.length(number)
        everything = {number: len(sequence.tokens) - hits}
        while (copies := self.tables.try_reserve(everything, spare=len(self.running))) is None:
            if not self._make_way(sequence, batch):
                self.tables.drop(number)
                return False
        batch.copies += copies
        sequence.number, sequence.hits = number, sequence.hits + hits
        self.waiting.remove(sequence)
        bisect.insort(self.running, sequence, key=_rank)
        self._restore(sequence, batch)
        count = min(self._pending(sequence), batch.left)
        batch.left -= count
        self._feed(sequence, count, batch)
        return True

    def _make_way(self, sequence: Sequence, batch: Batch) -> bool:
        """Preempt the last that runs if it ranks behind a waiting one."""
        if not self.running or self.running[-1].rank < sequence.rank:
            return False
        self._preempt(self.running[-1], batch)
        return True

    def _preempt(self, sequence: Sequence, batch: Batch) -> None:
        """Take a running sequence's pages, and let it wait: saved to the host where there is room, else forgotten."""
        assert sequence.number is not None
        batch.left += self._pending(sequence) == 1
        length = self.tables.length(sequence.number)
        pages = self.tables.table(sequence.number)[: self.tables.pages(length)]
        if self.limits.preemption == "swap" and pages and self.host_pages + len(pages) <= self.limits.host_pages:
            sequence.saved = Saved(pages, length)
            self.host_pages += len(pages)
            batch.saves.append(sequence.saved)
        self.tables.drop(sequence.number)
        sequence.number, sequence.drafts = None, []
        sequence.preemptions += 1
        self.running.remove(sequence)
        self._wait(sequence)
        batch.preempted.append(sequence)

    def _restore(self, sequence: Sequence, batch: Batch) -> None:
        """Bring back what was saved of a sequence, as far as the cache does not hold it still."""
        assert sequence.number is not None
        first = self.tables.length(sequence.number)
        if sequence.saved and first < sequence.saved.length:
            batch.restores.append((sequence.number, first, sequence.saved.length, sequence.saved))
            self.tables.commit({sequence.number: sequence.tokens[first : sequence.saved.length]})
        self._forget_saved(sequence)

    def _forget_saved(self, sequence: Sequence) -> None:
        if sequence.saved:
            self.host_pages -= len(sequence.saved.pages)
            sequence.saved = None

    def _add_drafts(self, batch: Batch) -> None:
        """Let writers have their drafts checked, as far as tokens and pages are left: nobody gives way to them."""
        for sequence in batch.writers:
            assert sequence.number is not None
            fed = batch.new[sequence.number]
            most = min(len(sequence.drafts), batch.left, sequence.most - len(sequence.tokens) - 1)
            copies = None
            while most > 0 and (copies := self.tables.try_reserve({sequence.number: len(fed) + most})) is None:
                most -= 1
            sequence.drafts = sequence.drafts[: max(0, most)]
            if copies is not None:
                batch.copies += copies
                batch.new[sequence.number] = fed + sequence.drafts
                batch.left -= most


Build = Callable[[int, int, Limits], Scheduler]
"""Makes a scheduler, with tables of its own in `tables`, for so many pages of so many tokens each."""


def build_scheduler(pages: int, page: int, limits: Limits) -> Scheduler:
    """Make the package's own scheduler, on new tables of `pages` pages of `page` tokens."""
    return Scheduler(PageTables(pages, page), limits)


def _rank(sequence: Sequence) -> tuple[float, int]:
    return sequence.rank
