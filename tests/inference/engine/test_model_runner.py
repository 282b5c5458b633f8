"""The engine on a stand-in for a GPU: tensors stay there, and a step waits as often for many sequences as for one.

Attention over blocks where they are gives what attention over gathered blocks gives.
"""

from __future__ import annotations

import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.inference.adapters import Adapter, LoRAEngine
from mlsys_lab.inference.cache import Int8KVCache, Paged, extend
from mlsys_lab.inference.engine import Engine, Request, SamplingParams, SchedulerConfig
from mlsys_lab.inference.engine.model_runner import PagedAttention
from mlsys_lab.inference.generate import generate
from mlsys_lab.inference.speculative import PromptLookup, SpeculativeEngine
from mlsys_lab.inference.swap import SwapConfig, SwappingEngine
from mlsys_lab.kernels.triton_launch import replace_launches
from tests.inference.making import V, build, draw
from tests.pretended_gpu import DEVICE, pretended_gpu

GREEDY = SamplingParams(temperature=0)
SAMPLINGS = [
    GREEDY,
    SamplingParams(seed=0),
    SamplingParams(top_k=3, top_p=0.9, min_p=0.1, seed=1),
    SamplingParams(seed=2),
]
PENALISED = SamplingParams(repetition_penalty=1.3, seed=3)


class LoRASpeculativeEngine(LoRAEngine, SpeculativeEngine):
    """Adapters, and draft tokens."""


CHECK = {"__bool__": 1, "tolist": 1}
"""Reads of a step: are all logits numbers, and the tokens with the logarithms of their probabilities."""


@pytest.mark.parametrize(
    ("texts", "kind"),
    [(1, {}), (8, {}), (4, {"position": "alibi"}), (4, {"kv_heads": "latent"}), (4, {"window": 6})],
    ids=str,
)
def test_a_step_waits_twice_for_any_number_of_sequences(texts, kind):
    with pretended_gpu() as reads:
        engine = Engine(build(**kind).to(DEVICE), num_blocks=40, block_size=3, config=SchedulerConfig(5, 11))
        for number in range(texts):
            engine.add_request(Request(draw(4 + number, seed=number), 3 + number, SAMPLINGS[number % 4]))
        while not engine.is_idle:
            before = reads.copy()
            engine.step()
            assert reads - before == (CHECK if engine.last_scheduler_output.sampled else {})


def test_swapping_reads_the_device_for_blocks_that_go_to_the_host():
    with pretended_gpu() as reads:
        config = SwapConfig(4, 8, num_host_blocks=50)
        engine = SwappingEngine(build().to(DEVICE), num_blocks=9, block_size=4, config=config)
        for number in range(5):
            engine.add_request(Request(draw(5 + number), 9, PENALISED, n=1 + number % 2))
        moved = dict.fromkeys(("swap_out", "swap_in"), 0)
        while not engine.is_idle:
            before = reads.copy()
            engine.step()
            for name in moved:
                moved[name] += len(getattr(engine.last_scheduler_output, name))
            assert (reads - before)["cpu"] == len(engine.last_scheduler_output.swap_out)
    assert moved["swap_out"] > 0 and moved["swap_in"] > 0


def test_drafts_and_adapters_keep_to_the_device():
    with pretended_gpu():
        model = build().to(DEVICE)
        adapter = Adapter(2, 4.0, {"blocks.0.attention.query": (torch.ones(2, 16), torch.ones(16, 2))})
        engine = LoRASpeculativeEngine(
            model, num_blocks=40, block_size=3, drafter=lambda: PromptLookup(V), adapters={"one": adapter}
        )
        for number in range(4):
            engine.add_request(Request([1, 2, 1, 2, 1, 2], 9, GREEDY), adapter="one" if number % 2 else None)
        assert len(engine.run()) == 4


def test_generation_waits_twice_a_step():
    with pretended_gpu() as reads:
        generate(build().to(DEVICE), [Request(draw(3), 5, GREEDY), Request(draw(6), 5, SAMPLINGS[1], n=3)])
    assert reads == {name: 5 * count for name, count in CHECK.items()}


def test_logits_that_are_no_numbers_end_a_step_before_anything_is_written():
    engine = Engine(build(), num_blocks=40, block_size=3)
    engine.add_request(Request(draw(4), 3, GREEDY))
    with torch.no_grad():
        engine.model.embedding.weight.fill_(torch.nan)
    with pytest.raises(InputError, match="logits are not numbers"):
        engine.step()


KINDS = [{}, {"kv_heads": 1, "window": 5}, {"kv_heads": 4, "position": "learned"}]


def make_paged(model, use_paged_attention):
    """A paged cache that attends by the kernel, or over gathered blocks, on any device."""
    cache = Paged(model, num_blocks=20, block_size=4)
    cache.use_paged_attention = use_paged_attention
    return cache


def steps(cache):
    """Logits of ragged steps: prompts, a shared prefix, a fork, single tokens alongside a chunk."""
    first, second = cache.start(draw(9)), cache.start(draw(3, seed=2))
    found = [extend(cache.model, cache, {first: draw(9), second: draw(3, seed=2)}, every_token=True)]
    alike, forked = cache.start(draw(9)), cache.fork(second)
    new = {alike: draw(9)[cache.length(alike) :], forked: [1], first: [2], second: draw(6, seed=3)}
    found.append(extend(cache.model, cache, new, every_token=True))
    return [*found, extend(cache.model, cache, {first: [3], second: [4]})]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_logits_of_the_kernel_are_those_over_gathered_blocks(kind):
    model = build(**kind, dtype=torch.float32)
    for one, other in zip(steps(make_paged(model, True)), steps(make_paged(model, False)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)


def test_a_step_with_the_kernel_waits_no_more_often():
    launched = []
    with pretended_gpu() as reads, replace_launches(lambda *_, **__: launched.append(1)):
        engine = Engine(
            build(dtype=torch.bfloat16).to(DEVICE), num_blocks=40, block_size=4, config=SchedulerConfig(4, 9)
        )
        engine.model_runner.use_paged_attention = True
        for number in range(5):
            engine.add_request(Request(draw(4 + number), 4, SamplingParams(temperature=0)))
        passes = 0
        while not engine.is_idle:
            engine.step()
            passes += 1
    assert len(launched) == passes * engine.model.config.n_layers
    assert reads["__bool__"] == reads["tolist"] <= passes and set(reads) == {"__bool__", "tolist"}


def test_which_models_and_caches_the_kernel_supports():
    model = build(dtype=torch.float32)
    cache = Paged(model, num_blocks=4, block_size=4)
    assert PagedAttention.supports(model, cache.kv_cache)
    assert not cache.use_paged_attention  # on a CPU, blocks are gathered unless one asks for the compiled kernel
    unfit = (
        build(dtype=torch.bfloat16),
        build(position="alibi", dtype=torch.float32),
        build(kv_heads="latent", dtype=torch.float32),
    )
    for other in unfit:
        assert not PagedAttention.supports(other, Paged(other, num_blocks=4, block_size=4).kv_cache)
    assert not PagedAttention.supports(model, Int8KVCache(model, 16))


@pytest.mark.gpu
def test_outputs_on_a_gpu_are_those_on_a_cpu():
    def outputs(device):
        engine = Engine(
            build(dtype=torch.float32).to(device), num_blocks=40, block_size=4, config=SchedulerConfig(4, 9)
        )
        for number in range(6):
            engine.add_request(Request(draw(4 + number), 9, SamplingParams(temperature=0)))
        return [answer.token_ids for (answer,) in engine.run().values()]

    assert outputs("cuda") == outputs("cpu")
