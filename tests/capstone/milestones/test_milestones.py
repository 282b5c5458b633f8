"""Milestones on the solved labs, and on layers with one mistake each: the published number, or one clear line."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch

from mlsys_lab.capstone import LAYERS, Stack
from mlsys_lab.capstone.milestones import (
    MILESTONES,
    backpropagation,
    find_milestone,
    reproduce,
    scaling_law,
    speculative,
)
from mlsys_lab.efficiency.grammar import Grammar
from mlsys_lab.errors import InputError
from mlsys_lab.stack import Layer, defined_names, using
from mlsys_lab.stack.artifact import Artifact
from mlsys_lab.stack.loading import load
from mlsys_lab.stack.solved import export_solved, find_solved

NAMES = [milestone.name for milestone in MILESTONES]
Change = Callable[[str, str, str], Stack]


def follow_power_law(stack: Stack, grammar: Grammar, width: int, steps: int) -> tuple[float, float]:
    """C and loss of a run that was not made."""
    flops = 6 * width**2 * steps
    return flops, grammar.entropy + 3 * flops**-0.2


@pytest.fixture
def change(stack: Stack) -> Change:
    """The stack of the solved labs with one line of one layer replaced."""

    def changed(field: str, old: str, new: str) -> Stack:
        (topic,) = [spec.topic for spec in LAYERS if spec.field == field]
        path = find_solved(topic)
        assert path is not None
        source = export_solved(path.read_text(encoding="utf-8"))
        assert source.count(old) == 1
        artifact = Artifact.parse(path.name, source.replace(old, new))
        with using({spec.topic: getattr(stack, spec.field) for spec in LAYERS if spec.field != field}):
            names = defined_names(load(artifact, f"changed_{field}"))
        return replace(stack, **{field: Layer(topic, names, dict.fromkeys(names, "yours"))})  # type: ignore[arg-type]

    return changed


@pytest.mark.every_case
@pytest.mark.parametrize("name", NAMES)
def test_the_solved_labs_reproduce_each_published_number(
    name: str, stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With runs that follow a power law in place of those that the scaling law trains, which take seconds."""
    monkeypatch.setattr(scaling_law, "final_loss", follow_power_law)
    result = reproduce(find_milestone(name), stack)
    assert result.problem == "" and result.is_reproduced
    assert any(figure.is_published for figure in result.figures)
    assert set(result.code) == set(result.milestone.needs)


MISTAKES = {
    "backpropagation": (
        "engine",
        'return record(result, (a, lambda g: g * result), op="exp")',
        'return record(result, (a, lambda g: g), op="exp")',
        "patterns of 64 that are classified wrongly: got ",
    ),
    "ring-all-reduce": (
        "collectives",
        "return torch.cat(all_gather(rank, reduce_scatter(rank, x))).reshape(x.shape)",
        "total = reduce(rank, x); return broadcast(rank, x if total is None else total)",
        "4 ranks: bytes sent by the busiest / array: got 2, expected 1.5",
    ),
    "checkpointing": (
        "engine",
        "x = checkpoint(lambda h, part=part: run_layers(part, h), x)",
        "x = run_layers(part, x)",
        "activations held / √n, with checkpoints: got 2",
    ),
    "zero": (
        "data_parallel",
        "flat = collectives.broadcast(group, flat)\n"
        "        own = collectives.split_chunks(flat, group.size)[group.rank]",
        "own = collectives.broadcast(group, flat)",
        "stage 3: GB, counted on 64 ranks: got 16.64, expected 1.9 ± 0.06",
    ),
    "scaling-law": (
        "scaling",
        "np.polyfit(np.log(x), np.log(y), 1)",
        "np.polyfit(np.log(x), y, 1)",
        "exponent of loss by FLOPs, six models: got ",
    ),
    "flash-attention": (
        "kernels",
        "for start in range(0, min(first + BLOCK_M, S), BLOCK_N):",
        "for start in range(0, S, BLOCK_N):",
        "tiles of 16: bytes of FlashAttention: got 41,216, expected 28,928",
    ),
    "paged-cache": (
        "scheduler",
        "return -(-num_tokens // self.block_size)",
        "return -(-num_tokens // self.block_size) + 2",
        "% of allocated slots without a token, in blocks of 16: got ",
    ),
    "speculative-decoding": (
        "cache",
        "if uniforms[i] * proposed[i, token] >= wanted[i, token]:",
        "if uniforms[i] < 0:",
        "α = 0.2, γ = 3: tokens a step: got 4, expected 1.25 ± ",
    ),
}
"""By milestone: the layer, a line of the solved lab, a mistake in its place, and what the milestone says."""


@pytest.mark.every_case
@pytest.mark.parametrize("name", NAMES)
def test_a_mistake_in_a_layer_fails_the_milestone_in_one_line(
    name: str, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backpropagation, "MAX_SWEEPS", 1000)  # the right engine takes 903
    monkeypatch.setattr(speculative, "STEPS", 60)
    field, old, new, said = MISTAKES[name]
    result = reproduce(find_milestone(name), change(field, old, new))
    assert not result.is_reproduced
    assert result.problem.startswith(f"{name}: {said}") and "\n" not in result.problem
    assert f"{field}: the solved lab's" in result.problem


def test_a_wrong_formula_fails_zero_before_ranks_start(change: Change) -> None:
    stack = change("data_parallel", '"states": 12', '"states": 8')
    result = reproduce(find_milestone("zero"), stack)
    assert result.problem.startswith("zero: stage 0: GB, by the formula: got 90, expected 120 ± 0.06")


def test_a_layer_without_a_name_that_a_milestone_needs_is_one_line(stack: Stack) -> None:
    result = reproduce(find_milestone("speculative-decoding"), replace(stack, cache=Layer("kv-cache", {}, {})))
    assert result.problem.startswith("speculative-decoding: the cache layer has no Contiguous; code that ran: cache: ")


def test_code_that_gives_nan_reproduces_nothing(stack: Stack) -> None:
    names = {name: getattr(stack.scaling, name) for name in ("ChinchillaLaw", "compute_optimal")}
    broken = Layer("scaling-laws", names | {"fit_power_law": lambda x, y: (float("nan"), float("nan"))}, {})
    result = reproduce(find_milestone("scaling-law"), replace(stack, scaling=broken))
    assert result.problem.startswith("scaling-law: exponent of loss by FLOPs, six models: got nan, expected ")


def test_a_misspelt_milestone_is_one_line() -> None:
    with pytest.raises(InputError, match=r"unknown milestone: got 'zeroo', .*did you mean 'zero'"):
        find_milestone("zeroo")


@pytest.mark.parametrize(("alpha", "gamma", "printed"), speculative.CASES)
def test_the_printed_tokens_a_step_are_those_of_equation_1(alpha: float, gamma: int, printed: float) -> None:
    assert (1 - alpha ** (gamma + 1)) / (1 - alpha) == pytest.approx(printed, abs=speculative.ROUNDING)


def test_drafts_are_accepted_with_probability_alpha_at_every_position() -> None:
    model, rng = speculative.Target(0), torch.Generator().manual_seed(0)
    drafts, proposed = speculative.draft(model, [speculative.BOS], 0.9, 4, rng)
    tokens = [speculative.BOS, *drafts.tolist()]
    for i in range(4):
        if speculative.NEVER in tokens[: i + 1]:
            break
        wanted = model(torch.tensor([tokens[: i + 1]]))[0, -1].softmax(-1)
        assert torch.minimum(wanted, proposed[i]).sum().item() == pytest.approx(0.9, rel=1e-12)


def test_a_run_of_the_scaling_law_ends_above_the_entropy(stack: Stack) -> None:
    grammar = Grammar.random(0, vocab_size=16, nonterminals=6, rules=4)
    flops, loss = scaling_law.final_loss(stack, grammar, 8, 3)
    assert flops == 6 * 920 * 3 * 256 and grammar.entropy < loss < 1.2 * math.log(16)


@pytest.mark.weekly
def test_three_runs_predict_the_loss_of_a_fourth_from_five_seeds(stack: Stack) -> None:
    """The tolerance of the figure says this."""
    errors = [
        predicted / measured - 1 for predicted, measured in map(partial(scaling_law.predict_last, stack), range(5))
    ]
    assert max(map(abs, errors)) == pytest.approx(0.059, abs=0.005)


@pytest.mark.weekly
def test_what_the_symmetry_network_finds_from_eight_seeds(stack: Stack) -> None:
    """The scope of the first milestone says this."""
    found, sweeps = [], []
    for seed in range(8):
        taken, weights, outputs = backpropagation.train(stack.engine, seed)
        if taken == backpropagation.MAX_SWEEPS:
            found.append("none")
            continue
        smallest, _, largest = weights[:3].abs().mean(1).sort().values.tolist()
        found.append("1:2:4" if largest / smallest > 3 else "2:3:4")
        if found[-1] == "1:2:4":
            sweeps.append(taken)
        assert torch.equal(outputs > 0.5, backpropagation.symmetry_patterns()[1].bool())
    assert (found.count("1:2:4"), found.count("2:3:4"), found.count("none")) == (4, 3, 1)
    assert (min(sweeps), max(sweeps)) == (760, 3365)
