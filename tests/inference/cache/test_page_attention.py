"""Attention over pages where they lie: what gathered pages give; a stand-in for a GPU knows both."""

from __future__ import annotations

import pytest
import torch

from mlsys_lab.inference.cache import Int8, Paged, extend
from mlsys_lab.inference.cache.page_attention import supports
from mlsys_lab.inference.engine import Engine, Limits
from mlsys_lab.inference.generate import Request, Sampling
from mlsys_lab.kernels.triton_launch import replace_launches
from tests.inference.making import build, draw
from tests.pretended_gpu import DEVICE, pretended_gpu

KINDS = [{}, {"kv_heads": 1, "window": 5}, {"kv_heads": 4, "position": "learned"}]


def paged(model, in_place):
    """A paged cache that attends in place, or gathers its pages, wherever it is."""
    cache = Paged(model, pages=20, page=4)
    cache.in_place = in_place
    return cache


def steps(cache):
    """Logits of ragged steps: prompts, a shared beginning, a fork, single tokens beside a chunk."""
    first, second = cache.start(draw(9)), cache.start(draw(3, seed=2))
    found = [extend(cache.model, cache, {first: draw(9), second: draw(3, seed=2)}, every_token=True)]
    alike, forked = cache.start(draw(9)), cache.fork(second)
    new = {alike: draw(9)[cache.length(alike) :], forked: [1], first: [2], second: draw(6, seed=3)}
    found.append(extend(cache.model, cache, new, every_token=True))
    return [*found, extend(cache.model, cache, {first: [3], second: [4]})]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_logits_are_those_over_gathered_pages(kind):
    model = build(**kind, dtype=torch.float32)
    for one, other in zip(steps(paged(model, True)), steps(paged(model, False)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)


def test_a_step_of_the_engine_waits_for_no_more_than_before():
    launched = []
    with pretended_gpu() as reads, replace_launches(lambda *_, **__: launched.append(1)):
        engine = Engine(build(dtype=torch.bfloat16).to(DEVICE), pages=40, page=4, limits=Limits(4, 9))
        engine.cache.in_place = True
        for number in range(5):
            engine.add(Request(draw(4 + number), 4, Sampling(temperature=0)))
        passes = 0
        while not engine.idle:
            engine.step()
            passes += 1
    assert len(launched) == passes * engine.model.config.n_layers
    assert reads["__bool__"] == reads["tolist"] <= passes and set(reads) == {"__bool__", "tolist"}


def test_which_models_and_caches_the_kernel_serves():
    model = build(dtype=torch.float32)
    cache = Paged(model, pages=4, page=4)
    assert supports(model, cache.storage) and not cache.in_place  # on a CPU pages are gathered
    unfit = build(), build(position="alibi", dtype=torch.float32), build(kv_heads="latent", dtype=torch.float32)
    for other in unfit:
        assert not supports(other, Paged(other, pages=4, page=4).storage)
    assert not supports(model, Paged(model, pages=4, page=4, storage=Int8).storage)


@pytest.mark.gpu
def test_texts_of_the_engine_on_a_gpu_are_those_of_a_cpu():
    def texts(device):
        engine = Engine(build(dtype=torch.float32).to(device), pages=40, page=4, limits=Limits(4, 9))
        for number in range(6):
            engine.add(Request(draw(4 + number), 9, Sampling(temperature=0)))
        return [answer.tokens for (answer,) in engine.run().values()]

    assert texts("cuda") == texts("cpu")
