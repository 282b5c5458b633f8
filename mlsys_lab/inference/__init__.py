"""Serving a language model: caches of keys and values, generation, and speculative decoding.

cache         keys and values of the tokens so far, by sequence: contiguous, sliding window, paged; in 8 bits
text          a byte-pair tokenizer, text as it is written, conversations
generate      prompts continued token by token, greedily or by draws, many at once
speculative   drafts of several tokens, checked in one step
adapters      low-rank adapters: many fine-tuned models on the weights of one
engine        many requests at once, on pages: scheduler, model runner, Engine
server        the engine over HTTP, in the form of OpenAI's API
simulator     the engine's scheduler against a clock: TTFT, TPOT, goodput of a load; replicas that it needs
quantize      weights in 8 and 4 bits, and the bytes that a token moves
pretrained    two small models that have read the book, and their tokenizer

Here are the names under which lab 10 builds them, as later labs run on them.
"""

from typing import TYPE_CHECKING

from mlsys_lab.lazy import lazily

if TYPE_CHECKING:
    from mlsys_lab.inference.cache import Contiguous, SlidingWindow, extend
    from mlsys_lab.inference.speculative import accept
else:
    # Who schedules or simulates needs no torch.
    cached = dict.fromkeys(("Contiguous", "SlidingWindow", "extend"), "cache")
    __getattr__ = lazily(__name__, cached | {"accept": "speculative"})

__all__ = ["Contiguous", "SlidingWindow", "accept", "extend"]
