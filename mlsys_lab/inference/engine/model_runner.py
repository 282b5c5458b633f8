"""The model at work: a batch of the scheduler in, logits for those who write out."""

from __future__ import annotations

from itertools import accumulate

import torch

from mlsys_lab.inference.adapters import AdapterBank
from mlsys_lab.inference.cache import Paged, extend
from mlsys_lab.inference.engine.scheduler import Batch
from mlsys_lab.models import Transformer


class ModelRunner:
    """A model with a paged cache, whose tables are those that the scheduler plans with, and adapters of the model."""

    def __init__(self, model: Transformer, cache: Paged, adapters: AdapterBank) -> None:
        self.model, self.cache, self.adapters = model, cache, adapters

    def run(self, batch: Batch) -> list[torch.Tensor]:
        """Move what must be moved, feed all new tokens in one pass, each under its text's adapter, and commit them.

        Returns logits for each writer: (k + 1, V), after its last token and each of its k drafts.
        """
        cache, storage = self.cache, self.cache.storage
        for saved in batch.saves:
            saved.contents = storage.save(cache.slots_of(saved.pages)[: saved.length])
        cache.copy_pages(batch.copies)
        for number, first, end, saved in batch.restores:
            storage.restore(cache.find_slots(number, first, end), saved.contents, first)
        asked = {sequence.number: 1 + len(sequence.drafts) for sequence in batch.writers if sequence.number is not None}
        with self.adapters.apply(self._name_adapters(batch)):
            logits = extend(self.model, cache, batch.new, last=asked)
        ends = list(accumulate(asked.get(number, 0) for number in batch.new))[:-1]
        by_number = dict(zip(batch.new, logits.tensor_split(ends), strict=True))
        return [by_number[number] for number in asked]

    def _name_adapters(self, batch: Batch) -> list[str | None]:
        """Name of the adapter of each new token, (Q,); none where there are no adapters, whatever the tables know."""
        if not self.adapters.names:
            return []
        tables = self.cache.tables
        return [name for number, new in batch.new.items() for name in [tables.adapter(number)] * len(new)]
