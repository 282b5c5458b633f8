"""Context parallelism: attention and its gradients equal to one process, bytes and work equal to closed forms."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import pytest
import torch

from mlsys_lab.comm import Rank, RankError, run
from mlsys_lab.configs import TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.flops.communication import context_parallel_bytes, ulysses_bytes
from mlsys_lab.models.attention import fused_attention
from mlsys_lab.parallel import context
from mlsys_lab.parallel.context import (
    contiguous_positions,
    count_scores,
    ring_attention,
    ulysses_attention,
    zigzag_positions,
)
from mlsys_lab.parallel.tags import Tag

B, N, K, T, H = 2, 8, 4, 24, 6
CONFIG = TransformerConfig("c", 1, d_model=N * H, n_heads=N, d_ff=8, vocab_size=9, context=T, n_kv_heads=K)
PLACES = {"contiguous": contiguous_positions, "zigzag": zigzag_positions}
Divide = Callable[[int, int], list[torch.Tensor]]


def drawn() -> tuple[torch.Tensor, ...]:
    """Queries, keys, values and the gradient of the output."""
    generator = torch.Generator().manual_seed(8)
    shapes = ((B, N, T, H), (B, K, T, H), (B, K, T, H), (B, N, T, H))
    return tuple(3 * torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes)


def ulysses(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rank: Rank, positions: list[torch.Tensor]
) -> torch.Tensor:
    return ulysses_attention(q, k, v, rank, positions, lambda q, k, v: fused_attention(q, k, v, None))


@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("attention", [ring_attention, ulysses], ids=["ring", "ulysses"])
@pytest.mark.parametrize("p", [1, 2, 4])
def test_attention_and_gradients_equal_one_process(
    p: int, attention: Callable[..., torch.Tensor], places: Divide
) -> None:
    positions = places(T, p)

    def attend(rank: Rank, _: None) -> list[torch.Tensor | None]:
        q, k, v, gradient = (x[:, :, positions[rank.rank]] for x in drawn())
        inputs = [x.clone().requires_grad_() for x in (q, k, v)]
        out = attention(*inputs, rank, positions)
        out.backward(gradient)
        return [out.detach(), *(x.grad for x in inputs)]

    results, _ = run(attend, [None] * p)
    *inputs, gradient = drawn()
    for x in inputs:
        x.requires_grad_()
    whole = fused_attention(*inputs, None)
    whole.backward(gradient)
    order = torch.argsort(torch.cat(positions))
    for parts, expected in zip(zip(*results, strict=True), [whole.detach(), *(x.grad for x in inputs)], strict=True):
        torch.testing.assert_close(torch.cat(parts, 2)[:, :, order], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("p", [2, 3, 4])
def test_bytes_of_the_ring_are_the_closed_form(p: int) -> None:
    positions = contiguous_positions(T, p)

    def attend(rank: Rank, _: None) -> None:
        q, k, v, gradient = (x[:, :, positions[rank.rank]].clone().requires_grad_() for x in drawn())
        ring_attention(q, k, v, rank, positions).backward(gradient.detach())

    _, ledger = run(attend, [None] * p)
    forward = p * context_parallel_bytes(CONFIG, B * T, p, layers=1, element_bytes=8)
    sent = ledger.purpose_bytes()
    assert sent[Tag.RING_KV] == pytest.approx(2 * forward)  # forward, and again backward
    assert sent[Tag.RING_KV_GRADIENTS] == pytest.approx(forward)


@pytest.mark.parametrize("p", [2, 4])
def test_bytes_of_ulysses_shrink_with_the_ranks(p: int) -> None:
    positions = zigzag_positions(T, p)

    def attend(rank: Rank, _: None) -> None:
        ulysses(*(x[:, :, positions[rank.rank]] for x in drawn()[:3]), rank, positions)

    _, ledger = run(attend, [None] * p)
    sent = ulysses_bytes(CONFIG, B * T / p, p, layers=1, element_bytes=8)
    assert ledger.total_bytes == pytest.approx(p * sent)


def count_computed(p: int, positions: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of query-key pairs whose scores each rank computes, in a forward and a backward pass."""
    owner = {int(position): rank for rank, own in enumerate(positions) for position in own}
    counts, scores = Counter[int](), context._scores

    def count(q: torch.Tensor, k: torch.Tensor, q_positions: torch.Tensor, k_positions: torch.Tensor) -> torch.Tensor:
        counts[owner[int(q_positions[0])]] += q.shape[2] * k.shape[2]
        return scores(q, k, q_positions, k_positions)

    def attend(rank: Rank, _: None) -> None:
        q, k, v, gradient = (x[:, :, positions[rank.rank]].clone().requires_grad_() for x in drawn())
        ring_attention(q, k, v, rank, positions).backward(gradient.detach())

    monkeypatch.setattr(context, "_scores", count)
    run(attend, [None] * p)
    return [counts[rank] for rank in range(p)]


@pytest.mark.parametrize("p", [1, 2, 4])
def test_in_zigzag_order_every_rank_computes_half_of_each_other_ranks_block(
    p: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = 0.75 + (p - 1) / 2  # of its own block, one of four pairs of halves is masked
    counted = count_computed(p, zigzag_positions(T, p), monkeypatch)
    assert counted == [2 * blocks * (T // p) ** 2] * p


def test_in_contiguous_order_the_last_rank_computes_most(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = count_computed(4, contiguous_positions(T, 4), monkeypatch)
    assert counted == [2 * (0.75 + rank) * (T // 4) ** 2 for rank in range(4)]


def test_zigzag_gives_every_rank_equally_many_scores() -> None:
    for ranks in (1, 2, 4, 8):
        even, uneven = count_scores(zigzag_positions(64, ranks)), count_scores(contiguous_positions(64, ranks))
        assert sum(even) == sum(uneven) == 64 * 65 // 2
        assert len(set(even)) == 1
    assert max(uneven) / min(uneven) > 10


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda rank: zigzag_positions(12, 4), "tokens cannot be divided evenly: got 12 over 8"),
        (lambda rank: contiguous_positions(0, 1), "tokens cannot be divided evenly: got 0 over 1"),
        (lambda rank: ring_attention(*drawn()[:3], rank, [torch.arange(3)] * 3), "as many positions as tokens"),
        (
            lambda rank: ulysses(*drawn()[:3], rank, [torch.arange(T)] * 3),
            "KV heads cannot be divided evenly: got 4 over 3 ranks",
        ),
    ],
)
def test_uneven_shards_raise(call: Callable[[Rank], object], said: str) -> None:
    with pytest.raises((RankError, InputError), match=re.escape(said)):
        run(lambda rank, _: call(rank), [None] * 3)
