"""Optimizer offloading: results equal the device optimizer's, bytes in each direction those of the paper."""

from __future__ import annotations

import pytest
import torch

from mlsys_lab.comm import Rank, run
from mlsys_lab.flops.memory import RECIPES, states
from mlsys_lab.parallel.zero import (
    OffloadedOptimizer,
    ShardedDDP,
    ShardedOptimizer,
    clip_grad_norm,
    optimizer_state_bytes,
)
from tests.parallel.training import Trained, assert_equal, loss_of, make_batches, make_model, rows_of, train_alone

NUMEL = sum(parameter.numel() for parameter in make_model().parameters())
ADAM = {"lr": 0.01, "weight_decay": 0.1}
NARROW = {"master_dtype": torch.float32, **ADAM}
each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("p", [1, 3])
def test_equal_to_one_process(p: int, stage: int) -> None:
    batches = make_batches(rows=6)

    def train(rank: Rank, _: None) -> Trained:
        module, losses = make_model(seed=rank.rank), []
        optimizer = OffloadedOptimizer(module.parameters(), torch.optim.AdamW, rank, bucket_bytes=600, **ADAM)
        model = ShardedDDP(module, rank, optimizer) if stage == 2 else module
        for batch in rows_of(rank, batches):
            loss = loss_of(model, batch)
            loss.backward()
            if stage == 2:
                model.finish_gradient_synchronization()
            else:
                optimizer.reduce_gradients()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses, dict(module.named_parameters())

    assert_equal(run(train, [None] * p).results, train_alone(batches))


@each_device
@pytest.mark.parametrize("p", [1, 2, 4])
def test_two_bytes_down_and_two_up_and_the_rest_stays_below(p: int, device: str) -> None:
    """A step in bf16 with masters in fp32: weights bit for bit those of the device's own optimizer."""
    steps = 3
    batches = make_batches(rows=4, steps=steps).to(device)

    def train(rank: Rank, kind: type[ShardedOptimizer]) -> tuple[list[torch.Tensor], ShardedOptimizer]:
        model = make_model().bfloat16().to(device)
        optimizer = kind(model.parameters(), torch.optim.AdamW, rank, **NARROW)
        for batch in rows_of(rank, batches):
            loss_of(model, batch).backward()
            optimizer.reduce_gradients()
            clip_grad_norm([shard for _, shard in optimizer.bucket_shards], 0.1, rank)
            optimizer.step()
            optimizer.zero_grad()
        return [parameter.detach() for parameter in model.parameters()], optimizer

    offloaded = run(train, [OffloadedOptimizer] * p).results
    for (weights, _), (expected, _) in zip(offloaded, run(train, [ShardedOptimizer] * p).results, strict=True):
        assert all(weight.device.type == device for weight in weights)
        tolerance = {"rtol": 0, "atol": 0} if device == "cpu" else {"rtol": 2**-7, "atol": 1e-4}
        torch.testing.assert_close(weights, expected, **tolerance)
    optimizers = [optimizer for _, optimizer in offloaded]
    for direction in ("device_to_host_bytes", "host_to_device_bytes"):
        assert sum(getattr(one.traffic, direction) for one in optimizers) == steps * 2 * NUMEL
    asked = states(NUMEL, RECIPES["mixed16"], data=p, zero_stage=1)
    assert sum(optimizer_state_bytes(one.optimizer) for one in optimizers) == p * asked.moments
    assert {shard.device.type for one in optimizers for _, shard in one.bucket_shards} == {"cpu"}
