"""Texts are those written one by one, whatever the batch, the order, who gives way and what is cached."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from random import Random

import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.inference.adapters import apply_adapter
from mlsys_lab.inference.cache import PageTables
from mlsys_lab.inference.engine import Engine, Limits, Scheduler
from mlsys_lab.inference.generate import Request, Sampling, generate
from mlsys_lab.inference.speculative import ModelDrafter, PromptLookup
from tests.inference.adapters.making import strong
from tests.inference.making import CONTEXT, V, build, draw

MODEL = build()
GREEDY = Sampling(temperature=0)
ALIKE = draw(16)
ADAPTERS = {"one": strong(MODEL, 2, 1, ("query", "value")), "other": strong(MODEL, 3, 2, ("key", "out", "up", "down"))}


def requests(seed, greedy=False):
    """Prompts of which most begin alike, with all kinds of sampling."""
    random = Random(seed)
    made = []
    for number in range(7):
        prompt = ALIKE[: random.randint(0, 12)] + draw(random.randint(1, 3), seed=random.randint(0, 2))
        most = random.randint(1, min(8, CONTEXT - len(prompt)))
        warm = Sampling(temperature=1.5, top_k=9, repetition_penalty=1.1, seed=number)
        drawn = not greedy and number % 2
        made.append(Request(prompt, most, warm if drawn else GREEDY, count=2 if drawn else 1, stop=[[3, 1], [5]]))
    return made


def write_alone(request, adapter=None):
    with apply_adapter(MODEL, ADAPTERS[adapter]) if adapter else nullcontext():
        return generate(MODEL, [request])[0]


def check(answers, asked, adapters=None):
    assert len(answers) == len(asked)
    for request, texts, adapter in zip(asked, answers, adapters or [None] * len(asked), strict=True):
        alone = write_alone(request, adapter)
        assert [text.tokens for text in texts] == [text.tokens for text in alone]
        assert [text.reason for text in texts] == [text.reason for text in alone]
        for text, other in zip(texts, alone, strict=True):
            assert text.logprobs == pytest.approx(other.logprobs, abs=1e-12)


class OneAtATime(Scheduler):
    """Admits nobody while somebody runs."""

    def _admit(self, sequence, batch):
        return not self.running and super()._admit(sequence, batch)


def test_a_scheduler_of_another_class_decides():
    engine = Engine(
        MODEL, pages=8, page=3, build=lambda pages, page, limits: OneAtATime(PageTables(pages, page), limits)
    )
    asked = requests(1, greedy=True)
    numbers, found = [engine.add(request) for request in asked], {}
    while not engine.idle:
        assert len(engine.scheduler.running) <= 1
        for written in engine.step():
            if written.completion:
                found[written.request] = written.completion
    check([[found[number]] for number in numbers], asked)


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("mixed", [False, True], ids=["one model", "adapters"])
@pytest.mark.parametrize("seed", (0, 2, 3))
def test_texts_are_those_written_alone(preemption, mixed, seed):
    random, choices, asked = Random(seed), Random(seed + 1000), requests(seed)
    adapters = [choices.choice([None, *ADAPTERS]) if mixed else None for _ in asked]
    limits = Limits(sequences=4, tokens=6, preemption=preemption, host_pages=5)
    engine, found = Engine(MODEL, pages=8, page=3, limits=limits, adapters=ADAPTERS if mixed else None), {}
    preempted = 0
    for request, adapter in zip(asked, adapters, strict=True):
        engine.add(request, priority=random.choice([0, 0, 1]), adapter=adapter)
        for _ in range(random.randint(0, 3)):
            preempted += take(engine, found)
    while not engine.idle:
        preempted += take(engine, found)
    check([[found[number, choice] for choice in range(one.count)] for number, one in enumerate(asked)], asked, adapters)
    assert preempted and engine.cache.bytes_held == 0 and engine.cache.sequences == []


def take(engine, found):
    found |= {(one.request, one.choice): one.completion for one in engine.step() if one.completion}
    return len(engine.batch.preempted)


def test_a_prefix_is_shared_under_one_adapter_and_with_no_other():
    engine, request = Engine(MODEL, pages=40, page=4, adapters=ADAPTERS), Request(ALIKE[:13], 4, GREEDY)
    hits, texts = [], set()
    for adapter in (None, "one", "other", "one", None, "other"):
        number = engine.add(request, adapter=adapter)
        engine.step()
        hits.append(engine.scheduler.running[0].hits)
        answer = engine.run()[number]
        check([answer], [request], [adapter])
        texts.add(answer[0].tokens)
    assert hits == [0, 0, 0, 12, 12, 12] and len(texts) == 3


@pytest.mark.parametrize("drafter", ["lookup", "bad"])
def test_drafts_change_no_text_under_adapters(drafter):
    made = (lambda: PromptLookup(V)) if drafter == "lookup" else (lambda: ModelDrafter(MODEL))
    asked, adapters = requests(5, greedy=True), [None, "one", "other", "one", None, "other", "one"]
    limits = Limits(sequences=3, tokens=9)
    engine = Engine(MODEL, pages=9, page=3, limits=limits, drafter=made, drafts=3, adapters=ADAPTERS)
    numbers = [engine.add(request, adapter=adapter) for request, adapter in zip(asked, adapters, strict=True)]
    found = engine.run()
    check([found[number] for number in numbers], asked, adapters)


def test_adapters_ask_for_a_scheduler_that_knows_them():
    class Foreign:
        tables = PageTables(4, 4)

    with pytest.raises(InputError, match="a scheduler that may know no adapters: got Foreign"):
        Engine(MODEL, pages=4, page=4, build=lambda pages, page, limits: Foreign(), adapters=ADAPTERS)
    engine = Engine(MODEL, pages=4, page=4)
    with pytest.raises(InputError, match="unknown adapter: got one, expected none: the engine has no adapters"):
        engine.add(Request(draw(2), 2, GREEDY), adapter="one")


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("drafter", ["lookup", "good", "bad"])
def test_drafts_change_no_text(drafter, preemption):
    other = MODEL if drafter == "good" else build(seed=1)
    made = (lambda: PromptLookup(V)) if drafter == "lookup" else (lambda: ModelDrafter(other))
    limits = Limits(sequences=3, tokens=9, preemption=preemption, host_pages=4)
    asked = requests(5, greedy=True)
    engine = Engine(MODEL, pages=9, page=3, limits=limits, drafter=made, drafts=3)
    numbers = [engine.add(request) for request in asked]
    found = engine.run()
    check([found[number] for number in numbers], asked)
    assert engine.cache.bytes_held == 0
    alone = Engine(MODEL, pages=24, page=3, limits=Limits(sequences=7, tokens=99))
    for request in asked:
        alone.add(request)
    alone.run()
    if drafter == "good":
        assert engine.scheduler.steps < alone.scheduler.steps * len(asked) / 3


def test_drawn_texts_with_drafts_end_and_leave_nothing_behind():
    engine = Engine(MODEL, pages=9, page=3, drafter=lambda: ModelDrafter(build(seed=1)))
    for request in requests(6):
        engine.add(request)
    assert len(engine.run()) == 7 and engine.cache.bytes_held == 0


def test_a_prompt_that_is_wholly_cached_keeps_a_token_to_ask_with():
    engine, request = Engine(MODEL, pages=12, page=4), Request(ALIKE[:12], 3, GREEDY)
    engine.add(request)
    engine.run()
    engine.add(request)
    engine.step()
    assert engine.scheduler.running[0].hits == 8 and len(engine.batch.new[1]) == 4
    check([engine.run()[1]], [request])


def test_two_that_come_together_do_not_share_pages_that_are_not_filled_yet():
    engine, asked = Engine(MODEL, pages=12, page=4), [Request(ALIKE[:11], 4, GREEDY)] * 2
    for request in asked:
        engine.add(request)
    engine.step()
    assert [one.hits for one in engine.scheduler.running] == [0, 0] and engine.batch.tokens == 22
    engine.add(asked[0])
    engine.step()
    assert engine.scheduler.running[-1].hits == 8
    check(list(engine.run().values()), [*asked, asked[0]])


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_who_was_preempted_comes_back_to_what_the_cache_still_holds_and_loses_no_token(preemption):
    limits = Limits(sequences=2, tokens=16, preemption=preemption, host_pages=9)
    engine = Engine(MODEL, pages=6, page=4, limits=limits)
    asked = [Request(draw(7), 9, GREEDY), Request(draw(7, seed=2), 9, GREEDY)]
    numbers = [engine.add(request) for request in asked]
    (second,) = engine.scheduler.waiting[1:]
    found: dict = {}
    written = {number: () for number in numbers}
    while not engine.idle:
        for one in engine.step():
            written[one.request] += one.tokens
            found |= {one.request: [one.completion]} if one.completion else {}
    assert second.preemptions > 0 and second.hits > 0
    check([found[number] for number in numbers], asked)
    assert all(written[number] == found[number][0].tokens for number in numbers)


def test_whom_nobody_waits_for_leaves_at_once():
    engine = Engine(MODEL, pages=12, page=4, limits=Limits(sequences=2, tokens=8))
    asked = [Request(draw(9, seed=seed), 8, Sampling(seed=1), count=2) for seed in (1, 2, 3)]
    numbers = [engine.add(request) for request in asked]
    engine.step()
    for number in numbers[::2]:
        engine.abort(number)
    assert engine.cache.sequences == []
    check([engine.run()[numbers[1]]], [asked[1]])
    with pytest.raises(InputError, match="no such request under way: got 0"):
        engine.abort(0)


def test_streams_take_turns_and_one_that_is_closed_is_forgotten():
    engine = Engine(MODEL, pages=24, page=4)
    asked = [Request(draw(5, seed=seed), 6, GREEDY) for seed in (1, 2)]
    other = engine.add(asked[1])
    stream = engine.stream(asked[0])
    assert len([next(stream) for _ in range(3)]) == 3
    stream.close()
    assert [writer.request for writer in engine._writers.values()] == [other]
    tokens = [token for one in engine.stream(asked[0]) for token in one.tokens]
    assert tuple(tokens) == generate(MODEL, asked[:1])[0][0].tokens


def test_streams_beside_each_other_and_beside_a_run_lose_nothing():
    engine = Engine(MODEL, pages=24, page=4)
    asked = [Request(draw(5, seed=seed), 6, GREEDY) for seed in (1, 2, 3)]
    added = engine.add(asked[2])
    slow, quick = engine.stream(asked[0]), engine.stream(asked[1])
    first = next(slow).tokens
    texts = [sum((one.tokens for one in stream), ()) for stream in (quick, slow)]
    check([engine.run()[added]], asked[2:])
    assert [first + texts[1], texts[0]] == [generate(MODEL, [one])[0][0].tokens for one in asked[:2]]
    assert engine.idle and engine.step() == [] and engine.run() == {}


def test_a_stream_whose_request_is_aborted_ends():
    engine = Engine(MODEL, pages=24, page=4)
    stream = engine.stream(Request(draw(5), 6, GREEDY))
    number = next(stream).request
    engine.abort(number)
    assert list(stream) == [] and engine.cache.bytes_held == 0


def test_what_cannot_be_served_is_said_in_one_line():
    engine = Engine(MODEL, pages=4, page=4)
    with pytest.raises(InputError, match=r"the text can outgrow the cache: got 10 \+ 10 tokens, 5 pages, expected up"):
        engine.add(Request(draw(10), 10, GREEDY))
    with pytest.raises(InputError, match="unknown token in the prompt"):
        engine.add(Request([V], 1, GREEDY))
    with pytest.raises(InputError, match="tokens of a step: got 3, expected at least 4, one for each sequence"):
        Limits(sequences=4, tokens=3)
    with pytest.raises(InputError, match="preemption: got 'drop', expected 'recompute' or 'swap'"):
        dataclasses.replace(Limits(), preemption="drop")
    assert engine.idle and engine.step() == []
