"""Replicas on a Ray of this machine: one prefix stays with one replica until it is full, and nothing is left behind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlsys_lab.inference.server.engine_process import Answer
from mlsys_lab.inference.server.errors import ApiError
from mlsys_lab.inference.server.messages import Ask, Start
from mlsys_lab.inference.server.metrics import Metrics
from mlsys_lab.inference.server.ray_engine import RayEngine
from tests.loops import run

SHORT = Ask(0, prompt="The memory of a GPU", max_tokens=4, temperature=0.0)
LONG = replace(SHORT, max_tokens=480, stop=["never written"])


async def read(answer: Answer) -> str:
    await answer.begin()
    text = "".join([piece.text async for piece in answer.pieces()])
    answer.close()
    return text


async def serve_on_two_replicas() -> None:
    engine = RayEngine(Start(blocks=128, sequences=2), room=8, metrics=Metrics(128), replicas=2)
    try:
        await engine.start()
        texts = [await read(engine.open(SHORT)) for _ in range(4)]
        assert len(set(texts)) == 1 and list(engine.answered.values()) == [4]
        both = [engine.open(LONG) for _ in range(2)]
        for answer in both:
            await answer.begin()  # the two places of the prefix's replica are taken
        assert await read(engine.open(SHORT)) == texts[0]
        assert sorted(engine.answered.values()) == [1, 6]
        for answer in both:
            answer.close()  # given up: their replica is free again, long before 480 tokens
        while (await read(engine.open(SHORT))) and sorted(engine.answered.values())[1] == 6:
            pass
        refused = engine.open(replace(SHORT, max_tokens=10**6))
        with pytest.raises(ApiError, match="tokens"):
            await refused.begin()
        refused.close()
        await engine.drain()
        assert engine.metrics.open_texts == 0
    finally:
        await engine.stop()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # of Ray Serve itself
def test_one_prefix_goes_to_one_replica_unless_it_is_full() -> None:
    run(serve_on_two_replicas())
