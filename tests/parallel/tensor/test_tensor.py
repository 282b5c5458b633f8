"""Tensor parallelism: losses, gradients and five steps equal to one process; bytes equal to closed forms."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from mlsys_lab.benchmark.memory import track_memory
from mlsys_lab.comm import Rank, RankError, run
from mlsys_lab.configs import Experts, LatentAttention, TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.flops import activations
from mlsys_lab.flops.communication import (
    all_reduce_bytes,
    gather_bytes,
    tensor_parallel_bytes,
    vocabulary_parallel_bytes,
)
from mlsys_lab.models.transformer import Transformer
from mlsys_lab.parallel.activation_checkpointing import apply_activation_checkpointing
from mlsys_lab.parallel.tags import Tag
from mlsys_lab.parallel.tensor import apply_tensor_parallel, vocab_parallel_cross_entropy
from mlsys_lab.parallel.tensor.transformer import partial_gradient_parameters
from tests.parallel.training import make_optimizer

GROUPED = TransformerConfig("grouped", 2, d_model=16, n_heads=8, d_ff=24, vocab_size=24, context=8, n_kv_heads=4)
CONFIGS = {
    "rotary, gated, tied": replace(GROUPED, tied=True, scaled_embedding=True),
    "learned positions, biases": replace(
        GROUPED,
        position="learned",
        norm="layer",
        activation="gelu",
        mlp_bias=True,
        qkv_bias=True,
        out_bias=True,
        norm_bias=True,
        head_bias=True,
    ),
    "experts, query and key norms": replace(
        GROUPED, qk_norm=True, post_norms=True, experts=Experts(5, 2, 12, shared=1, dense_layers=1)
    ),
    "latent attention": replace(GROUPED, n_kv_heads=8, head_dim=0, latent=LatentAttention(10, 4, 2, 3, q_rank=6)),
    "latent attention, full-rank queries": replace(
        GROUPED, n_kv_heads=8, head_dim=0, latent=LatentAttention(10, 4, 2, 3)
    ),
}
BATCHES = torch.randint(24, (5, 3, 8), generator=torch.Generator().manual_seed(3))


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


def train_divided(
    rank: Rank, given: tuple[TransformerConfig, bool, str]
) -> tuple[list[float], dict[str, torch.Tensor]]:
    config, sequence_parallel, recomputation = given
    model = apply_tensor_parallel(make(config), rank, sequence_parallel=sequence_parallel)
    apply_activation_checkpointing(model.blocks, recomputation)
    optimizer, losses = make_optimizer(model.parameters()), []
    for tokens in BATCHES:
        optimizer.zero_grad()
        loss = vocab_parallel_cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), rank)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: parameter.detach() for name, parameter in model.named_parameters()}


def unshard(shards: list[torch.Tensor], whole: torch.Tensor) -> torch.Tensor:
    """A full parameter from its shards, or from replicas, which must be equal."""
    for dim in range(whole.ndim):
        if shards[0].shape[dim] < whole.shape[dim]:
            return torch.cat(shards, dim)
    for replica in shards[1:]:
        torch.testing.assert_close(replica, shards[0], rtol=0, atol=0)
    return shards[0]


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize(
    ("p", "sequence_parallel", "recomputation"),
    [
        (1, True, "full"),
        (2, False, "none"),
        (2, True, "full"),
        (4, False, "full"),
        (4, True, "none"),
        (4, True, "selective"),
    ],
)
def test_five_steps_equal_one_process(
    p: int, sequence_parallel: bool, recomputation: str, config: TransformerConfig
) -> None:
    trained, ledger = run(train_divided, [(config, sequence_parallel, recomputation)] * p)
    losses, model = train_alone(config)
    for mine, _ in trained:
        assert mine == pytest.approx(losses, rel=1e-12)
    for name, parameter in model.named_parameters():
        shards = [parameters[name] for _, parameters in trained]
        torch.testing.assert_close(unshard(shards, parameter), parameter.detach(), rtol=1e-8, atol=1e-10)
    tokens, targets = BATCHES[0].numel(), BATCHES[0][:, 1:].numel()
    kind = {"element_bytes": 8, "sequence_parallel": sequence_parallel}
    vocabulary = vocabulary_parallel_bytes(config, tokens, p, **kind)
    activations = vocabulary.embedding + vocabulary.head
    activations += tensor_parallel_bytes(config, tokens, p, layers=config.n_layers, recomputation=recomputation, **kind)
    if recomputation == "full" and not config.post_norms:  # but for the MLP's sum: torch stops before it
        once = gather_bytes(tokens * config.d_model * 8, p)
        activations -= config.n_layers * (1 if sequence_parallel else 2) * once
    partial = partial_gradient_parameters(model, sequence_parallel=sequence_parallel)
    copies = 8 * sum(one.numel() for one in partial)
    expected = {
        Tag.ACTIVATIONS: activations,
        Tag.VOCAB_PARALLEL_LOSS: vocabulary.loss * targets / tokens,
        Tag.REPLICATED_GRADIENTS: all_reduce_bytes(copies, p),
    }
    sent = {purpose: p * len(BATCHES) * size for purpose, size in expected.items() if size}
    assert ledger.purpose_bytes() == pytest.approx(sent)


def test_saved_activations_are_those_of_the_closed_form() -> None:
    """Within 10 % at the end of the forward pass; a step's peak, with temporaries, is 1 to 1.4 times the estimate."""
    rows, tokens, p = 2, 32, 2
    config = replace(CONFIGS["learned positions, biases"], n_layers=3, d_model=32, d_ff=128, context=tokens)
    ids = torch.randint(24, (rows, tokens + 1), generator=torch.Generator().manual_seed(3))
    cases = [(divided, kind) for divided in (False, True) for kind in ("none", "full")]

    def measure(rank: Rank, _: None) -> list[tuple[int, int]]:
        found = []
        for sequence_parallel, kind in cases:
            model = apply_tensor_parallel(make(config), rank, sequence_parallel=sequence_parallel)
            apply_activation_checkpointing(model.blocks, kind)
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            with track_memory() as memory:
                logits = model(ids[:, :-1]).flatten(0, 1)
                loss = vocab_parallel_cross_entropy(logits, ids[:, 1:].flatten(), rank)
                kept = memory.current_bytes
                loss.backward()
            found.append((kept, memory.peak_bytes))
        return found

    results, _ = run(measure, [None] * p)
    for (sequence_parallel, kind), found in zip(cases, zip(*results, strict=True), strict=True):
        shape = {"tensor": p, "sequence_parallel": sequence_parallel, "element_bytes": 8, "fused_attention": True}
        layer = activations.layer(config, tokens, rows, recomputation=kind, **shape)
        whole = activations.layer(config, tokens, rows, **shape)
        head = activations.head_bytes(config, tokens, rows, tensor=p, element_bytes=8)
        for kept, peak in found:
            assert kept == pytest.approx(3 * layer.total + head, rel=0.1), kind
            assert 1 < peak / (activations.stack(layer, whole, layers=3) + head) < 1.4, kind


def test_a_rank_keeps_its_shard_of_the_matrices() -> None:
    def count(rank: Rank, _: None) -> int:
        return sum(parameter.numel() for parameter in apply_tensor_parallel(make(GROUPED), rank).parameters())

    norms = sum(parameter.numel() for name, parameter in make(GROUPED).named_parameters() if "norm" in name)
    whole = sum(parameter.numel() for parameter in make(GROUPED).parameters())
    for p in (1, 2, 4):
        assert run(count, [None] * p).results == [(whole - norms) // p + norms] * p


@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_the_vocab_parallel_loss_and_its_gradient_are_torchs(scale: float) -> None:
    """Also with logits so large that exponentials overflow on all ranks but one."""
    logits = torch.randn(7, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(5)) * scale
    targets = torch.tensor([0, 11, 5, 6, 3, 3, 9])

    def part(rank: Rank, _: None) -> tuple[float, torch.Tensor]:
        mine = logits.chunk(rank.size, 1)[rank.rank].clone().requires_grad_()
        loss = vocab_parallel_cross_entropy(mine, targets, rank)
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


def test_tokens_that_do_not_divide_evenly_raise() -> None:
    def look(rank: Rank, tokens: torch.Tensor) -> torch.Tensor:
        return apply_tensor_parallel(make(GROUPED), rank, sequence_parallel=True)(tokens)

    with pytest.raises((RankError, InputError), match="tokens of a sequence cannot be divided evenly: got 7 over 2"):
        run(look, [BATCHES[0][:, :7]] * 2)
    with pytest.raises(InputError, match="unknown recomputation: got 'ful'"):
        apply_activation_checkpointing([], "ful")


@pytest.mark.parametrize(
    ("changes", "p", "said"),
    [
        ({}, 3, "KV heads cannot be divided evenly: got 4 over 3 ranks"),
        ({"d_ff": 25}, 2, "a dimension cannot be divided evenly: got 25 over 2 ranks"),
        ({"qk_norm": True, "qk_norm_all_heads": True}, 2, "got grouped with norms over all heads"),
        ({"position": "alibi"}, 2, "tensor parallelism does not support this model: got grouped with ALiBi"),
        ({"parallel_blocks": True, "mlp_bias": True, "experts": Experts(2, 1, 8)}, 2, "blocks, biases of experts"),
    ],
)
def test_uneven_shards_raise(changes: dict[str, Any], p: int, said: str) -> None:
    with pytest.raises((RankError, InputError), match=re.escape(said)):
        run(lambda rank, config: apply_tensor_parallel(make(config), rank), [replace(GROUPED, **changes)] * p)


def test_sharding_draws_no_random_numbers() -> None:
    def shard(rank: Rank, _: None) -> bool:
        model, state = make(GROUPED), torch.get_rng_state()
        apply_tensor_parallel(model, rank)
        return torch.equal(torch.get_rng_state(), state)

    assert run(shard, [None] * 2).results == [True] * 2


def test_a_token_outside_the_full_vocabulary_raises() -> None:
    def look_up(rank: Rank, tokens: torch.Tensor) -> torch.Tensor:
        return apply_tensor_parallel(make(GROUPED), rank)(tokens)

    with pytest.raises((RankError, InputError), match="token outside the vocabulary: got 3 to 24, expected 0 to 23"):
        run(look_up, [torch.tensor([[3, 24]])] * 2)
