"""Caches of keys and values: what a layer keeps of each token, so that the next one need not look at the text again.

interface    Cache, Step; extend(model, cache, new) feeds new tokens of a ragged batch and gives logits
slots        each token in a numbered slot; attention over a ragged batch with several queries a sequence
contiguous   a row for each sequence (Contiguous), or a ring that holds a window (SlidingWindow)
paged        pages from one pool: copy-on-write, prefixes shared by hash, eviction (Paged)
page_attention   the attention of a paged cache's step on a GPU, over pages where they lie
tables       PageTables, which pages a sequence has, without torch; blocks has the pages' reference counts
storage      how a slot is encoded: Storage as it is, Int8 and Float8 with the error that they make
filling      fillings(cache, slots, texts): what lies in each slot, step by step, for figures

Keys and values in slots give the logits that the whole text gives: equal in exact arithmetic, and to rounding in
floating point, whatever else is in the batch and wherever a prompt is cut into chunks. Int8 and Float8 do not.
"""

from typing import TYPE_CHECKING

from mlsys_lab.inference.cache.blocks import BlockManager
from mlsys_lab.inference.cache.tables import PageTables
from mlsys_lab.lazy import lazily

if TYPE_CHECKING:
    from mlsys_lab.inference.cache.contiguous import Contiguous, SlidingWindow
    from mlsys_lab.inference.cache.interface import Cache, Step, extend
    from mlsys_lab.inference.cache.paged import Paged
    from mlsys_lab.inference.cache.storage import Float8, Int8, Storage, attention_error_bound
else:
    # Who plans with tables of pages alone, as a scheduler does, needs no torch.
    HOMES = {
        "contiguous": ("Contiguous", "SlidingWindow"),
        "interface": ("Cache", "Step", "extend"),
        "paged": ("Paged",),
        "storage": ("Float8", "Int8", "Storage", "attention_error_bound"),
    }
    __getattr__ = lazily(__name__, {name: home for home, names in HOMES.items() for name in names})

__all__ = [
    "BlockManager",
    "Cache",
    "Contiguous",
    "Float8",
    "Int8",
    "PageTables",
    "Paged",
    "SlidingWindow",
    "Step",
    "Storage",
    "attention_error_bound",
    "extend",
]
