"""Streams of one engine lose no token and leave no request behind."""

from __future__ import annotations

from mlsys_lab.inference.engine import Request, SamplingParams
from mlsys_lab.inference.generate import generate
from mlsys_lab.inference.streaming import StreamingEngine
from tests.inference.making import build, draw

MODEL = build()
GREEDY = SamplingParams(temperature=0)


def test_streams_alternate_and_a_closed_one_is_aborted():
    engine = StreamingEngine(MODEL, num_blocks=24, block_size=4)
    asked = [Request(draw(5, seed=seed), 6, GREEDY) for seed in (1, 2)]
    other = engine.add_request(asked[1])
    stream = engine.stream(asked[0])
    assert len([next(stream) for _ in range(3)]) == 3
    stream.close()
    assert [state.request_id for state in engine._states.values()] == [other]
    tokens = [token for one in engine.stream(asked[0]) for token in one.token_ids]
    assert tuple(tokens) == generate(MODEL, asked[:1])[0][0].token_ids


def test_streams_alongside_each_other_and_a_run_lose_nothing():
    engine = StreamingEngine(MODEL, num_blocks=24, block_size=4)
    asked = [Request(draw(5, seed=seed), 6, GREEDY) for seed in (1, 2, 3)]
    added = engine.add_request(asked[2])
    slow, quick = engine.stream(asked[0]), engine.stream(asked[1])
    first = next(slow).token_ids
    texts = [sum((one.token_ids for one in stream), ()) for stream in (quick, slow)]
    assert engine.run()[added][0].token_ids == generate(MODEL, asked[2:])[0][0].token_ids
    assert [first + texts[1], texts[0]] == [generate(MODEL, [one])[0][0].token_ids for one in asked[:2]]
    assert engine.is_idle and engine.step() == [] and engine.run() == {}


def test_a_stream_whose_request_is_aborted_ends():
    engine = StreamingEngine(MODEL, num_blocks=24, block_size=4)
    stream = engine.stream(Request(draw(5), 6, GREEDY))
    number = next(stream).request_id
    engine.abort_request(number)
    assert list(stream) == [] and engine.scheduler.block_manager.pool.num_used_blocks == 0
