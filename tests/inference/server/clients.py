"""A client that sends a load at its times, and notes when each token came."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from openai import AsyncOpenAI

from mlsys_lab.inference.simulator import Arrival
from mlsys_lab.inference.simulator.metrics import Served
from tests.loops import run


def send(address: str, model: str, load: Sequence[Arrival], *, vocabulary: int = 900) -> list[Served]:
    """Send a load to a server, each request in a stream of its own; what the client saw of each."""
    return run(_send(address, model, load, vocabulary))


async def _send(address: str, model: str, load: Sequence[Arrival], vocabulary: int) -> list[Served]:
    client, started_s = AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0), time.perf_counter()

    async def one(number: int, arrival: Arrival) -> Served:
        await asyncio.sleep(arrival.time_s - (time.perf_counter() - started_s))
        served = Served(time.perf_counter() - started_s)
        stream = await client.completions.create(
            model=model,
            prompt=[1 + token % vocabulary for token in arrival.prompt],
            max_tokens=arrival.num_output_tokens,
            temperature=1,
            seed=number,
            stream=True,
            logprobs=0,
            extra_body={"ignore_eos": True},
        )
        async for chunk in stream:
            served.tokens_s += [time.perf_counter() - started_s] * len(chunk.choices[0].logprobs.tokens)
        return served

    async with client:
        return list(await asyncio.gather(*(one(number, arrival) for number, arrival in enumerate(load))))
