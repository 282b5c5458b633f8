"""Data parallelism: equal to one process, bytes equal to closed forms, and misuse raises."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import nn

from mlsys_lab.comm import Post, Rank, RankError, run
from mlsys_lab.errors import InputError
from mlsys_lab.flops.communication import all_reduce_bytes
from mlsys_lab.parallel.buckets import assign_buckets
from mlsys_lab.parallel.data import DDP, average_gradients, average_gradients_flat, loss_weights
from mlsys_lab.parallel.tags import Tag
from tests.comm import volumes
from tests.parallel.training import (
    Trained,
    assert_equal,
    loss_of,
    make_batches,
    make_model,
    make_optimizer,
    rows_of,
    train_alone,
)

PARAMETERS = sum(parameter.numel() for parameter in make_model().parameters())


def train_averaging(average: Callable[[nn.Module, Rank], None]) -> Callable[[Rank, torch.Tensor], Trained]:
    def train(rank: Rank, batches: torch.Tensor) -> Trained:
        model = make_model()
        optimizer, losses = make_optimizer(model.parameters()), []
        for batch in rows_of(rank, batches):
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            average(model, rank)
            optimizer.step()
            losses.append(loss.item())
        return losses, dict(model.named_parameters())

    return train


def train_ddp(bucket_bytes: float) -> Callable[[Rank, torch.Tensor], Trained]:
    def train(rank: Rank, batches: torch.Tensor) -> Trained:
        model = DDP(make_model(seed=rank.rank), rank, bucket_bytes)  # only rank 0 begins with the right one
        optimizer, losses = make_optimizer(model.parameters()), []
        for batch in rows_of(rank, batches):
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            model.finish_gradient_synchronization()
            optimizer.step()
            losses.append(loss.item())
        return losses, dict(model.module.named_parameters())

    return train


PROGRAMS = {
    "each": train_averaging(average_gradients),
    "flat": train_averaging(average_gradients_flat),
    "one bucket": train_ddp(1e9),
    "buckets": train_ddp(600),
    "a bucket each": train_ddp(1),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.parametrize("p", [1, 3, 4])
def test_equal_to_one_process(p: int, program: Callable[[Rank, torch.Tensor], Trained]) -> None:
    batches = make_batches(rows=12)
    trained, _ = run(program, [batches] * p)
    assert_equal(trained, train_alone(batches))


@pytest.mark.parametrize("p", [2, 3, 4])
def test_bytes_of_gradients_are_those_of_the_closed_form(p: int) -> None:
    batches = make_batches(rows=12, steps=1)
    _, ledger = run(PROGRAMS["one bucket"], [batches] * p)
    assert ledger.sent_bytes(Tag.GRADIENTS) == sent_bytes([PARAMETERS], p)
    assert sum(ledger.sent_bytes(Tag.GRADIENTS)) == p * all_reduce_bytes(8 * PARAMETERS, p)
    buckets = [bucket.numel for bucket in assign_buckets(make_model().parameters(), 600)]
    assert len(buckets) > 4
    _, ledger = run(PROGRAMS["buckets"], [batches] * p)
    assert ledger.sent_bytes(Tag.GRADIENTS) == sent_bytes(buckets, p)


def sent_bytes(buckets: list[int], p: int) -> list[int]:
    """Bytes of float64 that each rank sends to all-reduce these buckets."""
    by_bucket = [volumes.ring_all_reduce(numel, p).sent_elements(p) for numel in buckets]
    return [8 * sum(elements) for elements in zip(*by_bucket, strict=True)]


def test_gradients_are_sent_during_the_backward_pass() -> None:
    def train(rank: Rank, tokens: torch.Tensor) -> None:
        model = DDP(make_model(), rank, bucket_bytes=600)
        model.module.embedding.weight.register_hook(lambda _: rank.barrier())  # its gradient comes last of all
        loss_of(model, tokens).backward()
        model.finish_gradient_synchronization()

    _, ledger = run(train, [make_batches(rows=2, steps=1)[0]] * 2)
    purposes = [event.purpose for event in ledger.logs[0] if isinstance(event, Post) and event.kind == "send"]
    before = purposes[: purposes.index("barrier")].count(Tag.GRADIENTS)
    assert before > purposes.count(Tag.GRADIENTS) / 2


def test_buckets_take_the_last_parameters_first_and_one_kind_each() -> None:
    sizes = [(4, torch.float32), (3, torch.float32), (100, torch.float32), (2, torch.float64), (1, torch.float32)]
    parameters = [nn.Parameter(torch.zeros(numel, dtype=dtype)) for numel, dtype in sizes]
    frozen = nn.Parameter(torch.zeros(7), requires_grad=False)
    buckets = assign_buckets([*parameters, frozen], bucket_bytes=40)
    numels = [[parameter.numel() for parameter in bucket.parameters] for bucket in buckets]
    assert numels == [[1], [2], [100], [3, 4]]


@pytest.mark.parametrize("p", [1, 2, 3])
def test_micro_batches_of_unequal_length_weigh_by_their_tokens(p: int) -> None:
    """Rows of which only the first tokens count, other numbers of them on each rank and in each micro-batch."""
    rows = make_batches(rows=2 * p, steps=1)[0]
    lengths = torch.arange(2 * p) % 4 + 2
    lengths[-1] = 1  # no next token at all

    def total_loss(model: nn.Module, tokens: torch.Tensor, length: int) -> torch.Tensor:
        logits = model(tokens[None, : max(length - 1, 1)])[0]
        return nn.functional.cross_entropy(logits[: length - 1], tokens[1:length], reduction="sum")

    def train(rank: Rank, _: None) -> dict[str, torch.Tensor | None]:
        model = DDP(make_model(), rank, bucket_bytes=600)
        mine = [2 * rank.rank, 2 * rank.rank + 1]
        weights = loss_weights([int(lengths[row]) - 1 for row in mine], rank)
        for row, weight in zip(mine, weights, strict=True):
            loss = total_loss(model, rows[row], int(lengths[row])) / max(int(lengths[row]) - 1, 1) * weight
            if row == mine[-1]:
                loss.backward()
            else:
                with model.no_sync():
                    loss.backward()
        model.finish_gradient_synchronization()
        return {name: parameter.grad for name, parameter in model.module.named_parameters()}

    gradients, ledger = run(train, [None] * p)
    alone = make_model()
    losses = [total_loss(alone, row, int(length)) for row, length in zip(rows, lengths, strict=True)]
    (sum(losses) / (lengths - 1).sum()).backward()  # type: ignore[union-attr]
    for name, parameter in alone.named_parameters():
        for mine in gradients:
            torch.testing.assert_close(mine[name], parameter.grad, rtol=1e-10, atol=1e-13)
    buckets = [bucket.numel for bucket in assign_buckets(alone.parameters(), 600)]
    assert ledger.sent_bytes(Tag.GRADIENTS) == sent_bytes(buckets, p)  # of both micro-batches together


class TwoScales(nn.Module):
    """Multiplies by two parameters, or by the first alone."""

    def __init__(self, is_used: bool) -> None:
        super().__init__()
        self.first, self.second, self.is_used = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3)), is_used

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.first * (self.second if self.is_used else 1)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("unused", "parameters got no gradient: got 1 of 1, the first of shape (3,)"),
        (
            "twice",
            "got a second backward() for a parameter of shape (3,); help: call finish_gradient_synchronization() after "
            "each backward(); DDP can also use no_sync()",
        ),
        ("nothing", "no gradients have been computed since the last synchronisation: got 0 of a bucket's 1"),
    ],
)
def test_what_would_give_wrong_gradients_raises(wrong: str, said: str) -> None:
    def train(rank: Rank, x: torch.Tensor) -> None:
        model = DDP(TwoScales(is_used=wrong != "unused"), rank, bucket_bytes=1)
        model(x).sum().backward()
        if wrong == "twice":
            model(x).sum().backward()
        model.finish_gradient_synchronization()
        model.finish_gradient_synchronization()

    with pytest.raises((RankError, InputError), match=re.escape(said)):
        run(train, [torch.ones(3)] * 2)


def test_loss_weights_refuse_what_cannot_be() -> None:
    for tokens, said in (([0, 0], "no rank has a token"), ([3, -1], "must not be negative")):
        with pytest.raises((RankError, InputError), match=said):
            run(lambda rank, counts: loss_weights(counts, rank), [tokens])
    with pytest.raises(InputError, match="bucket_bytes=0"):
        assign_buckets(make_model().parameters(), 0)
    with pytest.raises(InputError, match="nothing to train"):
        assign_buckets(make_model().requires_grad_(False).parameters(), 1)
