"""Tensor parallelism: losses, gradients and five steps equal to one process; bytes equal to closed forms."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from mlsys_lab.comm import Rank, RankError, run
from mlsys_lab.errors import InputError
from mlsys_lab.flops import TransformerConfig
from mlsys_lab.flops.communication import all_reduce_bytes, gather_bytes, tensor_parallel_bytes
from mlsys_lab.models.transformer import Transformer
from mlsys_lab.parallel.tensor import divide_transformer, divided_cross_entropy
from mlsys_lab.parallel.tensor.loss import LOSS
from mlsys_lab.parallel.tensor.regions import ACTIVATIONS
from tests.parallel.training import make_optimizer

GROUPED = TransformerConfig("grouped", 2, d_model=16, n_heads=8, d_ff=24, vocab_size=24, context=6, n_kv_heads=4)
CONFIGS = {
    "rotary, gated, tied": replace(GROUPED, tied=True),
    "learned positions, biases": replace(
        GROUPED, position="learned", norm="layer", activation="gelu", mlp_bias=True, qkv_bias=True, out_bias=True
    ),
}
BATCHES = torch.randint(24, (5, 3, 6), generator=torch.Generator().manual_seed(3))


def make(config: TransformerConfig) -> Transformer:
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model = Transformer(config).double()
        for parameter in model.parameters():  # biases other than 0, and logits far from uniform
            nn.init.normal_(parameter, std=0.3)
        return model


def train_alone(config: TransformerConfig) -> tuple[list[float], Transformer]:
    model = make(config)
    optimizer, losses = make_optimizer(model.parameters()), []
    for tokens in BATCHES:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


def train_divided(rank: Rank, config: TransformerConfig) -> tuple[list[float], dict[str, torch.Tensor]]:
    model = divide_transformer(make(config), rank)
    optimizer, losses = make_optimizer(model.parameters()), []
    for tokens in BATCHES:
        optimizer.zero_grad()
        loss = divided_cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), rank)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: parameter.detach() for name, parameter in model.named_parameters()}


def put_together(parts: list[torch.Tensor], whole: torch.Tensor) -> torch.Tensor:
    """The parts of a parameter along the dimension in which they are shorter; replicas must be equal."""
    for dim in range(whole.ndim):
        if parts[0].shape[dim] < whole.shape[dim]:
            return torch.cat(parts, dim)
    for part in parts[1:]:
        torch.testing.assert_close(part, parts[0], rtol=0, atol=0)
    return parts[0]


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("p", [1, 2, 4])
def test_five_steps_equal_one_process(p: int, config: TransformerConfig) -> None:
    trained, ledger = run(train_divided, [config] * p)
    losses, model = train_alone(config)
    for mine, _ in trained:
        assert mine == pytest.approx(losses, rel=1e-12)
    for name, parameter in model.named_parameters():
        parts = [parameters[name] for _, parameters in trained]
        torch.testing.assert_close(put_together(parts, parameter), parameter.detach(), rtol=1e-8, atol=1e-10)
    tokens, targets = BATCHES[0].numel(), BATCHES[0][:, 1:].numel()
    steps, element = len(BATCHES), 8
    blocks = tensor_parallel_bytes(config, tokens, p, layers=config.n_layers, element_bytes=element)
    vocabulary = 2 * all_reduce_bytes(tokens * config.d_model * element, p)  # embedding forward, logits backward
    sent = ledger.purpose_bytes()
    assert sent.get(ACTIVATIONS, 0) == pytest.approx(p * steps * (blocks + vocabulary))
    assert sent.get(LOSS, 0) == pytest.approx(p * steps * gather_bytes(p * 3 * targets * element, p))


def test_a_rank_keeps_its_part_of_the_matrices() -> None:
    def count(rank: Rank, _: None) -> int:
        return sum(parameter.numel() for parameter in divide_transformer(make(GROUPED), rank).parameters())

    norms = sum(parameter.numel() for name, parameter in make(GROUPED).named_parameters() if "norm" in name)
    whole = sum(parameter.numel() for parameter in make(GROUPED).parameters())
    for p in (1, 2, 4):
        assert run(count, [None] * p).results == [(whole - norms) // p + norms] * p


@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_the_divided_loss_and_its_gradient_are_torchs(scale: float) -> None:
    """Also where logits are so large that exponentials overflow on all ranks but one."""
    logits = torch.randn(7, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(5)) * scale
    targets = torch.tensor([0, 11, 5, 6, 3, 3, 9])

    def part(rank: Rank, _: None) -> tuple[float, torch.Tensor]:
        mine = logits.chunk(rank.size, 1)[rank.rank].clone().requires_grad_()
        loss = divided_cross_entropy(mine, targets, rank)
        (2 * loss).backward()
        assert mine.grad is not None
        return loss.item(), mine.grad

    whole = logits.clone().requires_grad_()
    loss = nn.functional.cross_entropy(whole, targets)
    (2 * loss).backward()
    for p in (1, 2, 3, 4):
        results, _ = run(part, [None] * p)
        assert [mine for mine, _ in results] == pytest.approx([loss.item()] * p, rel=1e-12)
        torch.testing.assert_close(torch.cat([gradient for _, gradient in results], 1), whole.grad)


@pytest.mark.parametrize(
    ("changes", "p", "said"),
    [
        ({}, 3, "heads cannot be divided evenly: got 4 of keys over 3 ranks"),
        ({"d_ff": 25}, 2, "a dimension cannot be divided evenly: got 25 over 2 ranks"),
        ({"position": "alibi"}, 2, "this model is not divided here: got grouped with ALiBi"),
        ({"parallel_blocks": True, "qk_norm": True}, 2, "with parallel blocks, norms of queries and keys"),
    ],
)
def test_what_cannot_be_divided_is_told(changes: dict[str, Any], p: int, said: str) -> None:
    with pytest.raises((RankError, InputError), match=re.escape(said)):
        run(lambda rank, config: divide_transformer(make(config), rank), [replace(GROUPED, **changes)] * p)


def test_a_token_outside_the_whole_vocabulary_is_told() -> None:
    def look_up(rank: Rank, tokens: torch.Tensor) -> torch.Tensor:
        return divide_transformer(make(GROUPED), rank)(tokens)

    with pytest.raises((RankError, InputError), match="token outside the vocabulary: got 3 to 24, expected 0 to 23"):
        run(look_up, [torch.tensor([[3, 24]])] * 2)
