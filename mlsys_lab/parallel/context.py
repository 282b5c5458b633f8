"""Context parallelism: each rank holds some tokens of every sequence, and attention runs over the tokens of all ranks.

Ring attention (Liu et al., arXiv:2310.01889) passes keys and values around the ranks. Ulysses (Jacobs et al.,
arXiv:2309.14509) exchanges tokens for heads, so that each rank attends to full sequences with some of the heads.
Letters: B sequences, N query heads, K key/value heads, T tokens of a sequence, H head dimension, p ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from mlsys_lab.comm import Rank
from mlsys_lab.comm.collectives.all_to_all import all_to_all
from mlsys_lab.comm.collectives.rooted import receive
from mlsys_lab.errors import InputError
from mlsys_lab.parallel.tags import Tag

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def contiguous_positions(seq_len: int, ranks: int) -> list[torch.Tensor]:
    """Token positions (T/p,) of each rank, one contiguous chunk each: under a causal mask the last does most work."""
    _require_divisible(seq_len, ranks)
    return list(torch.arange(seq_len).chunk(ranks))


def zigzag_positions(seq_len: int, ranks: int) -> list[torch.Tensor]:
    """Token positions (T/p,) of each rank in zigzag order: of 2p chunks, rank i takes chunks i and 2p - 1 - i.

    In `ring_attention` all ranks then compute equally many scores (Llama 3, arXiv:2407.21783, §3.3.2).
    """
    _require_divisible(seq_len, 2 * ranks)
    chunks = torch.arange(seq_len).chunk(2 * ranks)
    return [torch.cat([chunks[rank], chunks[2 * ranks - 1 - rank]]) for rank in range(ranks)]


def count_scores(positions: Sequence[torch.Tensor]) -> list[int]:
    """Number of query-key pairs of each rank that a causal mask leaves, given the positions of its queries."""
    return [int((own + 1).sum()) for own in positions]


def ring_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, group: Rank, positions: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Causal attention of this rank's queries over all ranks' keys: q (B, N, T/p, H), k, v (B, K, T/p, H) -> like q.

    positions[r]: token positions (T/p,) on rank r. Each rank's tokens are computed in two halves, and a half that comes
    later than all queries of another is skipped; in zigzag order that is half of the work. A rank holds the keys and
    values of at most two other ranks besides its own. Partial results are merged by their log-sum-exp, as in flash
    attention. Each rank sends (p - 1)/p of all keys and values forward; backward as much again, and as many bytes of
    gradients. Raises InputError where a rank's positions and tokens differ in number.
    """
    if [len(one) for one in positions] != [k.shape[2]] * group.size or q.shape[2] != k.shape[2]:
        got = f"{[len(one) for one in positions]} positions, {q.shape[2]} queries, {k.shape[2]} keys"
        raise InputError("every rank needs as many positions as tokens", got=got)
    attended: torch.Tensor = _RingAttention.apply(q, k, v, group, positions)  # type: ignore[no-untyped-call]
    return attended


class _RingAttention(torch.autograd.Function):
    """Keys and values make one round of the ring forward, and another one backward together with their gradients."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, group: Rank, positions: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        q_positions = positions[group.rank]
        out, log_sum_exp = torch.zeros_like(q), q.new_full(q.shape[:3], -torch.inf)
        kv = torch.stack([k, v])  # (2, B, K, T/p, H)
        for step in range(group.size):  # this rank's own keys first: every query sees at least its own position
            shift = _RingShift(group, kv, Tag.RING_KV) if step < group.size - 1 else None
            k_positions = positions[(group.rank - step) % group.size]
            for queries, keys in _visible_halves(q_positions, k_positions):
                scores = _scores(q[:, :, queries], kv[0, :, :, keys], q_positions[queries], k_positions[keys])
                before = log_sum_exp[:, :, queries]
                merged = torch.logaddexp(before, scores.logsumexp(-1))
                attended = torch.exp(scores - merged[..., None]) @ _repeat_kv(kv[1, :, :, keys], q)
                out[:, :, queries] = out[:, :, queries] * torch.exp(before - merged)[..., None] + attended
                log_sum_exp[:, :, queries] = merged
            kv = shift.wait() if shift else kv
        ctx.group, ctx.positions = group, positions
        ctx.save_for_backward(q, k, v, out, log_sum_exp)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor | None, ...]:
        q, k, v, out, log_sum_exp = ctx.saved_tensors
        group, positions, (d_out,) = ctx.group, ctx.positions, gradients
        q_positions, delta = positions[group.rank], (d_out * out).sum(-1, keepdim=True)
        dq, kv = torch.zeros_like(q), torch.stack([k, v])

        def block_backward(kv: torch.Tensor, k_positions: torch.Tensor) -> torch.Tensor:
            """Add to dq; return the gradients of these keys and values, (2, B, K, T/p, H)."""
            d_kv = torch.zeros_like(kv)
            for queries, keys in _visible_halves(q_positions, k_positions):
                q_half, d_half = q[:, :, queries], d_out[:, :, queries]
                k_half, v_half = kv[:, :, :, keys]
                scores = _scores(q_half, k_half, q_positions[queries], k_positions[keys])
                weights = torch.exp(scores - log_sum_exp[:, :, queries, None])
                d_weights = d_half @ _repeat_kv(v_half, q).mT
                d_scores = weights * (d_weights - delta[:, :, queries]) * q.shape[-1] ** -0.5
                dq[:, :, queries] += d_scores @ _repeat_kv(k_half, q)
                d_heads = torch.stack([d_scores.mT @ q_half, weights.mT @ d_half])  # (2, B, N, T/2p, H)
                d_kv[:, :, :, keys] += d_heads.reshape(2, len(k), k.shape[1], -1, *d_half.shape[2:]).sum(3)
            return d_kv

        # Gradients of a rank's keys start at its right neighbour and follow the keys, so the last shift returns them.
        shift = _RingShift(group, kv, Tag.RING_KV) if group.size > 1 else None
        d_own, d_shift = block_backward(kv, q_positions), None
        for step in range(1, group.size):
            kv = shift.wait() if shift else kv
            shift = _RingShift(group, kv, Tag.RING_KV) if step < group.size - 1 else None
            d_kv = block_backward(kv, positions[(group.rank - step) % group.size])
            d_shift = _RingShift(group, d_kv + d_shift.wait() if d_shift else d_kv, Tag.RING_KV_GRADIENTS)
        dk, dv = d_own + d_shift.wait() if d_shift else d_own
        return dq, dk, dv, None, None


class _RingShift:
    """Send a tensor to the next rank of the ring while receiving one of the same shape from the previous rank."""

    def __init__(self, group: Rank, tensor: torch.Tensor, tag: str) -> None:
        self._send = group.isend(tensor, (group.rank + 1) % group.size, tag)
        self._receive = group.irecv((group.rank - 1) % group.size, like=tensor)

    def wait(self) -> torch.Tensor:
        tensor = receive(self._receive)
        self._send.wait()
        return tensor


def _visible_halves(q_positions: torch.Tensor, k_positions: torch.Tensor) -> list[tuple[slice, slice]]:
    """Pairs of half the queries and half the keys of which the causal mask hides only a part.

    Halves of the same index come first: among a rank's own tokens, every query then sees itself in its first pair.
    """
    first, second = slice(0, len(q_positions) // 2), slice(len(q_positions) // 2, None)
    pairs = [(first, first), (second, second), (first, second), (second, first)]
    if first.stop == 0:
        pairs = pairs[1:2]
    return [pair for pair in pairs if k_positions[pair[1]].min() <= q_positions[pair[0]].max()]


def _scores(q: torch.Tensor, k: torch.Tensor, q_positions: torch.Tensor, k_positions: torch.Tensor) -> torch.Tensor:
    """Scaled scores (B, N, T/2p, T/2p), -inf for keys at later positions than the query."""
    scores: torch.Tensor = q @ _repeat_kv(k, q).mT * q.shape[-1] ** -0.5
    return scores.masked_fill((k_positions > q_positions[:, None]).to(q.device), -torch.inf)


def _repeat_kv(x: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Keys or values (B, K, T, H), repeated for each query head of their group: (B, N, T, H)."""
    return x.repeat_interleave(q.shape[1] // x.shape[1], 1)


def ulysses_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    group: Rank,
    positions: Sequence[torch.Tensor],
    attention: Attention,
) -> torch.Tensor:
    """Attention over tokens sharded across ranks: q (B, N, T/p, H), k, v (B, K, T/p, H) -> like q.

    An all-to-all gives each rank all tokens of 1/p of the heads; `attention`, any attention over full sequences, runs
    on those; another all-to-all returns the results. positions[r]: token positions (T/p,) on rank r. Each rank
    sends (p - 1)/p of its queries, keys, values and results. Raises InputError unless p divides K.
    """
    if k.shape[1] % group.size:
        raise InputError("KV heads cannot be divided evenly", got=f"{k.shape[1]} over {group.size} ranks")
    order = torch.argsort(torch.cat(list(positions)))

    def seq_to_head_sharded(x: torch.Tensor) -> torch.Tensor:
        """All tokens of this rank's heads, in sequence order: (B, N, T/p, H) -> (B, N/p, T, H)."""
        return _HeadTokenAllToAll.apply(x, group, 1, 2)[:, :, order]  # type: ignore[no-any-return, no-untyped-call]

    out = attention(seq_to_head_sharded(q), seq_to_head_sharded(k), seq_to_head_sharded(v))[:, :, torch.argsort(order)]
    own: torch.Tensor = _HeadTokenAllToAll.apply(out, group, 2, 1)  # type: ignore[no-untyped-call]
    return own


class _HeadTokenAllToAll(torch.autograd.Function):
    """All-to-all that shards `scatter_dim` and gathers `gather_dim`; the backward pass does the reverse."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Rank, scatter_dim: int, gather_dim: int) -> torch.Tensor:
        ctx.group, ctx.scatter_dim, ctx.gather_dim = group, scatter_dim, gather_dim
        return torch.cat(all_to_all(group, [one.contiguous() for one in x.chunk(group.size, scatter_dim)]), gather_dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor, None, None, None]:
        chunks = [one.contiguous() for one in gradients[0].chunk(ctx.group.size, ctx.gather_dim)]
        return torch.cat(all_to_all(ctx.group, chunks), ctx.scatter_dim), None, None, None


def _require_divisible(tokens: int, chunks: int) -> None:
    if tokens < 1 or tokens % chunks:
        raise InputError("tokens cannot be divided evenly", got=f"{tokens} over {chunks}")
