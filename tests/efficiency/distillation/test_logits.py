"""The loss on logits: against the sum of its definition, its gradient at high temperature, bytes of stored logits."""

import math

import pytest
import torch

from mlsys_lab.efficiency.distillation import distillation_loss, stored_logit_bytes
from mlsys_lab.errors import InputError


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("temperature", [0.5, 1, 4])
def test_the_loss_is_the_mean_divergence_times_the_squared_temperature(direction, temperature):
    student, teacher = draw(2, 3, 7), draw(2, 3, 7, seed=1)
    total = 0.0
    for mine, theirs in zip(student.flatten(0, 1).tolist(), teacher.flatten(0, 1).tolist(), strict=True):
        p, q = ([math.exp(z / temperature) for z in row] for row in (theirs, mine))
        p, q = ([one / sum(row) for one in row] for row in (p, q))
        p, q = (p, q) if direction == "forward" else (q, p)
        total += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    got = distillation_loss(student, teacher, temperature=temperature, direction=direction)
    assert got.item() == pytest.approx(temperature**2 * total / 6)


def test_at_a_high_temperature_the_gradient_is_the_difference_of_centred_logits():
    """Equation 4 of Hinton et al., multiplied by the squared temperature."""
    student, teacher = draw(1, 9).requires_grad_(), draw(1, 9, seed=1)
    distillation_loss(student, teacher, temperature=1e4).backward()
    expected = (student - student.mean()) - (teacher - teacher.mean())
    torch.testing.assert_close(student.grad, expected.detach() / 9, rtol=1e-3, atol=1e-5)


def test_at_temperature_one_the_gradient_is_that_of_cross_entropy_with_the_teacher_s_probabilities():
    student, teacher = draw(4, 5).requires_grad_(), draw(4, 5, seed=1)
    distillation_loss(student, teacher).backward()
    torch.testing.assert_close(student.grad, (student.softmax(-1) - teacher.softmax(-1)).detach() / 4)


def test_the_forward_divergence_forbids_missing_a_token_and_the_reverse_one_inventing_it():
    certain, both = torch.tensor([20.0, 0.0]), torch.tensor([0.0, 0.0])
    covers, misses = (distillation_loss(a, b) for a, b in ((both, certain), (certain, both)))
    assert covers < 0.7 < 9 < misses
    torch.testing.assert_close(distillation_loss(certain, both, direction="reverse"), covers)


def test_top_k_logits_take_a_value_and_an_index_each():
    assert stored_logit_bytes(1024) == 2048 and stored_logit_bytes(1024, value_bytes=4) == 4096
    assert stored_logit_bytes(65_536, 50) == 200 and stored_logit_bytes(65_537, 50) == 300


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: distillation_loss(draw(2, 3), draw(3, 2)), r"student \(2, 3\), teacher \(3, 2\), expected the same"),
        (lambda: distillation_loss(draw(0, 3), draw(0, 3)), "not empty"),
        (lambda: distillation_loss(draw(1, 3), draw(1, 3), temperature=0), "temperature out of range: got 0"),
        (lambda: distillation_loss(draw(1, 3), draw(1, 3), direction="back"), "unknown direction: got 'back'"),
        (lambda: stored_logit_bytes(10, 11), "top_k out of range: got 11, expected at most the vocabulary's 10"),
        (lambda: stored_logit_bytes(10, 0), "top_k out of range: got 0"),
    ],
)
def test_bad_input_is_one_line(call, message):
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
