"""The compiled drafter drafts what the model drafts on torch, whatever it has cached."""

from __future__ import annotations

import pytest
import torch

from mlsys_lab.inference.engine import SamplingParams
from mlsys_lab.inference.pretrained import load_pair, read_text
from mlsys_lab.inference.speculative import ModelDrafter, make_drafter
from mlsys_lab.inference.speculative.compiled import CompiledDrafter
from tests.inference.making import CONTEXT, build, draw


@pytest.mark.parametrize("params", [SamplingParams(temperature=0), SamplingParams(top_p=0.9)], ids=["greedy", "top-p"])
def test_drafts_are_those_of_the_model(params):
    pair = load_pair()
    tokens = pair.tokenizer.encode(read_text("held-out"))[:80]
    drafters = [make_drafter(pair.draft), ModelDrafter(pair.draft)]
    assert isinstance(drafters[0], CompiledDrafter)
    for text in (tokens[:1], tokens[:40], [*tokens[:30], *tokens[50:60]], tokens):
        ours, expected = (one.propose(text, 5, params, torch.Generator().manual_seed(0)) for one in drafters)
        assert ours.token_ids == expected.token_ids
        assert torch.allclose(ours.probabilities, expected.probabilities, atol=1e-4)


def test_drafts_end_with_the_context_and_other_models_stay_on_torch():
    model = build(kv_heads=1, dtype=torch.float32)
    greedy, generator = SamplingParams(temperature=0), torch.Generator()
    text = draw(CONTEXT - 2)
    ours = make_drafter(model).propose(text, 5, greedy, generator)
    assert len(ours.token_ids) == 2
    for other in (build(position="alibi"), build(kv_heads="latent"), build(experts=True), build(window=6)):
        assert type(make_drafter(other)) is ModelDrafter
