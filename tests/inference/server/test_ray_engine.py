"""Replicas on a Ray of this machine: a prefix stays with one until it is full; one that dies costs its own requests."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from msgspec.structs import replace

from mlsys_lab.inference.server.engine_process import OutputStream
from mlsys_lab.inference.server.errors import ApiError
from mlsys_lab.inference.server.messages import EngineArgs, GenerateRequest
from mlsys_lab.inference.server.metrics import Metrics
from mlsys_lab.inference.server.prefix import rank_replicas, routing_prefix
from mlsys_lab.inference.server.ray_engine import RayEngine
from tests.inference.server.serving import serving

MAX_NUM_SEQS = 3
SHORT = GenerateRequest(0, [[1020, 775, 65, 66]], max_tokens=4, temperature=0.0)
LONG = replace(SHORT, max_tokens=480, stop=["never written"])
LONGEST = replace(LONG, n=8, temperature=2.0, seed=4)
"""Request of about 3,000 tokens."""
pytestmark = [
    pytest.mark.weekly,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),  # of Ray Serve itself
]


def test_ctrl_c_ends_all_without_a_word():
    with serving("--engine", "ray", "--replicas", "1") as served:
        assert served.complete()[0] == 200
        assert served.end((signal.SIGINT,)) == 0
        assert served.process.stdout.read() == served.log.read_text() == ""


@pytest.fixture(scope="module")
def run():
    """Runs coroutines to their ends, all in one event loop of a thread of its own."""
    with ThreadPoolExecutor(1) as thread:
        runner = asyncio.Runner()
        yield lambda coroutine: thread.submit(runner.run, coroutine).result()
        thread.submit(runner.close).result()


@pytest.fixture(scope="module")
def engine(run):
    """Two replicas, which all requests have left at the end."""
    args = EngineArgs(num_blocks=128, max_num_seqs=MAX_NUM_SEQS)
    made = RayEngine(args, max_open_seqs=32, metrics=Metrics(128), num_replicas=2)
    try:
        run(made.start())
        yield made
        assert made.num_open_seqs == 0, "a test has left a request open"
        run(made.drain())
    finally:
        run(made.stop())


async def read(stream: OutputStream) -> str:
    try:
        await stream.accepted()
        return "".join([delta.text async for delta in stream.deltas()])
    finally:
        stream.close()


async def fill_a_replica(engine: RayEngine) -> None:
    await meet(engine, 2)  # whoever routes has heard of both
    before = Counter(engine.num_served)

    def took() -> list[int]:
        return sorted((engine.num_served - before).values())

    texts = [await read(engine.submit(SHORT)) for _ in range(4)]
    assert len(set(texts)) == 1 and took() == [4]
    full = [engine.submit(LONG) for _ in range(MAX_NUM_SEQS)]
    for stream in full:
        await stream.accepted()  # all places of the prefix's replica are taken
    assert await read(engine.submit(SHORT)) == texts[0]
    assert took() == [1, 4 + MAX_NUM_SEQS]
    for stream in full:
        stream.close()  # given up: their replica is free again, long before 480 tokens
    while (await read(engine.submit(SHORT))) and took()[1] == 4 + MAX_NUM_SEQS:
        pass
    refused = engine.submit(replace(SHORT, max_tokens=10**6))
    with pytest.raises(ApiError, match="tokens"):
        await refused.accepted()
    refused.close()


def test_one_prefix_goes_to_one_replica_unless_it_is_full(engine, run):
    run(fill_a_replica(engine))


async def meet(engine: RayEngine, count: int) -> set[str]:
    """Names of replicas, once so many have num_served; no request fails meanwhile."""
    prompts = 0
    while len(engine.num_served) < count:
        assert await read(engine.submit(replace(SHORT, prompts=[[prompts, 65]])))
        prompts += 1
    return set(engine.num_served)


def choose_prompt(replica: str, replicas: set[str]) -> list[int]:
    """A prompt that goes first to this one."""
    prompts = ([number, 66, 65] for number in range(1000))
    return next(
        one for one in prompts if rank_replicas(routing_prefix(GenerateRequest(0, [one])), replicas)[0] == replica
    )


async def find_process(replica: str) -> int:
    """Id of a replica's process, which it says itself."""
    import ray

    actor = ray.get_actor(f"SERVE_REPLICA::engine#EngineReplica#{replica}", "serve")
    return await actor.__ray_call__.remote(lambda _: os.getpid())


async def lose(stream: OutputStream) -> None:
    """Read on to the error that tells of a crash."""
    with pytest.raises(ApiError) as caught:
        async for _ in stream.deltas():
            pass
    assert (caught.value.status, caught.value.code) == (500, "engine_crashed")
    stream.close()


async def lose_an_engine(engine: RayEngine) -> None:
    both = await meet(engine, 2)
    replica = min(both)
    prompt, process = choose_prompt(replica, both), await find_process(replica)
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process)], capture_output=True, check=True)
    num_served, restarts = engine.num_served[replica], engine.num_restarts
    lost = [engine.submit(replace(LONGEST, prompts=[prompt])) for _ in range(2)]
    for stream in lost:
        await stream.accepted()
    os.kill(int(found.stdout), signal.SIGKILL)
    for stream in lost:
        await lose(stream)
    assert await read(engine.submit(replace(SHORT, prompts=[prompt])))  # waits for the engine that is being started
    assert (engine.num_served[replica], engine.num_restarts) == (num_served + 3, restarts + 1)


def test_an_engine_that_crashes_is_started_again_by_its_replica(engine, run):
    run(lose_an_engine(engine))


async def lose_a_replica(engine: RayEngine) -> None:
    both = await meet(engine, 2)
    dying, living = sorted(both)
    there, here = choose_prompt(dying, both), choose_prompt(living, both)
    alone = await read(engine.submit(replace(LONG, prompts=[here])))
    process = await find_process(dying)
    before, restarts = engine.num_served.copy(), engine.num_restarts
    lost = [engine.submit(replace(LONGEST, prompts=[there])) for _ in range(2)]
    kept = [engine.submit(replace(LONG, prompts=[here])) for _ in range(2)]
    for stream in (*lost, *kept):
        await stream.accepted()
    assert engine.num_served - before == {dying: 2, living: 2}
    deltas = lost[0].deltas()
    await anext(deltas)  # of the other request, no text may have begun
    await deltas.aclose()
    os.kill(process, signal.SIGKILL)
    sent_after = [engine.submit(replace(SHORT, prompts=[there])) for _ in range(2)]  # which seems to have room
    for stream in lost:
        await lose(stream)
    assert engine.status == "ready"
    assert len({await read(stream) for stream in sent_after}) == 1
    for stream in kept:
        text = "".join([delta.text async for delta in stream.deltas()])
        stream.close()
        assert text == alone
    new = await meet(engine, 3) - both
    assert (engine.num_served[dying], engine.num_restarts) == (before[dying] + 2, restarts + 1)
    now = {living, *new}
    for replica in now:
        num_served = engine.num_served[replica]
        assert await read(engine.submit(replace(SHORT, prompts=[choose_prompt(replica, now)])))
        assert engine.num_served[replica] == num_served + 1


def test_a_replica_that_dies_costs_its_own_requests_alone(engine, run):
    run(lose_a_replica(engine))
