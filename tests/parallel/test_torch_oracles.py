"""Our techniques against torch's own, on two processes over gloo: losses and gradients equal to 1e-13.

Both libraries take the same model and rows on each rank, and each rank compares what it is left with.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
import torch
from torch import nn

from mlsys_lab.comm import Rank, run
from mlsys_lab.models.transformer import Transformer
from mlsys_lab.parallel.data import DDP
from mlsys_lab.parallel.pipeline import Pipeline, one_forward_one_backward
from mlsys_lab.parallel.tensor import apply_tensor_parallel, vocab_parallel_cross_entropy
from mlsys_lab.parallel.zero import FSDP
from tests.parallel.training import CONFIG, loss_of, make_batches, make_model

RANKS, MICRO_BATCHES = 2, 4
Gradients = dict[str, torch.Tensor]
Found = tuple[float | None, Gradients]
"""A loss, where this rank has one, and gradients by name."""


def read_gradients(named: Iterable[tuple[str, nn.Parameter]]) -> Gradients:
    return {name: parameter.grad for name, parameter in named if parameter.grad is not None}


def mean_gradients(model: nn.Module, named: nn.Module, rows: torch.Tensor) -> Found:
    loss = loss_of(model, rows)
    loss.backward()
    return loss.item(), read_gradients(named.named_parameters())


def data_parallel(rank: Rank) -> tuple[Found, Found]:
    rows = make_batches(rows=6, steps=1)[0].chunk(RANKS)[rank.rank]
    ours = DDP(make_model(), rank, bucket_bytes=600)
    found = mean_gradients(ours, ours.module, rows)
    ours.finish_gradient_synchronization()
    theirs = nn.parallel.DistributedDataParallel(make_model(), process_group=rank.torch_group)
    return found, mean_gradients(theirs, theirs.module, rows)


def fully_sharded(rank: Rank) -> tuple[Found, Found]:
    """All-gathered gradients of shards: torch shards each parameter by rows, we shard the flattened layer."""
    from torch.distributed.fsdp import fully_shard

    rows = make_batches(rows=6, steps=1)[0].chunk(RANKS)[rank.rank]
    ours = FSDP(make_model(), rank)
    loss = loss_of(ours, rows)
    loss.backward()
    ours.finish_gradient_synchronization()
    with torch.no_grad():
        for shard in ours.parameters():
            shard.copy_(shard.grad)
    theirs = make_model()
    for block in theirs.blocks:
        fully_shard(block)
    fully_shard(theirs)
    expected, gradients = mean_gradients(theirs, theirs, rows)
    return (loss.item(), ours.gather_full_params()), (expected, {n: g.full_tensor() for n, g in gradients.items()})


def tensor_parallel(rank: Rank) -> tuple[Found, Found]:
    """Heads, hidden units and vocabulary sharded: this rank's shards."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleOutput,
        RowwiseParallel,
        loss_parallel,
        parallelize_module,
    )

    def make() -> Transformer:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return Transformer(replace(CONFIG, vocab_size=12, tied=False)).double()

    tokens = make_batches(rows=3, steps=1)[0]
    ours = apply_tensor_parallel(make(), rank)
    loss = vocab_parallel_cross_entropy(ours(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten(), rank)
    loss.backward()

    theirs, mesh = make(), init_device_mesh("cpu", (RANKS,))
    parallelize_module(theirs, mesh, {"embedding": RowwiseParallel(input_layouts=Replicate())})
    for block in theirs.blocks:
        columns = {f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")}
        columns |= {f"mlp.{name}": ColwiseParallel() for name in ("gate", "up")}
        parallelize_module(block, mesh, columns | dict.fromkeys(("attention.out", "mlp.down"), RowwiseParallel()))
    whole = PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Replicate(), use_local_output=False)
    parallelize_module(theirs, mesh, {"norm": whole, "head": ColwiseParallel(use_local_output=False)})
    with loss_parallel():
        expected = loss_of(theirs, tokens)
        expected.backward()
    parts = read_gradients(theirs.named_parameters())
    for name, parameter in theirs.named_parameters():
        if isinstance(parameter, DTensor):
            parts[name] = parts[name].redistribute(placements=parameter.placements).to_local()
    return (loss.item(), read_gradients(ours.named_parameters())), (expected.full_tensor().item(), parts)


def pipelined(rank: Rank) -> tuple[Found, Found]:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    def make() -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(6)
            layers = [nn.Sequential(nn.Linear(5, 5), nn.Tanh()).double() for _ in range(RANKS)]
        return layers[rank.rank]

    x, y = torch.randn(2, 3 * MICRO_BATCHES, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    own, loss_of_rows = make(), nn.functional.mse_loss
    schedule = one_forward_one_backward(RANKS, MICRO_BATCHES)
    loss = Pipeline([own], rank).step(schedule, x.chunk(MICRO_BATCHES), y.chunk(MICRO_BATCHES), loss_of_rows)
    theirs, losses = make(), []
    stage = PipelineStage(theirs, rank.rank, RANKS, torch.device("cpu"))
    torchs = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=loss_of_rows)
    if rank.rank == 0:
        torchs.step(x)
    else:
        torchs.step(target=y, losses=losses)
    expected = torch.stack(losses).mean().item() if losses else None
    found = None if loss is None else loss.item()
    return (found, read_gradients(own.named_parameters())), (expected, read_gradients(theirs.named_parameters()))


TECHNIQUES = {
    "DistributedDataParallel": data_parallel,
    "fully_shard": fully_sharded,
    "parallelize_module": tensor_parallel,
    "Schedule1F1B": pipelined,
}


@pytest.fixture(scope="module")
def compared() -> list[dict[str, tuple[Found, Found]]]:
    """Results of our technique and torch's on each rank: all in one launch, because starting takes most of the time."""

    def compare(rank: Rank, techniques: dict[str, Callable[[Rank], tuple[Found, Found]]]):
        warnings.simplefilter("ignore")  # torch's, about its own parts that are in the making
        return {name: technique(rank) for name, technique in techniques.items()}

    results, _ = run(compare, [TECHNIQUES] * RANKS, backend="gloo")
    return results


@pytest.mark.parametrize("name", TECHNIQUES)
def test_losses_and_gradients_are_torchs(name: str, compared) -> None:
    for (loss, gradients), (expected, torchs) in (by_name[name] for by_name in compared):
        assert loss == (None if expected is None else pytest.approx(expected, rel=1e-13))
        assert gradients.keys() == torchs.keys() and gradients
        for parameter, gradient in torchs.items():
            torch.testing.assert_close(gradients[parameter], gradient, rtol=1e-13, atol=1e-15)
