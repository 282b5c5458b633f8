"""Expert parallelism: results and gradients equal to one process, dispatched rows counted, capacity respected."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

from mlsys_lab.comm import Rank, RankError, run
from mlsys_lab.configs import Experts, TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.flops.communication import expert_parallel_bytes
from mlsys_lab.models.experts import MixtureOfExperts
from mlsys_lab.parallel.expert import ExpertParallelMoE, load_balancing_loss, route

EXPERTS = Experts(count=8, active=2, d_ff=6, shared=1)
CONFIG = TransformerConfig("mixture", 1, d_model=6, n_heads=1, d_ff=6, vocab_size=9, context=16, experts=EXPERTS)


def mixture() -> MixtureOfExperts:
    with torch.random.fork_rng():
        torch.manual_seed(9)
        return MixtureOfExperts(CONFIG, EXPERTS).double()


def drawn(p: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens of p ranks (p, 2, 3, D), and gradients of the output."""
    x, gradient = torch.randn(2, p, 2, 3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(10))
    return x, gradient


@pytest.mark.parametrize("p", [1, 2, 4, 8])
def test_results_and_gradients_equal_one_process(p: int) -> None:
    x, gradient = drawn(p)

    def train(rank: Rank, _: None) -> tuple[torch.Tensor, dict[str, torch.Tensor], torch.Tensor | None]:
        layer = ExpertParallelMoE(mixture(), rank)
        given = x[rank.rank].clone().requires_grad_()
        out = layer(given)
        out.backward(gradient[rank.rank])
        names = {name: parameter.grad for name, parameter in layer.named_parameters() if parameter.grad is not None}
        return out.detach(), names, given.grad

    results, _ = run(train, [None] * p)
    whole, given = mixture(), x.flatten(0, 1).requires_grad_()
    out = whole(given)
    out.backward(gradient.flatten(0, 1))
    torch.testing.assert_close(torch.cat([mine for mine, _, _ in results]), out.detach())
    torch.testing.assert_close(torch.cat([mine for _, _, mine in results]), given.grad)
    own = EXPERTS.count // p
    for name, parameter in whole.named_parameters():
        kind, *rest = name.split(".")
        if kind == "experts":
            owner, number = divmod(int(rest[0]), own)
            mine = results[owner][1].get(".".join(["experts", str(number), *rest[1:]]), torch.zeros(()))
        else:
            mine = sum(gradients[name] for _, gradients, _ in results)
        torch.testing.assert_close(mine + torch.zeros_like(parameter), parameter.grad)


@pytest.mark.parametrize("p", [2, 4])
def test_dispatched_bytes_are_those_of_the_closed_form_for_equal_loads(p: int) -> None:
    """Tokens of a rank choose different experts, so that all experts have the same load."""
    tokens = EXPERTS.count // EXPERTS.active

    def forward(rank: Rank, _: None) -> None:
        layer = ExpertParallelMoE(mixture(), rank)
        even = torch.eye(EXPERTS.count).double().view(tokens, EXPERTS.active, -1).sum(1)
        layer.router.forward = lambda x: even
        layer(torch.randn(1, tokens, 6, dtype=torch.float64, requires_grad=True)).sum().backward()

    _, ledger = run(forward, [None] * p)
    counts = p * (p - 1) * (EXPERTS.count // p) * 8
    forward_bytes = p * expert_parallel_bytes(CONFIG, tokens, p, layers=1, element_bytes=8)
    assert ledger.total_bytes == counts + 2 * forward_bytes


def test_rows_are_sorted_by_expert_and_first_choices_have_priority() -> None:
    plan = route(torch.tensor([[2, 0], [2, 1], [0, 2]]), num_experts=4)
    assert plan.tokens_per_expert.tolist() == [2, 1, 3, 0] and plan.num_dropped == 0
    assert plan.token_indices.tolist() == [2, 0, 1, 0, 1, 2]
    assert plan.topk_index.tolist() == [0, 1, 1, 0, 0, 1]
    tight = route(torch.tensor([[2, 0], [2, 1], [0, 2]]), num_experts=4, capacity_factor=1.0)  # ⌈6/4⌉ = 2 each
    assert tight.tokens_per_expert.tolist() == [2, 1, 2, 0] and tight.num_dropped == 1
    assert tight.token_indices.tolist() == [2, 0, 1, 0, 1]


@pytest.mark.parametrize("p", [1, 2])
def test_dropped_choices_add_nothing(p: int) -> None:
    """With a capacity of one row for each expert and rank, only the kept rows contribute."""
    x, _ = drawn(p)
    factor = EXPERTS.count / (2 * 3 * EXPERTS.active)

    def forward(rank: Rank, _: None) -> tuple[torch.Tensor, int]:
        layer = ExpertParallelMoE(mixture(), rank, capacity_factor=factor)
        return layer(x[rank.rank]).detach(), layer.num_dropped

    whole = mixture()
    for given, (out, dropped) in zip(x, run(forward, [None] * p).results, strict=True):
        tokens = given.flatten(0, 1)
        best = whole.router(tokens).topk(EXPERTS.active)
        weights, taken = best.values.softmax(-1), set[int]()
        expected = whole.shared[0](tokens).detach()
        for choice in range(EXPERTS.active):
            for row, expert in enumerate(best.indices[:, choice].tolist()):
                if expert not in taken:
                    expected[row] += (weights[row, choice] * whole.experts[expert](tokens[row])).detach()
                    taken.add(expert)
        torch.testing.assert_close(out.flatten(0, 1), expected)
        assert dropped == len(tokens) * EXPERTS.active - len(taken) > 0


@pytest.mark.parametrize("p", [1, 2, 4])
def test_the_load_balancing_loss_is_over_all_ranks(p: int) -> None:
    logits = torch.randn(p, 6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(11))

    def lose(rank: Rank, _: None) -> tuple[float, torch.Tensor | None]:
        mine = logits[rank.rank].clone().requires_grad_()
        loss = load_balancing_loss(mine, mine.topk(2).indices, rank)
        loss.backward()
        return loss.item(), mine.grad

    results, _ = run(lose, [None] * p)
    whole = logits.flatten(0, 1).requires_grad_()
    fractions = torch.bincount(whole.topk(2).indices.reshape(-1), minlength=8) / (2 * len(whole))
    loss = 8 * (fractions * whole.softmax(1).mean(0)).sum()
    loss.backward()
    assert sum(mine for mine, _ in results) / p == pytest.approx(loss.item())
    torch.testing.assert_close(torch.cat([mine for _, mine in results]) / p, whole.grad)


def test_equal_loads_minimise_the_load_balancing_loss() -> None:
    def lose(rank: Rank, _: None) -> float:
        return load_balancing_loss(torch.zeros(8, 8), torch.arange(8)[:, None], rank).item()

    assert run(lose, [None] * 2).results == [pytest.approx(1.0)] * 2


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda rank: ExpertParallelMoE(mixture(), rank), "experts cannot be divided evenly: got 8 over 3 ranks"),
        (
            lambda rank: route(torch.zeros(2, 1, dtype=torch.int64), 4, 0.0),
            "a capacity factor must be positive: got 0.0",
        ),
    ],
)
def test_invalid_arguments_raise(call: Callable[[Rank], object], said: str) -> None:
    with pytest.raises((RankError, InputError), match=re.escape(said)):
        run(lambda rank, _: call(rank), [None] * 3)
