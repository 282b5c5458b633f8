"""The interface of every KV cache, and a forward pass over a ragged batch.

Dimension letters: R sequences of a step, Q new tokens of all of them together, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from mlsys_lab.errors import InputError
from mlsys_lab.models import CachedAttention, Transformer


@dataclass(frozen=True)
class Step:
    """New tokens of several sequences, packed for one forward pass without padding.

    `tokens` and `positions` are (1, Q), `last` (R,) is the row of each sequence's last token, and `attend` stores their
    keys and values in the cache and attends over what it holds. `new` has the tokens by sequence.
    """

    new: Mapping[int, Sequence[int]]
    tokens: torch.Tensor
    positions: torch.Tensor
    last: torch.Tensor
    attend: CachedAttention


class Cache(ABC):
    """Keys and values of the tokens that a model has computed, by sequence; sequences are numbered from 0.

    A step has two halves, so that a failed forward pass changes no length: `prepare` allocates room for new tokens,
    `commit` counts them once the model has run. Every method raises InputError for a sequence that is not in the cache.
    """

    model: Transformer
    """Model that computed the keys and values: no other model can use them, even one of the same sizes."""

    chunk: int | None = None
    """Largest number of new tokens of a sequence in one step; None for no limit."""

    @property
    @abstractmethod
    def sequences(self) -> list[int]:
        """Numbers of the sequences in the cache, in the order in which they were started."""

    @abstractmethod
    def start(self, prompt: Sequence[int] = ()) -> int:
        """Number of a new sequence; its `length` is the number of prompt tokens cached already, never all of them."""

    @abstractmethod
    def fork(self, sequence: int) -> int:
        """Number of a new sequence with the tokens of another one; both may be extended."""

    @abstractmethod
    def truncate(self, sequence: int, length: int) -> None:
        """Keep the first `length` tokens; InputError if the layout has overwritten what a next query needs."""

    @abstractmethod
    def drop(self, sequence: int) -> None:
        """Remove a sequence and free its memory."""

    @abstractmethod
    def length(self, sequence: int) -> int:
        """Number of computed tokens of a sequence, which is the position of its next one."""

    @abstractmethod
    def prepare(self, new: Mapping[int, Sequence[int]]) -> Step:
        """Allocate room for one or more new tokens of each of some sequences.

        InputError, with nothing changed, if there is no room, no token or no context left.
        """

    @abstractmethod
    def commit(self, step: Step) -> None:
        """Count the tokens of a step, whose keys and values have been stored."""

    @property
    @abstractmethod
    def bytes_held(self) -> int:
        """Bytes allocated to sequences, which no other sequence can use."""

    @property
    @abstractmethod
    def bytes_wasted(self) -> int:
        """Bytes held without a token that a next query reads."""


def extend(
    model: Transformer, cache: Cache, new: Mapping[int, Sequence[int]], *, every_token: bool = False
) -> torch.Tensor:
    """Compute new tokens of sequences: logits after the last one of each, (R, V), in the order of `new`.

    With `every_token`, logits after each new token, (Q, V). Sequences may have different numbers of cached and new
    tokens: prompts, chunks of prompts and single tokens go together in one forward pass, without gradients. InputError
    for a cache of another model and as in `Cache.prepare` and `Transformer.forward`; no length changes then.
    """
    if cache.model is not model:
        raise InputError(
            "the cache belongs to another model",
            got=model.config.name,
            expected=f"the very model it was made for, {cache.model.config.name}",
        )
    with torch.no_grad():
        step = cache.prepare(new)
        rows = None if every_token else step.last
        logits: torch.Tensor = model(step.tokens, positions=step.positions, attend=step.attend, rows=rows)
    cache.commit(step)
    return logits.flatten(0, -2)  # (R, V) or (Q, V)
