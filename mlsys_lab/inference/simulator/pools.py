"""Pools of equal replicas that share a load: one pool for everything, or one for prefill and one for decode.

Prefill/decode disaggregation as in DistServe (arXiv:2401.09670) and Splitwise (arXiv:2311.18677): one pool computes the
prompt and samples the first token; the KV cache is then transferred to the other pool, which generates the other
tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlsys_lab.inference.engine.scheduler import SchedulerConfig
from mlsys_lab.inference.simulator.clock import Clock
from mlsys_lab.inference.simulator.load import Arrival
from mlsys_lab.inference.simulator.metrics import Served
from mlsys_lab.inference.simulator.simulate import simulate
from mlsys_lab.validation import require_at_least_one, require_positive


@dataclass(frozen=True)
class Pool:
    """`count` equal replicas, each with `num_blocks` blocks of `block_size` tokens; requests go to them in turn."""

    clock: Clock
    num_blocks: int
    scheduler_config: SchedulerConfig
    count: int = 1
    block_size: int = 16

    def __post_init__(self) -> None:
        require_at_least_one(count=self.count)

    def serve(self, arrivals: Sequence[Arrival], *, cached: bool = False) -> list[Served]:
        """Serve a load; returns its requests in the same order. With `cached`, prompts come with their KV cache."""
        order = sorted(range(len(arrivals)), key=lambda number: arrivals[number].time_s)
        served: dict[int, Served] = {}
        for numbers in (order[first :: self.count] for first in range(self.count)):
            part = [arrivals[number] for number in numbers]
            result = simulate(
                part,
                self.clock,
                num_blocks=self.num_blocks,
                block_size=self.block_size,
                config=self.scheduler_config,
                cached=cached,
            )
            served |= zip(numbers, result.served, strict=True)
        return [served[number] for number in range(len(arrivals))]


@dataclass(frozen=True)
class KVTransferLink:
    """Link on which a replica sends its KV cache: bytes per token, and bytes per second (`inf` for no wait)."""

    token_bytes: float
    bytes_per_s: float

    def __post_init__(self) -> None:
        require_positive(token_bytes=self.token_bytes, bytes_per_s=self.bytes_per_s)


@dataclass(frozen=True)
class Disaggregated:
    """Requests in the order of arrival, served by two pools, and the KV cache bytes sent between them."""

    served: tuple[Served, ...]
    sent_bytes: float


def disaggregate(arrivals: Sequence[Arrival], prefill: Pool, decode: Pool, link: KVTransferLink) -> Disaggregated:
    """Serve a load by a pool that computes prompts and one that generates all tokens but the first.

    Each replica of `prefill` sends the KV cache of its prompts one after the other over its own `link`, once a prompt
    is complete; a request for one token sends nothing. The blocks of a prompt are free as soon as it is complete: a
    KV cache that waits to be sent is assumed to have memory of its own. A sequence that `decode` preempts is
    recomputed there.
    """
    requests = sorted(arrivals, key=lambda one: one.time_s)
    served = prefill.serve([one._replace(num_output_tokens=1) for one in requests])
    multi_token = [number for number, one in enumerate(requests) if one.num_output_tokens > 1]
    free_s = [0.0] * prefill.count
    sent: list[Arrival] = []
    numbers: list[int] = []
    for number in sorted(multi_token, key=lambda number: served[number].tokens_s[0]):
        one, sender = requests[number], number % prefill.count
        start_s = max(served[number].tokens_s[0], free_s[sender])
        free_s[sender] = start_s + len(one.prompt) * link.token_bytes / link.bytes_per_s
        sent.append(Arrival(free_s[sender], (*one.prompt, 0), one.num_output_tokens - 1))
        numbers.append(number)
    for number, decoded in zip(numbers, decode.serve(sent, cached=True), strict=True):
        served[number].tokens_s += decoded.tokens_s
    return Disaggregated(tuple(served), link.token_bytes * sum(len(one.prompt) - 1 for one in sent))
