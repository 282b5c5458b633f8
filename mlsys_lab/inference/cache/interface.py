"""What every cache of keys and values can do, whatever its layout, and a step over a ragged batch.

Dimension letters: R sequences of a step, Q new tokens of all of them together, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from mlsys_lab.errors import InputError
from mlsys_lab.models import CachedAttention, Transformer


@dataclass(frozen=True)
class Step:
    """New tokens of several sequences, packed side by side for one pass of the model: no padding between them.

    `tokens` and `positions` are (1, Q), `last` (R,) says which of them end a sequence's part, and `attend` writes their
    keys and values into the cache and attends over what it holds. `new` has the tokens by sequence.
    """

    new: Mapping[int, Sequence[int]]
    tokens: torch.Tensor
    positions: torch.Tensor
    last: torch.Tensor
    attend: CachedAttention


class Cache(ABC):
    """Keys and values of the tokens that a model has seen, by sequence; sequences are numbered from 0.

    The interface says nothing of where they lie or how they are encoded. A step has two halves, so that a pass which
    fails changes no length: `prepare` finds room for new tokens, `commit` counts them in once the model has run. Every
    method raises InputError, in one line, for a sequence that is not in the cache.
    """

    model: Transformer
    """Model whose keys and values these are: no other can use them, be its sizes the same."""

    chunk: int | None = None
    """Most new tokens that a sequence may have in one step; None where there is no limit."""

    @property
    @abstractmethod
    def sequences(self) -> list[int]:
        """Numbers of the sequences in the cache, in the order in which they came."""

    @abstractmethod
    def start(self, prompt: Sequence[int] = ()) -> int:
        """Number of a new sequence; its `length` says how much of the prompt is here already, never all of it."""

    @abstractmethod
    def fork(self, sequence: int) -> int:
        """Number of a new sequence with the tokens of another one, which both may go on from."""

    @abstractmethod
    def truncate(self, sequence: int, length: int) -> None:
        """Forget all but the first `length` tokens; InputError where a layout has given up what would be needed."""

    @abstractmethod
    def drop(self, sequence: int) -> None:
        """Forget a sequence and give back its room."""

    @abstractmethod
    def length(self, sequence: int) -> int:
        """Number of a sequence's tokens that have been committed, which is the position of the next one."""

    @abstractmethod
    def prepare(self, new: Mapping[int, Sequence[int]]) -> Step:
        """Find room for new tokens of some sequences, one or more each.

        InputError, with nothing changed, where there is no room, no token or no context left.
        """

    @abstractmethod
    def commit(self, step: Step) -> None:
        """Count in the tokens of a step whose keys and values have all been written."""

    @property
    @abstractmethod
    def bytes_held(self) -> int:
        """Bytes that sequences take up, so that no other sequence can have them."""

    @property
    @abstractmethod
    def bytes_wasted(self) -> int:
        """Bytes held without a token in them that a next query would see."""


def extend(
    model: Transformer,
    cache: Cache,
    new: Mapping[int, Sequence[int]],
    *,
    every_token: bool = False,
    last: Mapping[int, int] | None = None,
) -> torch.Tensor:
    """Feed sequences of a cache their new tokens: logits after the last one of each, (R, V), in the order of `new`.

    With `every_token`, logits after each new token, (Q, V); with `last`, after as many of each sequence's last tokens
    as it says, none of those that it does not name. Sequences may have different numbers of tokens, before and new:
    prompts, chunks of prompts and single tokens go together in one pass, without gradients. InputError for a cache of
    another model and as `Cache.prepare` and `Transformer.forward` say; no length changes then.
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
        if last is not None:
            ends = zip(new, accumulate(map(len, new.values())), strict=True)
            wanted = [row for number, end in ends for row in range(end - last.get(number, 0), end)]
            rows = torch.tensor(wanted, dtype=torch.int64, device=step.last.device)
        logits: torch.Tensor = model(step.tokens, positions=step.positions, attend=step.attend, rows=rows)
    cache.commit(step)
    return logits.flatten(0, -2)  # (R, V), (Q, V), or a row for each token asked for
