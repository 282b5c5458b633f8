"""Page tables: in which pages of a pool each sequence's tokens lie, whatever a page is made of.

No keys and values here, and no torch: `Paged` keeps those, and a scheduler decides by these tables alone.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeVar

from mlsys_lab.errors import InputError
from mlsys_lab.inference.cache.blocks import BlockManager, chain, root
from mlsys_lab.validation import require_at_least_one

Found = TypeVar("Found")


class PageTables:
    """Tables of sequences over `pages` pages of `page` tokens each (PagedAttention, arXiv:2309.06180, §4).

    A sequence holds as many pages as its tokens need. `fork` shares all pages, and whoever writes into a shared one
    gets a copy of it first. Full pages are known by a hash of all tokens up to their end: a prompt that begins as an
    earlier one, running or gone, starts with its pages, until they are evicted for want of room; of texts under
    different adapters none begins as another. Every method raises InputError, in one line, for a sequence that has no
    table.
    """

    def __init__(self, pages: int, page: int = 16) -> None:
        require_at_least_one(pages=pages, page=page)
        self.page, self.blocks = page, BlockManager(pages)
        self._numbers = itertools.count()
        self._tables: dict[int, list[int]] = {}
        self._tokens: dict[int, list[int]] = {}  # committed
        self._adapters: dict[int, str | None] = {}
        self._digests: dict[int, list[bytes]] = {}  # of a sequence's full pages, each with all before it

    @property
    def sequences(self) -> list[int]:
        """Numbers of the sequences with a table, in the order in which they came."""
        return list(self._tables)

    def length(self, sequence: int) -> int:
        """Number of committed tokens of a sequence."""
        return len(self._find(self._tokens, sequence))

    def adapter(self, sequence: int) -> str | None:
        """Name of the adapter that a sequence's keys and values are worked out with, None for the model as it is."""
        return self._find(self._adapters, sequence)

    def table(self, sequence: int) -> list[int]:
        """Pages of a sequence in the order of its tokens; the last ones may be empty as yet."""
        return self._find(self._tables, sequence)

    def pages(self, tokens: int) -> int:
        """Number of pages that so many tokens of one sequence need."""
        return -(-tokens // self.page)

    def start(self, prompt: Sequence[int] = (), adapter: str | None = None) -> int:
        """Number of a new sequence that begins with all full pages known of the prompt, but without its last token.

        Known are those of sequences under the same adapter.
        """
        table: list[int] = []
        digests: list[bytes] = []
        for end in range(self.page, len(prompt), self.page):
            digest = chain(digests[-1] if digests else root(adapter), prompt[end - self.page : end])
            block = self.blocks.find(digest)
            if block is None:
                break
            self.blocks.share(block)
            table.append(block)
            digests.append(digest)
        return self._add(table, list(prompt[: len(table) * self.page]), digests, adapter)

    def fork(self, sequence: int) -> int:
        """Number of a new sequence that shares all pages of another one."""
        table = self.table(sequence)[: self.pages(self.length(sequence))]
        for block in table:
            self.blocks.share(block)
        return self._add(table, list(self._tokens[sequence]), list(self._digests[sequence]), self._adapters[sequence])

    def truncate(self, sequence: int, length: int) -> None:
        """Forget all but the first `length` tokens, and give back the pages behind; InputError if there are fewer."""
        if not 0 <= length <= self.length(sequence):
            raise InputError("length to cut to", got=length, expected=f"0 to {self.length(sequence)}")
        self._release(sequence, self.pages(length))
        del self._tokens[sequence][length:]
        del self._digests[sequence][length // self.page :]

    def drop(self, sequence: int) -> None:
        """Forget a sequence and give back its pages."""
        self.table(sequence)
        self._release(sequence, 0)
        for kept in (self._tables, self._tokens, self._digests, self._adapters):
            del kept[sequence]

    def missing(self, counts: Mapping[int, int]) -> int:
        """Number of pages that `reserve` would take for so many further tokens, copies of shared pages among them."""
        needed = sum(
            max(0, self.pages(self.length(sequence) + count) - len(self._tables[sequence]))
            for sequence, count in counts.items()
        )
        shared = [
            block for sequence in counts for block in self._written(sequence) if self.blocks.references[block] > 1
        ]
        # Of those who write into a shared page all get a copy, or all but the last if nobody else reads it.
        return needed + sum(min(n, self.blocks.references[block] - 1) for block, n in Counter(shared).items())

    def reserve(self, counts: Mapping[int, int]) -> list[tuple[int, int]]:
        """Find pages for so many further tokens of sequences; InputError, with nothing changed, without room.

        Returns the pages whose contents have to be copied before anything is written, as (from, to).
        """
        copies = self.try_reserve(counts)
        if copies is None:
            raise InputError(
                "the cache is full",
                got=f"{self.missing(counts)} more pages needed",
                expected=f"up to {self.blocks.available}",
                help="drop a sequence or feed fewer tokens",
            )
        return copies

    def try_reserve(self, counts: Mapping[int, int], *, spare: int = 0) -> list[tuple[int, int]] | None:
        """Find pages as `reserve` does, or None, with nothing changed, where fewer than `spare` would then be left."""
        if self.missing(counts) + spare > self.blocks.available:
            return None
        copies = []
        for sequence, count in counts.items():
            copies += self._make_writable(sequence)
            table = self._tables[sequence]
            while len(table) < self.pages(self.length(sequence) + count):
                table.append(self.blocks.allocate())
        return copies

    def commit(self, new: Mapping[int, Sequence[int]]) -> None:
        """Count in new tokens of sequences, and make their full pages known to prompts that begin alike."""
        for sequence, part in new.items():
            tokens, digests = self._tokens[sequence], self._digests[sequence]
            tokens.extend(part)
            for index in range(len(digests), len(tokens) // self.page):
                filled = tokens[index * self.page : (index + 1) * self.page]
                digests.append(chain(digests[-1] if digests else root(self._adapters[sequence]), filled))
                self.blocks.register(self._tables[sequence][index], digests[-1])

    def _add(self, table: list[int], tokens: list[int], digests: list[bytes], adapter: str | None) -> int:
        sequence = next(self._numbers)
        self._tables[sequence], self._tokens[sequence], self._digests[sequence] = table, tokens, digests
        self._adapters[sequence] = adapter
        return sequence

    def _find(self, kept: Mapping[int, Found], sequence: int) -> Found:
        if sequence not in kept:
            raise InputError("no such sequence in the cache", got=sequence, expected=f"one of {self.sequences}")
        return kept[sequence]

    def _release(self, sequence: int, pages: int) -> None:
        """Give back all pages but the first few; the last goes first, for it is found only with those before it."""
        table = self._tables[sequence]
        while len(table) > pages:
            self.blocks.release(table.pop())

    def _written(self, sequence: int) -> list[int]:
        """Pages that a sequence has already and whose slots its next tokens fill."""
        return self._tables[sequence][self.length(sequence) // self.page :]

    def _make_writable(self, sequence: int) -> list[tuple[int, int]]:
        """Replace pages about to be written that others read; let no prompt find the others by their old hash."""
        table, copies = self._tables[sequence], []
        for index in range(self.length(sequence) // self.page, len(table)):
            old = table[index]
            if self.blocks.references[old] > 1:
                table[index] = self.blocks.allocate()
                copies.append((old, table[index]))
                self.blocks.release(old)
            else:
                self.blocks.forget(old)
        return copies
