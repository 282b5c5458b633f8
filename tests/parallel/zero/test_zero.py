"""ZeRO's stages: equal to one process, bytes and memory equal to closed forms, and misuse raises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from mlsys_lab.comm import Ledger, Rank, run
from mlsys_lab.errors import InputError
from mlsys_lab.flops.communication import all_reduce_bytes, data_parallel_bytes, gather_bytes
from mlsys_lab.flops.memory import RECIPES, states
from mlsys_lab.parallel.activation_checkpointing import apply_activation_checkpointing
from mlsys_lab.parallel.data import DDP, sync_module_states
from mlsys_lab.parallel.tags import Tag
from mlsys_lab.parallel.zero import FSDP, ShardedDDP, ShardedOptimizer, clip_grad_norm, optimizer_state_bytes
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

NUMEL = sum(parameter.numel() for parameter in make_model().parameters())
ADAM = {"lr": 0.01, "weight_decay": 0.1}


def train(
    rank: Rank,
    batches: torch.Tensor,
    prepare: Callable[[Rank], tuple[nn.Module, Callable[[], None], Callable[[], dict[str, torch.Tensor]]]],
) -> Trained:
    """Train on this rank's rows; `prepare` gives the model, what follows the backward pass, and its parameters."""
    model, step, read = prepare(rank)
    losses = []
    for batch in rows_of(rank, batches):
        loss = loss_of(model, batch)
        loss.backward()
        step()
        losses.append(loss.item())
    return losses, read()


def after_ddp(rank: Rank):
    """Only optimizer states sharded, gradients averaged by DDP, as with torch's ZeroRedundancyOptimizer."""
    model = DDP(make_model(seed=rank.rank), rank)
    optimizer = ShardedOptimizer(model.parameters(), torch.optim.AdamW, rank, **ADAM)

    def step() -> None:
        model.finish_gradient_synchronization()
        optimizer.step()
        optimizer.zero_grad()

    return model, step, lambda: dict(model.module.named_parameters())


def stage_1(rank: Rank):
    model = make_model(seed=rank.rank)
    optimizer = ShardedOptimizer(model.parameters(), torch.optim.AdamW, rank, **ADAM)

    def step() -> None:
        optimizer.reduce_gradients()
        optimizer.step()
        optimizer.zero_grad()

    return model, step, lambda: dict(model.named_parameters())


def stage_2(rank: Rank):
    module = make_model(seed=rank.rank)
    optimizer = ShardedOptimizer(module.parameters(), torch.optim.AdamW, rank, bucket_bytes=600, **ADAM)
    model = ShardedDDP(module, rank, optimizer)

    def step() -> None:
        model.finish_gradient_synchronization()
        assert all(parameter.grad is None for parameter in module.parameters())
        optimizer.step()

    return model, step, lambda: dict(module.named_parameters())


def stage_3(rank: Rank):
    model = FSDP(make_model(seed=rank.rank), rank)
    optimizer = make_optimizer(model.parameters())

    def step() -> None:
        model.finish_gradient_synchronization()
        optimizer.step()
        optimizer.zero_grad()

    return model, step, model.gather_full_params


STAGES = {"after DDP": after_ddp, "1": stage_1, "2": stage_2, "3": stage_3}


@pytest.mark.parametrize("prepare", STAGES.values(), ids=STAGES)
@pytest.mark.parametrize("p", [1, 3, 4])
def test_equal_to_one_process(p: int, prepare) -> None:
    batches = make_batches(rows=12)
    trained, _ = run(lambda rank, batches: train(rank, batches, prepare), [batches] * p)
    assert_equal(trained, train_alone(batches))


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("p", [2, 3, 4])
def test_bytes_are_those_of_the_closed_form(p: int, stage: int) -> None:
    _, ledger = run(lambda rank, batches: train(rank, batches, STAGES[str(stage)]), [make_batches(12, steps=1)] * p)
    size_bytes = 8 * NUMEL
    if stage == 3:  # without the gather of all parameters at the end, which is for this test's own use
        assert ledger.purpose_bytes()["all_gather"] == (p - 1) * size_bytes
    sent = ledger.purpose_bytes()[Tag.GRADIENTS] + ledger.purpose_bytes()[Tag.WEIGHTS]
    assert sent == pytest.approx(p * data_parallel_bytes(size_bytes, size_bytes, p, zero_stage=stage), rel=1e-12)


@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_optimizer_states_are_sharded(p: int) -> None:
    """Moments in fp32 for bf16 weights: each rank keeps its shard, and all shards add up to the whole."""

    def measure(rank: Rank, _: None) -> tuple[int, int]:
        model = make_model().bfloat16()
        optimizer = ShardedOptimizer(model.parameters(), torch.optim.AdamW, rank, master_dtype=torch.float32, **ADAM)
        loss_of(model, make_batches(2, steps=1)[0]).backward()
        optimizer.reduce_gradients()
        optimizer.step()
        return optimizer_state_bytes(optimizer.optimizer), sum(
            4 * shard.numel() for _, shard in optimizer.bucket_shards
        )

    by_rank, _ = run(measure, [None] * p)
    asked = states(NUMEL, RECIPES["mixed16"], data=p, zero_stage=1)
    moments, master = map(sum, zip(*by_rank, strict=True))
    assert (moments, master) == (p * asked.moments, p * asked.master)
    assert max(moments for moments, _ in by_rank) < asked.moments + 8


def test_masters_in_float32_keep_what_bfloat16_would_lose() -> None:
    """Steps of 1e-3 on weights of 1, whose neighbours in bf16 are 2⁻⁸ away."""

    def move(rank: Rank, master_dtype: torch.dtype | None) -> float:
        weight = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
        optimizer = ShardedOptimizer([weight], torch.optim.SGD, rank, master_dtype=master_dtype, lr=1e-3)
        for _ in range(20):
            weight.grad = torch.ones_like(weight)
            optimizer.step()
        return weight[0].item()

    assert run(move, [None] * 2).results == [1.0, 1.0]
    assert run(move, [torch.float32] * 2).results == [pytest.approx(0.98, abs=2**-9)] * 2


@pytest.mark.parametrize(("within", "between"), [(1, 2), (3, 2)])
def test_hybrid_sharding_gathers_within_groups_and_sums_between_them(within: int, between: int) -> None:
    def prepare(rank: Rank):
        group = rank.group(range(rank.rank - rank.rank % within, rank.rank - rank.rank % within + within))
        replicas = rank.group(range(rank.rank % within, rank.size, within))
        model = FSDP(make_model(seed=rank.rank), group, replica_group=replicas)
        optimizer = make_optimizer(model.parameters())

        def step() -> None:
            model.finish_gradient_synchronization()
            optimizer.step()
            optimizer.zero_grad()

        return model, step, model.gather_full_params

    batches, p = make_batches(rows=within * between), within * between
    trained, ledger = run(lambda rank, batches: train(rank, batches, prepare), [batches] * p)
    assert_equal(trained, train_alone(batches))
    size_bytes, steps = 8 * NUMEL, len(batches)
    gradients = gather_bytes(size_bytes, within) + all_reduce_bytes(size_bytes / within, between)
    sent = ledger.purpose_bytes()
    assert sent[Tag.GRADIENTS] == pytest.approx(p * steps * gradients)
    assert sent.get(Tag.WEIGHTS, 0) == pytest.approx(p * steps * 2 * gather_bytes(size_bytes, within))


@pytest.mark.parametrize("p", [2, 3])
def test_only_a_few_layers_are_unsharded_at_once(p: int) -> None:
    def measure(rank: Rank, tokens: torch.Tensor) -> tuple[int, list[int]]:
        model = FSDP(make_model(), rank)
        loss_of(model, tokens).backward()
        model.finish_gradient_synchronization()
        left = [parameter.untyped_storage().nbytes() for parameter in model.module.parameters()]
        return model.peak_unsharded_bytes, left

    units = [8 * sum(one.numel() for one in parameters) for _, parameters in find_units(make_model())]
    for peak, left in run(measure, [make_batches(2, steps=1)[0]] * p).results:
        # The module's own parameters, a block, and the next block in flight.
        assert peak == units[0] + 2 * max(units[1:])
        assert not any(left)


def test_the_next_layers_weights_are_on_their_way_while_one_computes() -> None:
    def forward(rank: Rank, tokens: torch.Tensor) -> None:
        model = FSDP(make_model(), rank)
        model.module.blocks[0].register_forward_pre_hook(lambda *_: rank.barrier())
        loss_of(model, tokens)

    _, ledger = run(forward, [make_batches(2, steps=1)[0]] * 2)
    ends = {
        purpose: [one.start for one in ledger.messages if one.purpose == purpose]
        for purpose in ("barrier", Tag.WEIGHTS)
    }
    assert len(ends[Tag.WEIGHTS]) == 2 * 3
    assert posts_before(ledger, "barrier") == 3  # of the module, the first block and the second


def posts_before(ledger: Ledger, purpose: str) -> int:
    """Messages of weights that rank 0 has posted before its first message of this purpose."""
    purposes = [event.purpose for event in ledger.logs[0] if getattr(event, "kind", None) == "send"]
    return purposes[: purposes.index(purpose)].count(Tag.WEIGHTS)


@pytest.mark.parametrize("p", [1, 3])
def test_recomputed_layers_and_several_micro_batches(p: int) -> None:
    """Gradients of two micro-batches, each layer recomputed in the backward pass, are those of one process."""
    batches = make_batches(rows=2 * p, steps=2)

    def gradients(rank: Rank, _: None) -> dict[str, torch.Tensor]:
        module = make_model()
        model = FSDP(module, rank)
        apply_activation_checkpointing(module.blocks, "full")
        for batch in rows_of(rank, batches):
            loss_of(model, batch).backward()
            model.finish_gradient_synchronization()
        for shard in model.parameters():
            shard.data = shard.grad
        return model.gather_full_params()

    alone = make_model()
    for batch in batches:
        loss_of(alone, batch).backward()
    for mine in run(gradients, [None] * p).results:
        for name, parameter in alone.named_parameters():
            torch.testing.assert_close(mine[name], parameter.grad, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("p", [1, 2, 4])
def test_the_clipping_norm_is_over_all_shards(p: int) -> None:
    tokens = make_batches(rows=4, steps=1)[0]

    def clip(rank: Rank, _: None) -> tuple[float, dict[str, torch.Tensor]]:
        model = FSDP(make_model(), rank)
        loss_of(model, tokens.chunk(rank.size)[rank.rank]).backward()
        model.finish_gradient_synchronization()
        norm = clip_grad_norm(model.parameters(), 0.01, rank)
        for shard in model.parameters():
            shard.data = shard.grad
        return norm, model.gather_full_params()

    alone = make_model()
    loss_of(alone, tokens).backward()
    norm = nn.utils.clip_grad_norm_(alone.parameters(), 0.01)
    for mine, gradients in run(clip, [None] * p).results:
        assert mine == pytest.approx(norm.item(), rel=1e-12)
        for name, parameter in alone.named_parameters():
            torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-5, atol=1e-9)


def test_unsharded_weights_in_bfloat16_and_shards_in_float32() -> None:
    def measure(rank: Rank, tokens: torch.Tensor) -> tuple[torch.dtype, ...]:
        model = FSDP(make_model().float(), rank, compute_dtype=torch.bfloat16)
        logits = model(tokens)
        logits.float().sum().backward()
        model.finish_gradient_synchronization()
        shard = next(model.parameters())
        return logits.dtype, shard.dtype, shard.grad.dtype, model.gather_full_params()["norm.weight"].dtype

    (dtypes, _), ledger = run(measure, [make_batches(2, steps=1)[0]] * 2)
    assert dtypes == (torch.bfloat16, *[torch.float32] * 3)
    assert ledger.purpose_bytes()[Tag.GRADIENTS] == 2 * NUMEL


def test_units_are_layers_and_what_is_left() -> None:
    model = make_model()
    module, *layers = find_units(model)
    assert module[0] is model and [layer for layer, _ in layers] == list(model.blocks)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert [names[id(one)] for one in module[1]] == ["embedding.weight", "norm.weight"]
    layer = nn.Linear(2, 2)
    twice = nn.ModuleList([layer, nn.Linear(2, 2), layer])
    assert [len(parameters) for _, parameters in find_units(nn.Sequential(twice))] == [2, 2]
    mixed = nn.ModuleList([nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())])
    with pytest.raises(InputError, match="several dtypes: got float32, float64 in '0'"):
        find_units(mixed)


def test_groups_of_parameters_keep_their_options() -> None:
    def lone(rank: Rank, _: None) -> list[float]:
        model = nn.Linear(3, 2, bias=True)
        sync_module_states(model, rank)
        groups = [{"params": [model.weight], "lr": 0.0}, {"params": [model.bias]}]
        optimizer = ShardedOptimizer(groups, torch.optim.SGD, rank, lr=1.0)
        before = [one.detach().clone() for one in model.parameters()]
        model.weight.grad, model.bias.grad = torch.ones(2, 3), torch.ones(2)
        optimizer.step()
        return [(old - new).abs().max().item() for old, new in zip(before, model.parameters(), strict=True)]

    assert run(lone, [None] * 3).results == [[0.0, 1.0]] * 3


class Normed(nn.Module):
    """A frozen layer, a trained one, and a batch norm whose buffers change with the data."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.frozen = nn.Linear(3, 4).requires_grad_(False)
        self.trained, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.norm.running_mean += seed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.trained(self.frozen(x)))


def prepare_normed(rank: Rank, kind: str) -> tuple[nn.Module, nn.Module]:
    module = Normed(rank.rank)
    if kind == "ShardedDDP":
        return ShardedDDP(module, rank, ShardedOptimizer(module.parameters(), torch.optim.SGD, rank, lr=0.1)), module
    return (DDP if kind == "DDP" else FSDP)(module, rank), module


@pytest.mark.parametrize("kind", ["DDP", "ShardedDDP", "FSDP"])
def test_all_ranks_begin_with_rank_0_s_frozen_parameters_and_buffers(kind: str) -> None:
    def program(rank: Rank, _: int) -> list[torch.Tensor]:
        _, module = prepare_normed(rank, kind)
        frozen = [one for one in module.parameters() if not one.requires_grad]
        return [one.detach().clone() for one in (*frozen, *module.buffers())]

    first, second, third = run(program, [0] * 3).results
    ours = Normed(0)
    for ranks in zip([*ours.frozen.parameters(), *ours.buffers()], first, second, third, strict=True):
        assert all(torch.equal(ranks[0], one) for one in ranks[1:])


def test_an_optimizer_alone_gives_all_ranks_rank_0_s_frozen_parameters() -> None:
    def program(rank: Rank, _: int) -> torch.Tensor:
        module = Normed(rank.rank)
        ShardedOptimizer(module.parameters(), torch.optim.SGD, rank, lr=0.1)
        return module.frozen.weight.detach().clone()

    first, second = run(program, [0] * 2).results
    assert torch.equal(first, second) and torch.equal(first, Normed(0).frozen.weight)


@pytest.mark.parametrize("kind", ["DDP", "ShardedDDP"])
def test_buffers_do_not_drift_apart(kind: str) -> None:
    """Each rank trains on its own data; a forward pass on common data then starts from rank 0's running means."""
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(5))

    def program(rank: Rank, own: torch.Tensor) -> list[torch.Tensor]:
        model, module = prepare_normed(rank, kind)
        for _ in range(3):
            model(own).square().sum().backward()
            model.finish_gradient_synchronization()
        means = []
        for is_training in (True, False):
            model.train(is_training)
            model(x)
            means.append(module.norm.running_mean.clone())
        return means

    (first, first_after), (second, second_after) = run(program, [x, x + 5]).results
    assert torch.equal(first, second)
    assert torch.equal(first, first_after) and torch.equal(second, second_after)  # evaluation changes none


class Returns(nn.Module):
    """A layer that returns its result as `wrap` makes it."""

    def __init__(self, wrap: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.linear, self.wrap = nn.Linear(4, 4), wrap

    def forward(self, x: torch.Tensor) -> object:
        return self.wrap(self.linear(x).tanh())


class Nested(nn.Module):
    """Lists and dictionaries of layers within a list, which are never called themselves."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        dictionary = nn.ModuleDict({"a": Returns(lambda x: {"x": x, "none": None}), "b": Returns(lambda x: (x, 3))})
        lists = nn.ModuleList([nn.ModuleList([Returns(Boxed), Returns(lambda x: x)]), dictionary])
        self.layers = lists

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (first, second), named = self.layers
        x = second(first(x).x)
        return named["b"](named["a"](x)["x"])[0]


@dataclass
class Boxed:
    """What a layer may return: a tensor in a dataclass."""

    x: torch.Tensor


def test_nested_lists_and_layers_that_return_dicts_are_sharded() -> None:
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(6))

    def program(rank: Rank, _: int) -> tuple[torch.Tensor, dict[str, torch.Tensor], list[str]]:
        module = Nested(rank.rank)
        model = FSDP(module, rank)
        out = model(x[rank.rank])
        out.square().mean().backward()
        model.finish_gradient_synchronization()
        with torch.no_grad():
            for shard in model.parameters():
                shard -= shard.grad
        return out.detach(), model.gather_full_params(), [type(unit.module).__name__ for unit in model._units]

    results = run(program, [0, 1]).results
    alone = Nested(0)
    for (out, _, units), part in zip(results, x, strict=True):
        assert torch.allclose(out, alone(part).detach()) and units == ["Returns"] * 4
    sum(alone(part).square().mean() / 2 for part in x).backward()
    for name, parameter in alone.named_parameters():
        for _, whole, _ in results:
            assert torch.allclose(whole[name], (parameter - parameter.grad).detach(), atol=1e-6), name


def test_eval_and_train_reach_the_sharded_module() -> None:
    def measure(rank: Rank, _: None) -> list[bool]:
        model, found = FSDP(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), rank), []
        for switch in (model.eval, model.train):
            assert switch() is model
            found += [model.training, model.module[1].training]
        return found

    assert run(measure, [None] * 2).results == [[False, False, True, True]] * 2
