"""Training with a teacher: what the student learns, what it learns from, and what does not change."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from mlsys_lab.efficiency.distillation import LayerMatch, distil, distillation_loss, hidden_states
from mlsys_lab.efficiency.grammar import Grammar
from mlsys_lab.errors import InputError
from mlsys_lab.models import Transformer, training
from tests.efficiency.distillation.making import CONTEXT, VOCAB_SIZE, build

IDS = Grammar.random(0, vocab_size=VOCAB_SIZE, nonterminals=4, rules=3).sample(3000, seed=0)
HOW = {"batch_size": 8, "seq_len": CONTEXT, "lr": 0.01, "seed": 0}


def new_student(**changes):
    return training.new_model(dataclasses.replace(build(n_layers=1, d_model=8, n_heads=2).config, **changes), seed=1)


def run(student, teacher, steps, **options):
    return [loss for _, loss in distil(student, teacher, IDS, steps=steps, **HOW, **options)]


@torch.no_grad()
def divergence(student, teacher):
    tokens = torch.from_numpy(IDS[: 64 * CONTEXT]).view(64, CONTEXT)
    return distillation_loss(student(tokens), teacher(tokens)).item()


@pytest.mark.parametrize("options", [{}, {"temperature": 4.0}, {"direction": "reverse"}, {"layer_weight": 1.0}])
def test_a_student_approaches_a_teacher_whose_distributions_no_data_shows(options):
    """The teacher's weights are random, so the data's next tokens do not help."""
    teacher = build()
    student = new_student()
    before = divergence(student, teacher)
    run(student, teacher, 60, **options)
    assert divergence(student, teacher) < 0.7 * before


def test_with_the_data_s_tokens_alone_training_is_as_without_a_teacher():
    student, same = new_student(), new_student()
    losses = run(student, build(), 5, data_weight=1.0)
    assert losses == pytest.approx([loss for _, loss in training.train(same, IDS, steps=5, **HOW)], rel=1e-6)
    for mine, theirs in zip(student.parameters(), same.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


@torch.no_grad()
def test_the_first_loss_is_the_weighted_sum_of_its_parts():
    student, teacher = new_student(), build()
    windows = training.windows(IDS, next(training.Batches(len(IDS), 8, CONTEXT, seed=0)), CONTEXT)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(HOW["seed"])
        match = LayerMatch(student.config, teacher.config)
    logits, target = student(windows[:, :-1]), teacher(windows[:, :-1])
    expected = 0.75 * distillation_loss(logits, target, temperature=2.0)
    expected += 0.25 * F.cross_entropy(logits.transpose(1, 2), windows[:, 1:])
    expected += 3.0 * match(hidden_states(student, windows[:, :-1]), hidden_states(teacher, windows[:, :-1]))
    with torch.enable_grad():
        losses = run(copy.deepcopy(student), teacher, 1, temperature=2.0, data_weight=0.25, layer_weight=3.0)
    assert losses == pytest.approx([expected.item()], rel=1e-5)


def test_the_teacher_stays_as_it_is_and_gets_no_gradients():
    teacher = build()
    before = copy.deepcopy(teacher.state_dict())
    run(new_student(), teacher, 3, layer_weight=1.0)
    assert all(weight.equal(before[name]) for name, weight in teacher.state_dict().items())
    assert all(weight.grad is None for weight in teacher.parameters())


def test_bad_input_is_one_line():
    teacher, student = build(), new_student()
    wider = Transformer(dataclasses.replace(teacher.config, vocab_size=12))
    for call, message in (
        (
            lambda: distil(wider, teacher, IDS, steps=1, **HOW),
            "vocabularies .*: got 12 and 11 tokens, expected the same",
        ),
        (lambda: run(student, teacher, 1, data_weight=1.5), "data_weight out of range: got 1.5, expected 0 to 1"),
        (lambda: run(student, teacher, 1, layer_weight=-1.0), "layer_weight must not be negative: got -1"),
        (lambda: run(student, teacher, 1, temperature=np.nan), "temperature out of range: got nan"),
        (
            lambda: distil(student, teacher, IDS, steps=1, **HOW | {"seq_len": CONTEXT + 1}),
            f"seq_len out of range: got 9, expected at most the contexts' {CONTEXT}",
        ),
        (lambda: list(distil(student, teacher, IDS[:10], steps=1, **HOW)), "too little text: got 10 tokens"),
    ):
        with pytest.raises(InputError, match=message):
            call()
