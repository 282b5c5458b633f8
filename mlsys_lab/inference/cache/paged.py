"""Paged cache: sequences hold pages of a few tokens from one pool, and share those with equal beginnings.

On a GPU attention reads the pages where they lie; elsewhere they are gathered first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from mlsys_lab.inference.cache.blocks import BlockManager
from mlsys_lab.inference.cache.interface import Step
from mlsys_lab.inference.cache.page_attention import PageAttention, supports
from mlsys_lab.inference.cache.slots import SlotCache
from mlsys_lab.inference.cache.storage import Storage
from mlsys_lab.inference.cache.tables import PageTables
from mlsys_lab.models import CachedAttention, Transformer


class Paged(SlotCache):
    """Cache of `pages` pages of `page` tokens each (PagedAttention, arXiv:2309.06180, §4).

    A sequence holds as many pages as its tokens need, wherever they lie, so that at most page - 1 slots are wasted on
    it; `tables` say which, share pages between sequences and know prompts that begin alike. InputError where a step
    needs more pages than are left. `tables` may be given, on as many pages, so that others plan with them too. Steps
    attend over the pages where they lie if `in_place` says so.
    """

    def __init__(
        self,
        model: Transformer,
        *,
        pages: int,
        page: int = 16,
        storage: type[Storage] = Storage,
        tables: PageTables | None = None,
    ) -> None:
        self.tables = PageTables(pages, page) if tables is None else tables
        super().__init__(model, pages * page, storage)
        self.in_place = model.embedding.weight.is_cuda and supports(model, self.storage)

    @property
    def page(self) -> int:
        """Number of tokens of a page."""
        return self.tables.page

    @property
    def blocks(self) -> BlockManager:
        """Reference counts of the pages."""
        return self.tables.blocks

    @property
    def sequences(self) -> list[int]:
        """Numbers of the sequences in the cache, in the order in which they came."""
        return self.tables.sequences

    def length(self, sequence: int) -> int:
        """Number of committed tokens of a sequence; InputError for one that is not in the cache."""
        return self.tables.length(sequence)

    def start(self, prompt: Sequence[int] = ()) -> int:
        """Number of a new sequence that begins with all full pages known of the prompt, but without its last token."""
        return self.tables.start(prompt)

    def fork(self, sequence: int) -> int:
        """Number of a new sequence that shares all pages of another one."""
        return self.tables.fork(sequence)

    def truncate(self, sequence: int, length: int) -> None:
        """Forget all but the first `length` tokens of a sequence, and give back the pages behind them."""
        self.tables.truncate(sequence, length)

    def drop(self, sequence: int) -> None:
        """Forget a sequence and give back its pages."""
        self.tables.drop(sequence)

    def commit(self, step: Step) -> None:
        """Count in the tokens of a step, and make its full pages known to prompts that begin alike."""
        self.tables.commit(step.new)

    def copy_pages(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy the contents of pages, (from, to) each, one after the other."""
        for old, new in copies:
            self.storage.copy(self.slots_of([old]), self.slots_of([new]))

    def slots_of(self, pages: Sequence[int]) -> torch.Tensor:
        """Slots of these pages in order: (len(pages) · page,)."""
        return (torch.tensor(pages, dtype=torch.int64)[:, None] * self.page + torch.arange(self.page)).flatten()

    def _reserve(self, counts: Mapping[int, int]) -> None:
        self.copy_pages(self.tables.reserve(counts))

    def find_slots(self, sequence: int, first: int, end: int) -> torch.Tensor:
        """Slots of positions first to end - 1, in the pages that the sequence's table names."""
        skipped = first // self.page
        pages = self.tables.table(sequence)[skipped : self.tables.pages(end)]
        return self.slots_of(pages)[first - skipped * self.page : end - skipped * self.page]

    def _attend(self, counts: Mapping[int, int]) -> CachedAttention:
        if not self.in_place:
            return super()._attend(counts)
        written = [self.find_slots(s, self.length(s), self.length(s) + count) for s, count in counts.items()]
        lengths = {sequence: self.length(sequence) + count for sequence, count in counts.items()}
        tables = {s: self.tables.table(s)[: self.tables.pages(length)] for s, length in lengths.items()}
        return PageAttention(
            self.storage,
            self.model,
            page=self.page,
            written=torch.cat(written),
            tables=list(tables.values()),
            lengths=list(lengths.values()),
            counts=list(counts.values()),
        )

    def _held_slots(self) -> int:
        return self.blocks.used * self.page
