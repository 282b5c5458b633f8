"""ZeRO++: secondary shards change no result, int8 a little; bytes are those of the closed forms."""

from __future__ import annotations

import pytest
import torch

from mlsys_lab.comm import Rank, Run, run
from mlsys_lab.comm.collectives.chunks import split_chunks
from mlsys_lab.parallel.activation_checkpointing import apply_activation_checkpointing
from mlsys_lab.parallel.tags import Tag
from mlsys_lab.parallel.zero import FSDP, FSDPCollectives, Int8Collectives
from mlsys_lab.parallel.zero.fsdp import find_units
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

UNITS = [sum(one.numel() for one in parameters) for _, parameters in find_units(make_model())]
BLOCK_SIZE = 16


def train(
    p: int, secondary: int | None, collectives: FSDPCollectives | None, batches: torch.Tensor, kind: str = "none"
) -> Run:
    """Train on p ranks; groups of `secondary` neighbours keep secondary shards of the weights."""

    def program(rank: Rank, _: None) -> Trained:
        module = make_model(seed=rank.rank)
        apply_activation_checkpointing(module.blocks, kind)
        first = rank.rank - rank.rank % secondary if secondary else 0
        neighbours = rank.group(range(first, first + secondary)) if secondary else None
        model = FSDP(module, rank, collectives=collectives, secondary_group=neighbours)
        optimizer, losses = make_optimizer(model.parameters()), []
        for batch in rows_of(rank, batches):
            loss = loss_of(model, batch)
            loss.backward()
            model.finish_gradient_synchronization()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses, model.gather_full_params()

    return run(program, [None] * p)


def int8_bytes(p: int) -> int:
    """Bytes that all ranks send where each chunk of every unit goes from one to all others, or from all to one."""
    chunks = [len(chunk) for numel in UNITS for chunk in split_chunks(torch.empty(numel), p)]
    return (p - 1) * sum(length + 4 * -(-length // BLOCK_SIZE) for length in chunks)


@pytest.mark.parametrize(("p", "secondary", "kind"), [(2, 1, "none"), (4, 2, "none"), (4, 2, "full"), (3, 3, "none")])
def test_a_secondary_copy_spares_a_gather_and_changes_nothing(p: int, secondary: int, kind: str) -> None:
    batches = make_batches(rows=12)
    trained, ledger = train(p, secondary, None, batches, kind)
    assert_equal(trained, train_alone(batches))
    sent, whole = ledger.purpose_bytes(), 8 * sum(UNITS)
    assert sent[Tag.WEIGHTS] == len(batches) * (p - 1) * whole  # forward alone
    assert sent.get(Tag.SECONDARY_WEIGHTS, 0) == len(batches) * p // secondary * (secondary - 1) * whole
    assert sent[Tag.GRADIENTS] == len(batches) * (p - 1) * whole


def test_what_eight_bits_save_and_what_they_cost_in_loss() -> None:
    """Exact bytes; at least nine tenths of the exact run's decrease of the loss; equal weights on all ranks."""
    p, batches = 4, make_batches(rows=8, steps=1).repeat(20, 1, 1)
    trained, ledger = train(p, 2, Int8Collectives(BLOCK_SIZE), batches)
    sent = ledger.purpose_bytes()
    assert sent[Tag.WEIGHTS] == sent[Tag.GRADIENTS] == len(batches) * int8_bytes(p)
    exact = train_alone(batches)
    rounded = torch.tensor([losses for losses, _ in trained]).mean(0)
    decrease = exact[0][0] - exact[0][-1]
    assert 0.9 * decrease < rounded[0] - rounded[-1] != decrease > 0.5
    for _, parameters in trained[1:]:  # all ranks go on from the same weights
        for name, value in trained[0][1].items():
            assert torch.equal(parameters[name], value)
