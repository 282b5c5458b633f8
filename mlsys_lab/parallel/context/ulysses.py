"""Ulysses (Jacobs et al., arXiv:2309.14509): tokens are exchanged for heads, so that attention finds whole sequences.

Letters: B sequences, N query heads, K key/value heads, T tokens of a sequence, H numbers of a head, p ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from mlsys_lab.comm import Rank
from mlsys_lab.comm.collectives.exchange import all_to_all
from mlsys_lab.errors import InputError

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def ulysses_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, group: Rank, positions: Sequence[torch.Tensor], attend: Attend
) -> torch.Tensor:
    """Attention with tokens divided over the ranks: q (B, N, T/p, H), k, v (B, K, T/p, H) -> like q.

    Before `attend`, any attention of whole sequences, an all-to-all gives each rank all tokens of 1/p of the heads;
    another one behind it brings them back. positions: of every rank's tokens, in order of rank, each (T/p,). A rank
    sends (p - 1)/p of its queries, keys, values and results. Raises InputError where heads cannot be divided evenly.
    """
    if k.shape[1] % group.size:
        raise InputError("heads cannot be divided evenly", got=f"{k.shape[1]} of keys over {group.size} ranks")
    order = torch.argsort(torch.cat(list(positions)))

    def gather(x: torch.Tensor) -> torch.Tensor:
        """All tokens of this rank's heads, in the order of the sequence."""
        return _Exchange.apply(x, group, 1, 2)[:, :, order]  # type: ignore[no-any-return, no-untyped-call]

    attended = attend(gather(q), gather(k), gather(v))[:, :, torch.argsort(order)]
    back: torch.Tensor = _Exchange.apply(attended, group, 2, 1)  # type: ignore[no-untyped-call]
    return back


class _Exchange(torch.autograd.Function):
    """Divide `divided` over the ranks and put the parts that come together along `joined`; backward the other way."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Rank, divided: int, joined: int) -> torch.Tensor:
        ctx.group, ctx.divided, ctx.joined = group, divided, joined
        return torch.cat(all_to_all(group, [part.contiguous() for part in x.chunk(group.size, divided)]), joined)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor, None, None, None]:
        parts = [part.contiguous() for part in gradients[0].chunk(ctx.group.size, ctx.joined)]
        return torch.cat(all_to_all(ctx.group, parts), ctx.divided), None, None, None
