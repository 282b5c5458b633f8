"""Text of the teacher: the likeliest tokens and the frequencies of a model that is computed again for every token."""

import pytest
import torch

from mlsys_lab.efficiency.distillation import generate_text
from mlsys_lab.errors import InputError
from tests.efficiency.distillation.making import CONTEXT, VOCAB_SIZE, build

PROMPTS = torch.tensor([[1, 2], [3, 4], [5, 6]])


@pytest.mark.parametrize(
    "changes",
    [{}, {"position": "alibi"}, {"position": "learned", "n_kv_heads": 4, "norm": "layer"}, {"window": 3}],
    ids=["grouped", "alibi", "learned", "window"],
)
@torch.no_grad()
def test_cold_text_is_the_likeliest_continuation_past_the_context_too(changes):
    model = build(**changes)
    text, seen = PROMPTS, PROMPTS
    while text.shape[1] < 2 + 12:
        if seen.shape[1] == CONTEXT:
            seen = seen[:, CONTEXT // 2 :]
        new = model(seen)[:, -1].argmax(-1, keepdim=True)
        text, seen = torch.cat([text, new], 1), torch.cat([seen, new], 1)
    assert generate_text(model, PROMPTS, 12, seed=0, temperature=1e-4).equal(text[:, 2:])


@torch.no_grad()
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_tokens_are_as_frequent_as_they_are_likely(temperature):
    model, count = build(), 20_000
    text = generate_text(model, torch.tensor([[1]]).expand(count, 1), 2, seed=0, temperature=temperature)
    first = (model(torch.tensor([[1]]))[0, -1] / temperature).softmax(-1)
    pairs = torch.tensor([[1, token] for token in range(VOCAB_SIZE)])
    second = first @ (model(pairs)[:, -1] / temperature).softmax(-1)
    for position, expected in enumerate((first, second)):
        found = torch.bincount(text[:, position], minlength=VOCAB_SIZE)
        chi_squared = ((found - count * expected) ** 2 / (count * expected)).sum()
        assert chi_squared < 29.6, "exceeded once in 1,000 seeds (10 degrees of freedom)"


def test_a_seed_repeats_a_text():
    model = build()
    first, again, other = (generate_text(model, PROMPTS, 9, seed=seed) for seed in (0, 0, 1))
    assert first.equal(again) and not first.equal(other) and first.shape == (3, 9)


@pytest.mark.parametrize("prompts", [torch.empty(0, 2), torch.empty(2, 0), torch.zeros(1, CONTEXT), torch.zeros(3)])
def test_prompts_that_leave_nothing_to_generate_are_one_line(prompts):
    with pytest.raises(InputError, match=rf"prompts: got \(.*\), expected \(B, P\), P from 1 to {CONTEXT - 1}"):
        generate_text(build(), prompts.long(), 3, seed=0)
