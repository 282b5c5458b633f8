"""Ring attention (Liu et al., arXiv:2310.01889): keys and values travel round the ranks, past queries that stay.

Letters: B sequences, N query heads, K key/value heads, T tokens of a sequence, H numbers of a head, p ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mlsys_lab.comm import Rank
from mlsys_lab.comm.collectives.rooted import receive
from mlsys_lab.errors import InputError

KEYS_VALUES, GRADIENTS = "keys and values", "gradients of keys and values"


def ring_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, group: Rank, positions: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Causal attention of this rank's queries with all ranks' keys: q (B, N, T/p, H), k, v (B, K, T/p, H) -> like q.

    positions: of every rank's tokens in the sequence, in order of rank, each (T/p,). No rank ever has more than two
    ranks' keys and values. Partial results are put together by their sums of exponentials, as in flash attention.
    A rank sends (p - 1)/p of all keys and values forward; backward as much again, and as many gradients. Raises
    InputError where positions and tokens are not of one number.
    """
    if [len(one) for one in positions] != [k.shape[2]] * group.size or q.shape[2] != k.shape[2]:
        got = f"{[len(one) for one in positions]} positions, {q.shape[2]} queries, {k.shape[2]} keys"
        raise InputError("every rank has as many tokens as positions", got=got)
    attended: torch.Tensor = _RingAttention.apply(q, k, v, group, positions)  # type: ignore[no-untyped-call]
    return attended


class _RingAttention(torch.autograd.Function):
    """Keys and values go round once forward; backward once more, with their gradients."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, group: Rank, positions: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        own = positions[group.rank]
        total, log_sum = torch.zeros_like(q), q.new_full(q.shape[:3], -torch.inf)
        here = torch.stack([k, v])
        for step in range(group.size):  # its own keys first, of which every query sees one at least
            coming = _Hop(group, here, KEYS_VALUES) if step < group.size - 1 else None
            seen = positions[(group.rank - step) % group.size]
            if seen.min() <= own.max():
                scores = _scores(q, here[0], own, seen)
                both = torch.logaddexp(log_sum, scores.logsumexp(-1))
                kept = torch.exp(log_sum - both)[..., None]
                total = total * kept + torch.exp(scores - both[..., None]) @ _for_each_query(here[1], q)
                log_sum = both
            here = coming.wait() if coming else here
        ctx.group, ctx.positions = group, positions
        ctx.save_for_backward(q, k, v, total, log_sum)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor | None, ...]:
        q, k, v, total, log_sum = ctx.saved_tensors
        group, positions, (d_total,) = ctx.group, ctx.positions, gradients
        own, delta = positions[group.rank], (d_total * total).sum(-1, keepdim=True)
        dq, here = torch.zeros_like(q), torch.stack([k, v])

        def differentiate(keys_values: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
            """Add to dq; returns the gradients of these keys and values, (2, B, K, T/p, H)."""
            if seen.min() > own.max():
                return torch.zeros_like(keys_values)
            keys, values = (_for_each_query(one, q) for one in keys_values)
            weights = torch.exp(_scores(q, keys_values[0], own, seen) - log_sum[..., None])
            d_scores = weights * (d_total @ values.mT - delta) * q.shape[-1] ** -0.5
            dq.add_(d_scores @ keys)
            of_heads = torch.stack([d_scores.mT @ q, weights.mT @ d_total])
            groups = of_heads.reshape(2, len(k), k.shape[1], -1, *k.shape[2:])
            return groups.sum(3)

        # Gradients of a rank's keys set out on its right and go round with the keys, so that the last step leads home.
        travelling: _Hop | None = None
        for step in range(1, group.size):
            here = _Hop(group, here, KEYS_VALUES).wait()
            part = differentiate(here, positions[(group.rank - step) % group.size])
            travelling = _Hop(group, part + travelling.wait() if travelling else part, GRADIENTS)
        at_home = differentiate(torch.stack([k, v]), own)
        dk, dv = at_home + travelling.wait() if travelling else at_home
        return dq, dk, dv, None, None


class _Hop:
    """An array on its way to the rank on the right, while one of its shape comes from the left."""

    def __init__(self, group: Rank, array: torch.Tensor, purpose: str) -> None:
        self._sent = group.isend(array, (group.rank + 1) % group.size, purpose)
        self._coming = group.irecv((group.rank - 1) % group.size, like=array)

    def wait(self) -> torch.Tensor:
        array = receive(self._coming)
        self._sent.wait()
        return array


def _scores(q: torch.Tensor, k: torch.Tensor, own: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """Scaled scores (B, N, T/p, T/p), -inf for keys at later positions."""
    scores: torch.Tensor = q @ _for_each_query(k, q).mT * q.shape[-1] ** -0.5
    return scores.masked_fill((seen > own[:, None]).to(q.device), -torch.inf)


def _for_each_query(x: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Keys or values (B, K, T, H), each repeated for the query heads that use it: (B, N, T, H)."""
    return x.repeat_interleave(q.shape[1] // x.shape[1], 1)
