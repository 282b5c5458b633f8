"""Distillation on logits: the student learns the teacher's whole distribution of each next token, not one sample of it.

Dimension letters: B sequences of a batch, T tokens of a sequence, V vocabulary.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch.nn import functional as F

from mlsys_lab.errors import InputError
from mlsys_lab.validation import require_integer, require_one_of, require_positive_number

Direction = Literal["forward", "reverse"]
DIRECTIONS = ("forward", "reverse")


def distillation_loss(
    student_logits: torch.Tensor,
    teacher_logits: torch.Tensor,
    *,
    temperature: float = 1.0,
    direction: Direction = "forward",
) -> torch.Tensor:
    """Mean KL divergence between teacher and student, times the squared temperature: two (..., V) -> a scalar in nats.

    Both logits are divided by the temperature, so that unlikely tokens count more. The gradient shrinks with the
    square of the temperature, which the factor undoes (Hinton et al., arXiv:1503.02531, §2). "forward" is
    KL(teacher ‖ student): the student covers all that the teacher may say. "reverse", KL(student ‖ teacher), has it
    avoid what the teacher would not say (MiniLLM, arXiv:2306.08543, §2.1, which samples it from the student's own
    texts; here both are exact at each token). InputError for different shapes, no logits, and a temperature that is
    not positive.
    """
    require_positive_number("temperature", temperature)
    require_one_of("direction", direction, DIRECTIONS)
    if student_logits.shape != teacher_logits.shape or not student_logits.numel():
        got = f"student {tuple(student_logits.shape)}, teacher {tuple(teacher_logits.shape)}"
        raise InputError("logits of student and teacher", got=got, expected="the same shape (..., V), not empty")
    student, teacher = (
        F.log_softmax(logits.reshape(-1, logits.shape[-1]) / temperature, dim=-1)
        for logits in (student_logits, teacher_logits)
    )
    target, learner = (teacher, student) if direction == "forward" else (student, teacher)
    return temperature**2 * F.kl_div(learner, target, reduction="batchmean", log_target=True)


def stored_logit_bytes(vocab_size: int, top_k: int | None = None, *, value_bytes: int = 2) -> int:
    """Bytes per token of a teacher's logits on disk: all of them, or the `top_k` largest with their token ids.

    A token id takes 2 bytes in a vocabulary of up to 65,536 tokens, else 4. InputError unless 1 <= top_k <= vocab_size.

    >>> stored_logit_bytes(128_256), stored_logit_bytes(128_256, top_k=100)
    (256512, 600)
    """
    require_integer("vocab_size", vocab_size)
    require_integer("value_bytes", value_bytes)
    if top_k is None:
        return vocab_size * value_bytes
    require_integer("top_k", top_k)
    if top_k > vocab_size:
        raise InputError("top_k out of range", got=top_k, expected=f"at most the vocabulary's {vocab_size}")
    return top_k * (value_bytes + (2 if vocab_size <= 1 << 16 else 4))
