"""Pipelines: gradients equal to one process, bubbles and memory equal to closed forms, messages counted."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from mlsys_lab.comm import Rank, RankError, run
from mlsys_lab.comm.simulate.cluster import Cluster
from mlsys_lab.configs import TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.flops.communication import bubble
from mlsys_lab.flops.layout import Layout
from mlsys_lab.models import Transformer
from mlsys_lab.parallel.data import DDP
from mlsys_lab.parallel.pipeline import (
    Action,
    Pipeline,
    Schedule,
    gpipe,
    interleaved,
    issue_schedule,
    one_forward_one_backward,
    zb_h1,
)
from mlsys_lab.parallel.pipeline.schedules import max_in_flight
from mlsys_lab.parallel.pipeline.transformer import TransformerChunk
from mlsys_lab.parallel.pipeline.weight_grad_store import WeightGradStore
from mlsys_lab.parallel.tags import Tag
from tests.parallel.pipeline.zero_bubble import split_bubble

ROWS, WIDTH = 3, 5
CASES = {
    "gpipe": (lambda p, m: gpipe(p, m), 1),
    "1F1B": (lambda p, m: one_forward_one_backward(p, m), 1),
    "two chunks": (lambda p, m: interleaved(p, m, 2), 2),
    "three chunks": (lambda p, m: interleaved(p, m, 3), 3),
}
each_case = pytest.mark.parametrize(("make", "chunks"), CASES.values(), ids=CASES)
SPLIT = CASES | {"zero bubble": (lambda p, m: zb_h1(p, m), 1)}


def layers(count: int) -> list[nn.Module]:
    with torch.random.fork_rng():
        torch.manual_seed(6)
        return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()).double() for _ in range(count)]


def data(micro_batches: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    x, y = torch.randn(2, micro_batches, ROWS, WIDTH, dtype=torch.float64, generator=generator)
    return x, y


@pytest.mark.parametrize(("make", "chunks"), SPLIT.values(), ids=SPLIT)
@pytest.mark.parametrize(("p", "m"), [(2, 2), (2, 6), (3, 3), (4, 8)])
def test_gradients_equal_one_process_and_messages_are_counted(
    make: Callable[[int, int], Schedule], chunks: int, p: int, m: int
) -> None:
    x, y = data(m)

    def train(rank: Rank, _: None) -> tuple[torch.Tensor | None, list[torch.Tensor | None]]:
        mine = layers(chunks * p)[rank.rank :: p]
        loss = Pipeline(mine, rank).step(make(p, m), list(x), list(y), nn.functional.mse_loss)
        return loss, [parameter.grad for layer in mine for parameter in layer.parameters()]

    results, ledger = run(train, [None] * p)
    model = nn.Sequential(*layers(chunks * p))
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    torch.testing.assert_close(results[-1][0], loss.detach())
    assert [mean for mean, _ in results[:-1]] == [None] * (p - 1)
    for rank, (_, gradients) in enumerate(results):
        whole = [parameter.grad for layer in list(model)[rank::p] for parameter in layer.parameters()]
        torch.testing.assert_close(gradients, whole, rtol=1e-12, atol=1e-15)
    expected = (chunks * p - 1) * m * ROWS * WIDTH * 8
    assert ledger.purpose_bytes() == {Tag.STAGE_ACTIVATIONS: expected, Tag.STAGE_GRADIENTS: expected}


@pytest.mark.parametrize("chunks", [1, 2, 3])
@pytest.mark.parametrize(("p", "m"), [(2, 2), (2, 6), (3, 3), (4, 4), (4, 16)])
def test_micro_batches_in_flight_are_those_of_the_closed_form(p: int, m: int, chunks: int) -> None:
    layout = Layout(pipeline=p, interleave=chunks)
    kept = [max_in_flight(order) / chunks for order in interleaved(p, m, chunks)]
    assert kept == [layout.in_flight(stage, m) for stage in range(p)]


def test_one_rank_has_all_layers_in_one_chunk() -> None:
    x, y = data(3)

    def train(rank: Rank, chunks: int) -> torch.Tensor | None:
        pipeline = Pipeline([nn.Sequential(*layers(2))] * chunks, rank)
        return pipeline.step(one_forward_one_backward(1, 3), list(x), list(y), nn.functional.mse_loss)

    ((loss,), _) = run(train, [1])
    torch.testing.assert_close(loss, nn.functional.mse_loss(nn.Sequential(*layers(2))(x), y).detach())
    for chunks in (0, 2):
        with pytest.raises((RankError, InputError), match=f"got {chunks} on each of 1 ranks"):
            run(train, [chunks])


@each_case
@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 4), (8, 16)])
def test_idle_time_is_the_closed_form(make: Callable[[int, int], Schedule], chunks: int, p: int, m: int) -> None:
    cluster = Cluster(p)
    issue_schedule(cluster, make(p, m), forward_s=1.0, backward_s=2.0)
    busy = 3.0 * m
    assert cluster.timeline().busy_s(0) == pytest.approx(busy)
    assert cluster.timeline().end_s / busy - 1 == pytest.approx(bubble(p, m, interleave=chunks))


def test_micro_batches_in_flight() -> None:
    p, m = 4, 8
    assert [max_in_flight(order) for order in gpipe(p, m)] == [m] * p
    assert [max_in_flight(order) for order in one_forward_one_backward(p, m)] == [4, 3, 2, 1]
    for schedule in (gpipe(p, m), one_forward_one_backward(p, m)):
        cluster = Cluster(p)
        issue_schedule(cluster, schedule, forward_s=1.0, backward_s=2.0, activation_bytes=10.0)
        assert [cluster.timeline().peak_bytes(rank) for rank in range(p)] == [
            10 * max_in_flight(one) for one in schedule
        ]


@pytest.mark.parametrize(("p", "m"), [(1, 1), (2, 2), (2, 5), (4, 4), (4, 16), (8, 12)])
@pytest.mark.parametrize(("inputs", "weights"), [(1.0, 1.0), (1.2, 0.8), (2.0, 1.0), (1.5, 0.25)])
def test_the_zero_bubble_schedule_has_the_bubble_of_the_paper(p: int, m: int, inputs: float, weights: float) -> None:
    """A smaller bubble than 1F1B's, for no more memory than its first rank needs."""
    ends, schedule = [], zb_h1(p, m)
    for one in (schedule, one_forward_one_backward(p, m)):
        cluster = Cluster(p)
        issue_schedule(
            cluster, one, forward_s=1.0, backward_s=inputs + weights, weight_s=weights, activation_bytes=10.0
        )
        assert max(cluster.timeline().peak_bytes(rank) for rank in range(p)) == 10 * min(p, m)
        ends.append(cluster.timeline().end_s / (m * (1 + inputs + weights)) - 1)
    assert ends[0] == pytest.approx(split_bubble(p, m, inputs=inputs, weights=weights))
    assert ends[1] == pytest.approx(bubble(p, m)) and (p == 1 or ends[0] < ends[1])
    assert [max_in_flight(order) for order in schedule] == [min(p, m)] * p


def test_the_idle_time_of_a_split_backward_pass_has_its_bounds() -> None:
    for given in ({"stages": 4, "micro_batches": 3}, {"stages": 2, "micro_batches": 4, "weights": 1.5}):
        with pytest.raises(InputError, match="this schedule's idle time has another form"):
            split_bubble(**given)


def test_postponed_weight_gradients_are_averaged_over_replicas_once() -> None:
    """Two replicas of two stages: hooks of linear layers run in the weight-gradient passes, those of norms before."""
    m, p = 4, 2
    x, y = data(m)

    def make() -> list[nn.Module]:
        return [nn.Sequential(nn.LayerNorm(WIDTH).double(), one) for one in layers(p)]

    def train(rank: Rank, _: None) -> list[torch.Tensor | None]:
        stage, half = rank.rank // 2, rank.rank % 2
        pipes, copies = rank.group([half, 2 + half]), rank.group([2 * stage, 2 * stage + 1])
        model = DDP(make()[stage], copies, bucket_bytes=100)
        mine = range(half, m, 2)
        Pipeline([model], pipes).step(
            zb_h1(p, m // 2),
            [x[i] for i in mine],
            [y[i] for i in mine],
            nn.functional.mse_loss,
            lambda _chunk, is_last: nullcontext() if is_last else model.no_sync(),
        )
        model.finish_gradient_synchronization()
        return [parameter.grad for parameter in model.parameters()]

    results, _ = run(train, [None] * 4)
    whole = nn.Sequential(*make())
    nn.functional.mse_loss(whole(x), y).backward()
    for rank, gradients in enumerate(results):
        expected = [parameter.grad for parameter in whole[rank // 2].parameters()]
        torch.testing.assert_close(gradients, expected, rtol=1e-12, atol=1e-15)


def test_postponed_weight_gradients_are_computed_once_and_not_for_frozen_weights() -> None:
    first, second = nn.Linear(WIDTH, WIDTH).double(), nn.Linear(WIDTH, 2, bias=False).double()
    first.weight.requires_grad_(False)
    x = data(1)[0].requires_grad_()  # (1, ROWS, WIDTH)
    with WeightGradStore() as store:
        result = second(first(x)).square().sum()
    result.backward()
    assert x.grad is not None and second.weight.grad is None and first.bias.grad is None
    for _ in range(2):  # the second time there is nothing left
        store.backward()
        whole = torch.autograd.grad(second(first(x)).square().sum(), [x, first.bias, second.weight])
        torch.testing.assert_close([x.grad, first.bias.grad, second.weight.grad], list(whole), rtol=1e-12, atol=0)
    assert first.weight.grad is None


def test_messages_that_take_time_make_idle_time_and_interleaving_has_more_of_them() -> None:
    ends = []
    for schedule in (one_forward_one_backward(4, 8), interleaved(4, 8, 2)):
        quick, slow = Cluster(4), Cluster(4)
        issue_schedule(quick, schedule, forward_s=1.0, backward_s=2.0)
        issue_schedule(slow, schedule, forward_s=1.0, backward_s=2.0, send_s=0.2)
        ends.append(slow.timeline().end_s - quick.timeline().end_s)
    assert 0 < ends[0] < ends[1]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: gpipe(0, 1), "a pipeline has at least one rank and micro-batch: got 0 and 1"),
        (lambda: interleaved(4, 6, 2), "must be a multiple of the ranks: got 6 over 4 ranks, 2 chunks"),
        (lambda: interleaved(2, 4, 0), "a rank needs at least one model chunk: got 0"),
        (lambda: issue_schedule(Cluster(2), gpipe(3, 1), forward_s=1, backward_s=2), "another number of ranks: got 3"),
        (
            lambda: issue_schedule(
                Cluster(1), [[Action("backward", 0), Action("forward", 0)]], forward_s=1, backward_s=2
            ),
            "the schedule deadlocks: got rank 0 waits forever at",
        ),
    ],
)
def test_invalid_schedules_raise(call: Callable[[], object], said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        call()


def test_a_schedule_of_another_pipeline_raises() -> None:
    x, y = data(2)

    def train(rank: Rank, schedule: Schedule) -> None:
        Pipeline(layers(1), rank).step(schedule, list(x), list(y), nn.functional.mse_loss)

    for schedule in (gpipe(3, 2), gpipe(2, 3), interleaved(2, 2, 2), zb_h1(2, 3)):
        with pytest.raises((RankError, InputError), match="the schedule does not match the pipeline"):
            run(train, [schedule] * 2)


def test_as_many_targets_as_inputs() -> None:
    x, y = data(2)

    def train(rank: Rank, _: None) -> None:
        Pipeline(layers(1), rank).step(gpipe(1, 2), list(x), list(y)[:1], nn.functional.mse_loss)

    with pytest.raises((RankError, InputError), match="every micro-batch needs inputs and targets: got 2 and 1"):
        run(train, [None])


@pytest.mark.parametrize(("layers", "sizes"), [(6, [1, 2, 2, 1]), (5, [1, 2, 1, 1]), (7, [2, 2, 2, 1]), (8, [2] * 4)])
def test_layers_are_spread_over_stages_as_the_docstring_says(layers: int, sizes: list[int]) -> None:
    config = TransformerConfig("deep", n_layers=layers, d_model=8, n_heads=2, d_ff=8, vocab_size=5, context=4)
    stages = [TransformerChunk(Transformer(config), number, 4, torch.arange(4)) for number in range(4)]
    kept = [sum(not isinstance(block, nn.Identity) for block in stage.model.blocks) for stage in stages]
    assert kept == sizes
    layout = Layout(pipeline=4)
    assert max(kept) == layout.stage_layers(config)
    assert kept[0] == layout.stage_layers(config, first=True) and kept[-1] == layout.stage_layers(config, last=True)
    assert "6 layers in 4 chunks are [1, 2, 2, 1]" in str(TransformerChunk.__doc__)
