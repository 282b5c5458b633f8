"""Seconds that a step takes: by the FLOPs and bytes of a model on a machine, or along a line that was fitted."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Protocol

from mlsys_lab.configs.transformer import TransformerConfig
from mlsys_lab.flops import communication, step
from mlsys_lab.flops.bounds import Machine, TimeBound, Traffic, Work, least_time, node_copies
from mlsys_lab.flops.cache import bytes_per_token, copies, elements_per_token
from mlsys_lab.flops.layout import Layout, shard
from mlsys_lab.flops.step import Part

HOST_BYTES_PER_S = 63e9
"""Between a device and its host, one direction: PCIe 5.0 with 16 lanes, before packets' overhead."""


class Clock(Protocol):
    """Interface of what says how many seconds a step of the engine takes."""

    def __call__(self, parts: Sequence[Part], moved: int) -> float:
        """Seconds of a step that gives sequences new tokens after cached ones, and moves `moved` tokens' cache."""
        ...


@dataclass(frozen=True)
class LineClock:
    """Seconds along a line: of a step, of each new token, of each cached place, of each sequence.

    Cached places are counted as the engine's attention lays them out: rows as long as the longest one.
    """

    step_s: float
    token_s: float
    cached_s: float
    sequence_s: float = 0.0

    def __call__(self, parts: Sequence[Part], moved: int) -> float:
        """Seconds of a step."""
        new, places = sum(new for new, _ in parts), self.places(parts)
        return self.step_s + self.token_s * new + self.cached_s * (places + moved) + self.sequence_s * len(parts)

    @staticmethod
    def places(parts: Sequence[Part]) -> int:
        """Cached places that a step reads: its sequences times the longest past."""
        return len(parts) * max((past for _, past in parts), default=0)


class BoundClock:
    """Least seconds of a step of a replica, over the `efficiency` with which the machine is used.

    A replica has `tensor` · `expert` devices: matrices are divided among `tensor` of them, experts among `expert` ranks
    of so many, each of which has sequences of its own. The fullest rank counts, with ⌈S/expert⌉ of the step's S
    sequences and as large a share of its tokens; experts are taken as chosen evenly. Compute, memory and links overlap:
    the longest counts, and `spent_s` says how long each was the longest. Caches that are swapped go over the host's
    link by themselves.
    """

    def __init__(
        self,
        config: TransformerConfig,
        machine: Machine,
        *,
        tensor: int = 1,
        expert: int = 1,
        weight_bytes: float = 2,
        cache_bytes: float = 2,
        efficiency: float = 1.0,
    ) -> None:
        self.config, self.machine, self.tensor, self.expert, self.efficiency = (
            config,
            machine,
            tensor,
            expert,
            efficiency,
        )
        self.weight_bytes, self._held = weight_bytes, shard(config, Layout(data=expert, tensor=tensor, expert=expert))
        self.element_bytes = elements_per_token(config) * cache_bytes * copies(config, tensor)
        self.token_bytes = bytes_per_token(config, cache_bytes) * copies(config, tensor)
        self.spent_s: dict[str, float] = defaultdict(float)
        self._flops: dict[Part, float] = {}

    def __call__(self, parts: Sequence[Part], moved: int) -> float:
        """Seconds of a step."""
        t, tokens = self.tensor, sum(new for new, _ in parts)
        share = math.ceil(len(parts) / self.expert) / len(parts)
        read = sum(step.cached_layers(self.config, past) for _, past in parts) + tokens * self.config.n_layers
        memory = self.weight_bytes * self._weights(tokens) + self.element_bytes * share * read / t
        inside, beyond = zip(*(one.split(self.machine.node) for one in self._traffic(share * tokens)), strict=True)
        flops = share * sum(map(self._part_flops, parts))
        bound = least_time(Work(flops / t, memory, sum(inside), sum(beyond)), self.machine)
        self.spent_s[bound.binds] += bound.time_s / self.efficiency
        swap_s = moved * self.token_bytes / (t * self.expert) / HOST_BYTES_PER_S
        return bound.time_s / self.efficiency + swap_s

    def demand(self, num_prompt_tokens: int, num_output_tokens: int, *, sequences: float, tokens: float) -> TimeBound:
        """Least seconds of the replica that one request takes, of each resource, over the efficiency.

        A request is in as few steps as `tokens` tokens a step allow, and as `sequences` sequences that each get a token
        in every step; the weights that a step reads count once for all of them.
        """
        devices, new = self.tensor * self.expert, num_prompt_tokens + num_output_tokens - 1
        past = num_prompt_tokens + (num_output_tokens - 1) // 2
        flops = self._part_flops((num_prompt_tokens, 0)) + (num_output_tokens - 1) * self._part_flops((1, past))
        read = (num_output_tokens - 1) * step.cached_layers(self.config, past) + new * self.config.n_layers
        steps = max(num_output_tokens / sequences, new / tokens)
        memory = steps * self.weight_bytes * self._weights(sequences) + self.element_bytes * read / devices
        inside, beyond = zip(*(one.split(self.machine.node) for one in self._traffic(new / self.expert)), strict=True)
        bound = least_time(Work(flops / devices, memory, sum(inside), sum(beyond)), self.machine)
        return TimeBound(*(time_s / self.efficiency for time_s in astuple(bound)))

    def _weights(self, tokens: float) -> float:
        """Parameters that one device reads in a step: all of its layers', of experts those in use, and of the head."""
        head = self.config.vocab_size * self.config.d_model / self.tensor
        return self._held.dense + step.experts_used(self.config, tokens) * self._held.experts + head

    def _traffic(self, rows: float) -> list[Traffic]:
        """Bytes that a device sends for the tokens of its rank: sums of divided products, and tokens to experts."""
        config, t, e = self.config, self.tensor, self.expert
        sums = communication.tensor_parallel_bytes(config, rows, t, layers=config.n_layers, training=False)
        routed_layers = config.n_layers - config.experts.dense_layers if config.experts else 0
        routed = communication.expert_parallel_bytes(config, rows / t, e, layers=routed_layers)
        return [Traffic(sums, t, 1), Traffic(routed, e, t, "all-to-all", node_copies(config))]

    def _part_flops(self, part: Part) -> float:
        if part not in self._flops:
            self._flops[part] = step.forward(self.config, *part, head_tokens=1).total
        return self._flops[part]
