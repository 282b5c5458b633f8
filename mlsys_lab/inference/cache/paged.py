"""Paged cache: sequences hold pages of a few tokens from one pool, and share those with equal beginnings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import torch

from mlsys_lab.errors import InputError
from mlsys_lab.flops.amounts import require_at_least_one
from mlsys_lab.inference.cache.blocks import BlockManager, chain
from mlsys_lab.inference.cache.interface import Step
from mlsys_lab.inference.cache.slots import SlotCache
from mlsys_lab.inference.cache.storage import Storage
from mlsys_lab.models import Transformer


class Paged(SlotCache):
    """Cache of `pages` pages of `page` tokens each (PagedAttention, arXiv:2309.06180, §4).

    A sequence holds as many pages as its tokens need, wherever they lie, so that at most page - 1 slots are wasted on
    it. `fork` shares all pages, and whoever writes into a shared one gets a copy of it first. Full pages are known by a
    hash of all tokens up to their end: a prompt that begins as an earlier one, running or gone, starts with its pages,
    until they are evicted for want of room. InputError where a step needs more pages than are left.
    """

    def __init__(self, model: Transformer, *, pages: int, page: int = 16, storage: type[Storage] = Storage) -> None:
        require_at_least_one(pages=pages, page=page)
        super().__init__(model, pages * page, storage)
        self.page, self.blocks = page, BlockManager(pages)
        self._tables: dict[int, list[int]] = {}
        self._tokens: dict[int, list[int]] = {}
        self._digests: dict[int, list[bytes]] = {}  # of a sequence's full pages, each with all before it

    def start(self, prompt: Sequence[int] = ()) -> int:
        """Number of a new sequence that begins with all full pages known of the prompt, but without its last token."""
        sequence = super().start()
        table, digests = self._tables[sequence], self._digests[sequence]
        for end in range(self.page, len(prompt), self.page):
            digest = chain(digests[-1] if digests else b"", prompt[end - self.page : end])
            block = self.blocks.find(digest)
            if block is None:
                break
            self.blocks.share(block)
            table.append(block)
            digests.append(digest)
        self._lengths[sequence] = len(table) * self.page
        self._tokens[sequence] = list(prompt[: self._lengths[sequence]])
        return sequence

    def fork(self, sequence: int) -> int:
        """Number of a new sequence that shares all pages of another one."""
        length = self.length(sequence)
        copy = super().start()
        self._tables[copy] = self._tables[sequence][: self._pages(length)]
        for block in self._tables[copy]:
            self.blocks.share(block)
        self._lengths[copy] = length
        self._tokens[copy] = list(self._tokens[sequence])
        self._digests[copy] = list(self._digests[sequence])
        return copy

    def truncate(self, sequence: int, length: int) -> None:
        """Forget all but the first `length` tokens of a sequence, and give back the pages behind them."""
        super().truncate(sequence, length)
        self._release(sequence, self._pages(length))
        del self._tokens[sequence][length:]
        del self._digests[sequence][length // self.page :]

    def commit(self, step: Step) -> None:
        """Count in the tokens of a step, and make its full pages known to prompts that begin alike."""
        super().commit(step)
        for sequence, new in step.new.items():
            tokens, digests = self._tokens[sequence], self._digests[sequence]
            tokens.extend(new)
            for index in range(len(digests), len(tokens) // self.page):
                part = tokens[index * self.page : (index + 1) * self.page]
                digests.append(chain(digests[-1] if digests else b"", part))
                self.blocks.register(self._tables[sequence][index], digests[-1])

    def _pages(self, length: int) -> int:
        return -(-length // self.page)

    def _open(self, sequence: int) -> None:
        self._tables[sequence], self._tokens[sequence], self._digests[sequence] = [], [], []

    def _close(self, sequence: int) -> None:
        self._release(sequence, 0)
        del self._tables[sequence], self._tokens[sequence], self._digests[sequence]

    def _release(self, sequence: int, pages: int) -> None:
        """Give back all pages but the first few; the last goes first, for it is found only with those before it."""
        table = self._tables[sequence]
        while len(table) > pages:
            self.blocks.release(table.pop())

    def _reserve(self, counts: Mapping[int, int]) -> None:
        needed = sum(
            max(0, self._pages(self.length(sequence) + count) - len(self._tables[sequence]))
            for sequence, count in counts.items()
        )
        writers = Counter(block for sequence in counts for block in self._written(sequence))
        # Of those who write into a shared page all get a copy, or all but the last if nobody else reads it.
        needed += sum(min(count, self.blocks.references[block] - 1) for block, count in writers.items())
        if needed > self.blocks.available:
            raise InputError(
                "the cache is full",
                got=f"{needed} more pages needed",
                expected=f"up to {self.blocks.available}",
                help="drop a sequence or feed fewer tokens",
            )
        for sequence, count in counts.items():
            self._make_writable(sequence)
            table = self._tables[sequence]
            while len(table) < self._pages(self.length(sequence) + count):
                table.append(self.blocks.allocate())

    def _written(self, sequence: int) -> list[int]:
        """Pages that a sequence has already and whose slots its next tokens fill."""
        return self._tables[sequence][self.length(sequence) // self.page :]

    def _make_writable(self, sequence: int) -> None:
        """Copy pages about to be written that others read; let no prompt find the others by their old hash."""
        table = self._tables[sequence]
        for index in range(self.length(sequence) // self.page, len(table)):
            old = table[index]
            if self.blocks.references[old] > 1:
                table[index] = new = self.blocks.allocate()
                self.storage.copy(self._slots_of([old]), self._slots_of([new]))
                self.blocks.release(old)
            else:
                self.blocks.forget(old)

    def _slots_of(self, blocks: list[int]) -> torch.Tensor:
        return (torch.tensor(blocks, dtype=torch.int64)[:, None] * self.page + torch.arange(self.page)).flatten()

    def find_slots(self, sequence: int, first: int, end: int) -> torch.Tensor:
        """Slots of positions first to end - 1, in the pages that the sequence's table names."""
        skipped = first // self.page
        blocks = self._tables[sequence][skipped : self._pages(end)]
        return self._slots_of(blocks)[first - skipped * self.page : end - skipped * self.page]

    def _held_slots(self) -> int:
        return self.blocks.used * self.page
