"""A server without a model: the engine's scheduler on its blocks, and a clock that gives the duration of each step."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from mlsys_lab.inference.engine.block_manager import BlockManager
from mlsys_lab.inference.engine.scheduler import SchedulerConfig, SchedulerOutput
from mlsys_lab.inference.engine.sequence import Sequence as EngineSequence
from mlsys_lab.inference.simulator.clock import Clock
from mlsys_lab.inference.simulator.load import Arrival
from mlsys_lab.inference.simulator.metrics import Served
from mlsys_lab.inference.swap.scheduler import SwapOutput, SwappedSequence, SwappingScheduler


@dataclass(frozen=True)
class Simulation:
    """Result of a load: its requests in order of arrival, number of steps, means per step, and preemptions.

    `mean_cache` is the fraction of KV cache blocks in use, averaged over the busy time.
    """

    served: tuple[Served, ...]
    steps: int
    busy_s: float
    mean_sequences: float
    mean_tokens: float
    mean_cache: float
    preemptions: int


class Replica:
    """One simulated engine and its load; requests are added between steps, as by the engine.

    A sequence always generates `num_output_tokens` tokens. With `cached`, prompts arrive with the KV cache of all
    tokens but the last, as from a prefill pool.
    """

    def __init__(
        self,
        arrivals: Sequence[Arrival],
        clock: Clock,
        *,
        num_blocks: int,
        block_size: int = 16,
        config: SchedulerConfig | None = None,
        cached: bool = False,
    ) -> None:
        self.clock, self.cached = clock, cached
        self.scheduler = SwappingScheduler(BlockManager(num_blocks, block_size), config or SchedulerConfig())
        self.pending = deque(sorted(arrivals, key=lambda one: one.time_s))
        self.served: dict[EngineSequence, Served] = {}
        self.busy_s, self.last_step_s = 0.0, 0.0
        self.sequences, self.tokens, self.preemptions, self.block_s = 0, 0, 0, 0.0

    @property
    def ready_s(self) -> float | None:
        """Time from which there is a step to run: 0 while there are open requests, None when all have finished."""
        if not self.scheduler.is_idle:
            return 0.0
        return self.pending[0].time_s if self.pending else None

    def step(self, now: float) -> float:
        """Add the requests that have arrived by `now`, run a step, and return the time at which it ends."""
        while self.pending and self.pending[0].time_s <= now:
            self._add(self.pending.popleft())
        output, pool = self.scheduler.schedule(), self.scheduler.block_manager.pool
        parts = [(n, seq.num_computed_tokens) for seq, n in output.num_scheduled_tokens.items()]
        duration_s = self.clock(parts, _num_tokens_swapped(output))
        self.last_step_s, self.busy_s = now + duration_s, self.busy_s + duration_s
        self.sequences += len(parts)
        self.tokens += output.total_num_scheduled_tokens
        self.preemptions += len(output.preempted)
        self.block_s += duration_s * pool.num_used_blocks / pool.num_blocks
        self.scheduler.update_from_output(output, [[0]] * len(output.sampled))
        for seq in output.sampled:
            self.served[seq].tokens_s.append(self.last_step_s)
            if seq.num_output_tokens == seq.max_tokens:
                self.scheduler.finish(seq)
        return self.last_step_s

    def result(self) -> Simulation:
        """Result of the load so far."""
        steps = max(1, self.scheduler.num_steps)
        return Simulation(
            tuple(self.served.values()),
            self.scheduler.num_steps,
            self.busy_s,
            self.sequences / steps,
            self.tokens / steps,
            self.block_s / self.busy_s if self.busy_s else 0.0,
            self.preemptions,
        )

    def _add(self, one: Arrival) -> None:
        seq = self.scheduler.add(one.prompt, one.num_output_tokens)
        if self.cached and len(one.prompt) > 1:
            self.scheduler.swapped[seq] = SwappedSequence([], len(one.prompt) - 1)  # restored when it is admitted
        self.served[seq] = Served(one.time_s)


def simulate(
    arrivals: Sequence[Arrival],
    clock: Clock,
    *,
    num_blocks: int,
    block_size: int = 16,
    config: SchedulerConfig | None = None,
    cached: bool = False,
) -> Simulation:
    """Serve a load on `num_blocks` blocks of `block_size` tokens; with `cached`, prompts come with their KV cache.

    InputError for a request that needs more blocks than there are.
    """
    replica = Replica(arrivals, clock, num_blocks=num_blocks, block_size=block_size, config=config, cached=cached)
    return take_turns([replica])[0]


def take_turns(models: Sequence[Replica]) -> list[Simulation]:
    """Serve several models on the same devices, one step at a time; the model that has waited longest is next."""
    now = 0.0
    while ready := [(one.ready_s, one) for one in models if one.ready_s is not None]:
        now = max(now, min(ready_s for ready_s, _ in ready))
        now = min((one for ready_s, one in ready if ready_s <= now), key=lambda one: one.last_step_s).step(now)
    return [one.result() for one in models]


def _num_tokens_swapped(output: SchedulerOutput) -> int:
    """Number of tokens whose keys and values are copied to host memory or back."""
    assert isinstance(output, SwapOutput)
    swapped_in = sum(one.end - one.first for one in output.swap_in if one.swapped.blocks)
    return swapped_in + sum(swapped.num_tokens for swapped in output.swap_out)
