"""Outputs are those of each request alone, whatever the batch, the order, what is preempted and what is cached."""

from __future__ import annotations

from collections import defaultdict
from contextlib import nullcontext
from random import Random

import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.inference.adapters import LoRAEngine, apply_adapter
from mlsys_lab.inference.engine import BlockManager, Engine, Request, SamplingParams, Scheduler, SchedulerConfig
from mlsys_lab.inference.generate import generate
from mlsys_lab.inference.speculative import ModelDrafter, PromptLookup, SpeculativeEngine, SpeculativeScheduler
from mlsys_lab.inference.swap import SwapConfig, SwappingEngine, SwappingScheduler
from mlsys_lab.models import load
from tests.inference.adapters.making import strong
from tests.inference.making import CONTEXT, V, build, draw
from tests.models.families import FAMILIES
from tests.models.families import build as build_theirs

MODEL = build()
GREEDY = SamplingParams(temperature=0)
ALIKE = draw(16)
ADAPTERS = {"one": strong(MODEL, 2, 1, ("query", "value")), "other": strong(MODEL, 3, 2, ("key", "out", "up", "down"))}


def requests(seed, greedy=False):
    """Prompts of which most begin alike, with all kinds of sampling."""
    random = Random(seed)
    made = []
    for number in range(7):
        prompt = ALIKE[: random.randint(0, 12)] + draw(random.randint(1, 3), seed=random.randint(0, 2))
        most = random.randint(1, min(8, CONTEXT - len(prompt)))
        warm = SamplingParams(temperature=1.5, top_k=9, repetition_penalty=1.1, seed=number)
        drawn = not greedy and number % 2
        made.append(
            Request(prompt, most, warm if drawn else GREEDY, n=2 if drawn else 1, stop_token_sequences=[[3, 1], [5]])
        )
    return made


def write_alone(request, adapter=None):
    with apply_adapter(MODEL, ADAPTERS[adapter]) if adapter else nullcontext():
        return generate(MODEL, [request])[0]


class LoRASwappingEngine(LoRAEngine, SwappingEngine):
    """Adapters, and preemption by swapping."""


class LoRASpeculativeEngine(LoRAEngine, SpeculativeEngine):
    """Adapters, and draft tokens."""


class SpeculativeSwappingScheduler(SpeculativeScheduler, SwappingScheduler):
    """Draft tokens, and preemption by swapping."""


class SpeculativeSwappingEngine(SpeculativeEngine, SwappingEngine):
    """Draft tokens, and preemption by swapping."""

    scheduler_class = SpeculativeSwappingScheduler


def is_empty(engine):
    return engine.scheduler.block_manager.pool.num_used_blocks == 0


def check(answers, asked, adapters=None):
    assert len(answers) == len(asked)
    for request, texts, adapter in zip(asked, answers, adapters or [None] * len(asked), strict=True):
        alone = write_alone(request, adapter)
        assert [text.token_ids for text in texts] == [text.token_ids for text in alone]
        assert [text.finish_reason for text in texts] == [text.finish_reason for text in alone]
        for text, other in zip(texts, alone, strict=True):
            assert text.logprobs == pytest.approx(other.logprobs, abs=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_are_those_of_transformers(family, tmp_path):
    """Two requests of a checkpoint at once, their prompts in chunks; attention is compiled where it can be."""
    theirs = build_theirs(family)
    theirs.save_pretrained(tmp_path)
    engine = Engine(load(tmp_path), num_blocks=16, block_size=4, config=SchedulerConfig(2, 5), compiled=True)
    expected, found = {}, defaultdict(list)
    for length in (3, 13):
        prompt = torch.randint(2, 61, (1, length), generator=torch.Generator().manual_seed(length))
        options = {"max_new_tokens": 32 - length, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        tokens = theirs.generate(prompt, attention_mask=torch.ones_like(prompt), **options)[0, length:].tolist()
        expected[engine.add_request(Request(prompt[0].tolist(), 32 - length, GREEDY))] = tokens
    while not engine.is_idle:
        for one in engine.step():
            found[one.request_id] += one.token_ids
    assert found == expected


class OneAtATime(Scheduler):
    """Admits no sequence while another one runs."""

    def _admit(self, seq, output):
        return not self.running and super()._admit(seq, output)


def test_a_scheduler_of_another_class_decides():
    scheduler = OneAtATime(BlockManager(8, 3), SchedulerConfig())
    engine = Engine(MODEL, num_blocks=8, block_size=3, scheduler=scheduler)
    asked = requests(1, greedy=True)
    numbers, found = [engine.add_request(request) for request in asked], {}
    while not engine.is_idle:
        assert len(engine.scheduler.running) <= 1
        for output in engine.step():
            if output.completion:
                found[output.request_id] = output.completion
    check([[found[number]] for number in numbers], asked)


@pytest.mark.parametrize(
    ("num_blocks", "block_size", "options", "said"),
    [
        (8, 4, {}, r"other blocks than the engine: got 8 of 4, expected 8 of 3 tokens"),
        (9, 3, {}, r"other blocks than the engine: got 9 of 3, expected 8 of 3 tokens"),
        (8, 3, {"config": SchedulerConfig()}, "a scheduler has its own configuration: got both"),
    ],
)
def test_a_scheduler_that_does_not_fit_the_engine_raises(num_blocks, block_size, options, said):
    scheduler = Scheduler(BlockManager(num_blocks, block_size), SchedulerConfig())
    with pytest.raises(InputError, match=said):
        Engine(MODEL, num_blocks=8, block_size=3, scheduler=scheduler, **options)


@pytest.mark.parametrize("num_host_blocks", [0, 5], ids=["recompute", "swap"])
@pytest.mark.parametrize("mixed", [False, True], ids=["one model", "adapters"])
@pytest.mark.parametrize("seed", (0, 2, 3))
def test_outputs_are_those_of_each_request_alone(num_host_blocks, mixed, seed):
    random, choices, asked = Random(seed), Random(seed + 1000), requests(seed)
    adapters = [choices.choice([None, *ADAPTERS]) if mixed else None for _ in asked]
    config = SwapConfig(max_num_seqs=4, max_num_batched_tokens=6, num_host_blocks=num_host_blocks)
    options = {"num_blocks": 8, "block_size": 3, "config": config}
    engine = LoRASwappingEngine(MODEL, adapters=ADAPTERS, **options) if mixed else SwappingEngine(MODEL, **options)
    found, preempted = {}, 0
    for request, adapter in zip(asked, adapters, strict=True):
        under = {"adapter": adapter} if mixed else {}
        engine.add_request(request, priority=random.choice([0, 0, 1]), **under)
        for _ in range(random.randint(0, 3)):
            preempted += take(engine, found)
    while not engine.is_idle:
        preempted += take(engine, found)
    check([[found[number, choice] for choice in range(one.n)] for number, one in enumerate(asked)], asked, adapters)
    assert preempted and is_empty(engine)


def take(engine, found):
    found |= {(one.request_id, one.index): one.completion for one in engine.step() if one.completion}
    return len(engine.last_scheduler_output.preempted)


def test_a_prefix_is_shared_under_one_adapter_and_with_no_other():
    engine = LoRAEngine(MODEL, num_blocks=40, block_size=4, adapters=ADAPTERS)
    request = Request(ALIKE[:13], 4, GREEDY)
    hits, texts = [], set()
    for adapter in (None, "one", "other", "one", None, "other"):
        number = engine.add_request(request, adapter=adapter)
        engine.step()
        hits.append(engine.scheduler.running[0].num_cached_tokens)
        answer = engine.run()[number]
        check([answer], [request], [adapter])
        texts.add(answer[0].token_ids)
    assert hits == [0, 0, 0, 12, 12, 12] and len(texts) == 3


@pytest.mark.parametrize("drafter", ["lookup", "bad"])
def test_drafts_change_no_text_under_adapters(drafter):
    made = (lambda: PromptLookup(V)) if drafter == "lookup" else (lambda: ModelDrafter(MODEL))
    asked, adapters = requests(5, greedy=True), [None, "one", "other", "one", None, "other", "one"]
    config = SchedulerConfig(max_num_seqs=3, max_num_batched_tokens=9)
    options = {"num_blocks": 9, "block_size": 3, "config": config}
    engine = LoRASpeculativeEngine(MODEL, drafter=made, num_speculative_tokens=3, adapters=ADAPTERS, **options)
    numbers = [engine.add_request(request, adapter=adapter) for request, adapter in zip(asked, adapters, strict=True)]
    found = engine.run()
    check([found[number] for number in numbers], asked, adapters)


def test_adapters_need_a_scheduler_that_separates_them():
    class Foreign:
        pass

    with pytest.raises(InputError, match="a scheduler without adapters: got Foreign"):
        LoRAEngine(MODEL, num_blocks=4, block_size=4, scheduler=Foreign(), adapters=ADAPTERS)
    engine = LoRAEngine(MODEL, num_blocks=4, block_size=4, adapters={})
    with pytest.raises(InputError, match="unknown adapter: got one, expected none: the engine has no adapters"):
        engine.add_request(Request(draw(2), 2, GREEDY), adapter="one")


@pytest.mark.parametrize("num_host_blocks", [0, 4], ids=["recompute", "swap"])
@pytest.mark.parametrize("drafter", ["lookup", "good", "bad"])
def test_drafts_change_no_output(drafter, num_host_blocks):
    other = MODEL if drafter == "good" else build(seed=1)
    made = (lambda: PromptLookup(V)) if drafter == "lookup" else (lambda: ModelDrafter(other))
    config = SwapConfig(max_num_seqs=3, max_num_batched_tokens=9, num_host_blocks=num_host_blocks)
    asked = requests(5, greedy=True)
    engine = SpeculativeSwappingEngine(
        MODEL, num_blocks=9, block_size=3, config=config, drafter=made, num_speculative_tokens=3
    )
    numbers = [engine.add_request(request) for request in asked]
    found = engine.run()
    check([found[number] for number in numbers], asked)
    assert is_empty(engine)
    alone = Engine(
        MODEL, num_blocks=24, block_size=3, config=SchedulerConfig(max_num_seqs=7, max_num_batched_tokens=99)
    )
    for request in asked:
        alone.add_request(request)
    alone.run()
    if drafter == "good":
        assert engine.scheduler.num_steps < alone.scheduler.num_steps * len(asked) / 3


def test_drawn_texts_with_drafts_end_and_leave_nothing_behind():
    engine = SpeculativeEngine(MODEL, num_blocks=9, block_size=3, drafter=lambda: ModelDrafter(build(seed=1)))
    for request in requests(6):
        engine.add_request(request)
    assert len(engine.run()) == 7 and is_empty(engine)


def test_the_last_token_of_a_cached_prompt_is_computed_again():
    engine, request = Engine(MODEL, num_blocks=12, block_size=4), Request(ALIKE[:12], 3, GREEDY)
    engine.add_request(request)
    engine.run()
    engine.add_request(request)
    engine.step()
    assert engine.scheduler.running[0].num_cached_tokens == 8 and list(
        engine.last_scheduler_output.num_scheduled_tokens.values()
    ) == [4]
    check([engine.run()[1]], [request])


def test_blocks_are_not_shared_before_they_are_computed():
    engine, asked = Engine(MODEL, num_blocks=12, block_size=4), [Request(ALIKE[:11], 4, GREEDY)] * 2
    for request in asked:
        engine.add_request(request)
    engine.step()
    assert [seq.num_cached_tokens for seq in engine.scheduler.running] == [
        0,
        0,
    ] and engine.last_scheduler_output.total_num_scheduled_tokens == 22
    engine.add_request(asked[0])
    engine.step()
    assert engine.scheduler.running[-1].num_cached_tokens == 8
    check(list(engine.run().values()), [*asked, asked[0]])


@pytest.mark.parametrize("num_host_blocks", [0, 9], ids=["recompute", "swap"])
def test_a_readmitted_sequence_finds_its_blocks_in_the_prefix_cache_and_loses_no_token(num_host_blocks):
    config = SwapConfig(max_num_seqs=2, max_num_batched_tokens=16, num_host_blocks=num_host_blocks)
    engine = SwappingEngine(MODEL, num_blocks=6, block_size=4, config=config)
    asked = [Request(draw(7), 9, GREEDY), Request(draw(7, seed=2), 9, GREEDY)]
    numbers = [engine.add_request(request) for request in asked]
    (second,) = engine.scheduler.waiting[1:]
    found: dict = {}
    written = {number: () for number in numbers}
    while not engine.is_idle:
        for one in engine.step():
            written[one.request_id] += one.token_ids
            found |= {one.request_id: [one.completion]} if one.completion else {}
    assert second.num_preemptions > 0 and second.num_cached_tokens > 0
    check([found[number] for number in numbers], asked)
    assert all(written[number] == found[number][0].token_ids for number in numbers)


def test_what_became_of_a_sequence_is_said():
    engine = Engine(MODEL, num_blocks=4, block_size=4, config=SchedulerConfig(max_num_seqs=2))
    found = {}
    ids = [engine.add_request(Request(ALIKE[:7], 6, GREEDY)) for _ in range(2)]
    later = engine.add_request(Request(ALIKE[:7], 2, GREEDY))
    while not engine.is_idle:
        found |= {delta.request_id: delta.stats for delta in engine.step() if delta.completion}
    assert sum(found[one].num_preemptions for one in ids) > 0, "four blocks do not hold two sequences of 13 tokens"
    assert found[ids[0]].num_cached_tokens in (0, 4) and found[later].num_cached_tokens == 4
    assert 0 <= found[ids[0]].queue_time_s < found[later].queue_time_s


def test_an_aborted_request_frees_its_blocks_at_once():
    engine = Engine(
        MODEL, num_blocks=12, block_size=4, config=SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=8)
    )
    asked = [Request(draw(9, seed=seed), 8, SamplingParams(seed=1), n=2) for seed in (1, 2, 3)]
    numbers = [engine.add_request(request) for request in asked]
    engine.step()
    for number in numbers[::2]:
        engine.abort_request(number)
    assert is_empty(engine)
    check([engine.run()[numbers[1]]], [asked[1]])
    with pytest.raises(InputError, match="no unfinished request with this id: got 0"):
        engine.abort_request(0)


def test_on_token_may_abort_its_request():
    """Its request leaves; the other sequences of the step go on as if alone."""
    engine, seen = Engine(MODEL, num_blocks=12, block_size=4), []

    def abort(token_id):
        seen.append(token_id)
        engine.abort_request(number)

    asked = Request(draw(9), 8, GREEDY)
    number = engine.add_request(Request(draw(9), 8, GREEDY, on_token=abort))
    other = engine.add_request(asked)
    answers = engine.run()
    assert len(seen) == 1 and list(answers) == [other] and is_empty(engine)
    check([answers[other]], [asked])


def test_an_error_in_on_token_leaves_the_engine_consistent():
    engine, asked = Engine(MODEL, num_blocks=12, block_size=4), Request(draw(9), 8, GREEDY)

    def fail(token_id):
        raise KeyError(token_id)

    other = engine.add_request(asked)
    number = engine.add_request(Request(draw(9), 8, GREEDY, on_token=fail))
    with pytest.raises(KeyError):
        engine.step()
    engine.abort_request(number)
    check([engine.run()[other]], [asked])


def test_what_cannot_be_served_is_said_in_one_line():
    engine = Engine(MODEL, num_blocks=4, block_size=4)
    with pytest.raises(
        InputError, match=r"the sequence can outgrow the cache: got 10 \+ 10 tokens, 5 blocks, expected up"
    ):
        engine.add_request(Request(draw(10), 10, GREEDY))
    with pytest.raises(InputError, match="unknown token in the prompt"):
        engine.add_request(Request([V], 1, GREEDY))
    with pytest.raises(InputError, match="max_num_batched_tokens: got 3, expected at least 4, one for each sequence"):
        SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=3)
    with pytest.raises(InputError, match="num_host_blocks must not be negative: got -1"):
        SwapConfig(num_host_blocks=-1)
    assert engine.is_idle and engine.step() == []
