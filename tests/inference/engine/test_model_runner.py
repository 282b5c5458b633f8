"""The engine on a stand-in for a GPU: tensors stay there, and a step waits as often for many texts as for one."""

from __future__ import annotations

import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.inference.adapters import Adapter
from mlsys_lab.inference.engine import Engine, Limits
from mlsys_lab.inference.generate import Request, Sampling, generate
from mlsys_lab.inference.speculative import PromptLookup
from tests.inference.making import V, build, draw
from tests.pretended_gpu import DEVICE, pretended_gpu

GREEDY = Sampling(temperature=0)
SAMPLINGS = [GREEDY, Sampling(seed=0), Sampling(top_k=3, top_p=0.9, min_p=0.1, seed=1), Sampling(seed=2)]
PENALISED = Sampling(repetition_penalty=1.3, seed=3)
CHECK = {"__bool__": 1, "tolist": 1}
"""Reads of a step: are all logits numbers, and the tokens with the logarithms of their probabilities."""


@pytest.mark.parametrize(
    ("texts", "kind"),
    [(1, {}), (8, {}), (4, {"position": "alibi"}), (4, {"kv_heads": "latent"}), (4, {"window": 6})],
    ids=str,
)
def test_a_step_waits_twice_whoever_writes(texts, kind):
    with pretended_gpu() as reads:
        engine = Engine(build(**kind).to(DEVICE), pages=40, page=3, limits=Limits(5, 11))
        for number in range(texts):
            engine.add(Request(draw(4 + number, seed=number), 3 + number, SAMPLINGS[number % 4]))
        while not engine.idle:
            before = reads.copy()
            engine.step()
            assert reads - before == (CHECK if engine.batch.writers else {})


def test_what_is_moved_between_pages_and_to_the_host():
    with pretended_gpu() as reads:
        engine = Engine(build().to(DEVICE), pages=9, page=4, limits=Limits(4, 8, "swap", host_pages=50))
        for number in range(5):
            engine.add(Request(draw(5 + number), 9, PENALISED, count=1 + number % 2))
        moved = dict.fromkeys(("saves", "copies", "restores"), 0)
        while not engine.idle:
            before = reads.copy()
            engine.step()
            for name in moved:
                moved[name] += len(getattr(engine.batch, name))
            assert (reads - before)["cpu"] == len(engine.batch.saves)  # keys and values that go to the host
    assert moved["saves"] > 0 and moved["restores"] > 0


def test_drafts_and_adapters_keep_to_the_device():
    with pretended_gpu():
        model = build().to(DEVICE)
        adapter = Adapter(2, 4.0, {"blocks.0.attention.query": (torch.ones(2, 16), torch.ones(16, 2))})
        engine = Engine(model, pages=40, page=3, drafter=lambda: PromptLookup(V), adapters={"one": adapter})
        for number in range(4):
            engine.add(Request([1, 2, 1, 2, 1, 2], 9, GREEDY), adapter="one" if number % 2 else None)
        assert len(engine.run()) == 4


def test_generation_waits_twice_a_step():
    with pretended_gpu() as reads:
        generate(build().to(DEVICE), [Request(draw(3), 5, GREEDY), Request(draw(6), 5, SAMPLINGS[1], count=3)])
    assert reads == {name: 5 * count for name, count in CHECK.items()}


def test_logits_that_are_no_numbers_end_a_step_before_anything_is_written():
    engine = Engine(build(), pages=40, page=3)
    engine.add(Request(draw(4), 3, GREEDY))
    with torch.no_grad():
        engine.model.embedding.weight.fill_(torch.nan)
    with pytest.raises(InputError, match="logits are not numbers"):
        engine.step()
