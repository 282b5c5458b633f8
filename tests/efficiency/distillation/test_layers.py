"""Hidden states are what passes between the blocks; the loss on them is its definition."""

import pytest
import torch
from torch import nn

from mlsys_lab.efficiency.distillation import LayerMatch, hidden_states
from mlsys_lab.errors import InputError
from tests.efficiency.distillation.making import VOCAB_SIZE, build

TOKENS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])


@torch.no_grad()
def test_hidden_states_are_what_enters_and_leaves_each_block():
    model = build(n_layers=3)
    seen = []
    for block in model.blocks:
        block.register_forward_hook(lambda _, inputs, output: seen.append((inputs[0], output)))
    logits = model(TOKENS)
    expected = [seen[0][0], *(after for _, after in seen)]
    states = hidden_states(model, TOKENS)
    assert len(states) == 4 and model.predict(states[-1]).equal(logits)
    for ours, theirs in zip(states, expected, strict=True):
        assert ours.equal(theirs)


def test_layers_are_paired_evenly_first_and_last_included():
    def pairs(mine, theirs):
        return LayerMatch(build(n_layers=mine).config, build(n_layers=theirs).config).teacher_layers

    assert pairs(4, 12) == [0, 3, 6, 9, 12] and pairs(3, 3) == [0, 1, 2, 3] and pairs(1, 4) == [0, 4]


@torch.no_grad()
def test_the_loss_is_the_squared_error_relative_to_the_teacher_s_square():
    student, teacher = build(n_layers=1, d_model=8, seed=1), build()
    match = LayerMatch(student.config, teacher.config)
    mine, theirs = hidden_states(student, TOKENS), hidden_states(teacher, TOKENS)
    total = 0.0
    for projection, x, y in zip(match.projections, mine, (theirs[0], theirs[2]), strict=True):
        x, y = x.double().numpy(), y.double().numpy()
        total += ((x @ projection.weight.double().numpy().T - y) ** 2).sum() / (y**2).sum()
    assert match(mine, theirs).item() == pytest.approx(total / 2, rel=1e-5)


@torch.no_grad()
def test_the_teacher_itself_has_no_loss_and_a_student_of_zeros_a_loss_of_one():
    teacher = build()
    match, states = LayerMatch(teacher.config, teacher.config), hidden_states(teacher, TOKENS)
    for projection in match.projections:
        nn.init.eye_(projection.weight)
    assert match(states, states) == 0
    assert match([0 * state for state in states], states).item() == pytest.approx(1)
    assert teacher.config.vocab_size == VOCAB_SIZE


def test_a_student_deeper_than_its_teacher_is_one_line():
    with pytest.raises(InputError, match="layers of the student: got 3, expected at most the teacher's 2"):
        LayerMatch(build(n_layers=3).config, build().config)
