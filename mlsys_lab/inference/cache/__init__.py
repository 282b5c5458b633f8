"""KV caches of every layout, behind one interface, and a forward pass over a ragged batch.

interface    Cache, Step; extend(model, cache, new) computes new tokens of a ragged batch and gives logits
slots        SlotCache: each token in a numbered slot
contiguous   a row for each sequence (Contiguous), or a ring that holds a window (SlidingWindow)
paged        blocks from one pool: copy-on-write, prefix caching, eviction (Paged)
quantized    Int8KVCache, Float8KVCache, and bounds of their error
filling      fillings(cache, ...): what each slot holds, step by step, for figures

Cached keys and values give the logits of a forward pass over all tokens: equal in exact arithmetic, and to rounding in
floating point, whatever else is in the batch and however a prompt is cut into chunks. The quantized ones do not.
"""

from mlsys_lab.inference.cache.contiguous import Contiguous, SlidingWindow
from mlsys_lab.inference.cache.interface import Cache, Step, extend
from mlsys_lab.inference.cache.paged import Paged
from mlsys_lab.inference.cache.quantized import Float8KVCache, Int8KVCache, attention_error_bound

__all__ = [
    "Cache",
    "Contiguous",
    "Float8KVCache",
    "Int8KVCache",
    "Paged",
    "SlidingWindow",
    "Step",
    "attention_error_bound",
    "extend",
]
