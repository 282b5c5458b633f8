"""Duration of a step: a bound from FLOPs and bytes of a model on a machine, or a line fitted to measurements."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Protocol

from mlsys_lab.configs.transformer import TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.flops import communication, step
from mlsys_lab.flops.bounds import Machine, TimeBound, Traffic, Work, least_time, node_copies
from mlsys_lab.flops.cache import bytes_per_token, copies, elements_per_token
from mlsys_lab.flops.layout import Layout, shard
from mlsys_lab.flops.step import Part

HOST_BYTES_PER_S = 63e9
"""Bandwidth between a device and its host in one direction: PCIe 5.0 with 16 lanes, without packet overhead."""


class Clock(Protocol):
    """Interface of a model of the engine's step time."""

    def __call__(self, parts: Sequence[Part], moved: int) -> float:
        """Seconds of a step over (new, cached) tokens of each sequence, which swaps the KV cache of `moved` tokens."""
        ...


@dataclass(frozen=True)
class LineClock:
    """Linear step time: seconds per step, per new token, per cached token and per sequence."""

    step_s: float
    token_s: float
    cached_s: float
    sequence_s: float = 0.0

    def __call__(self, parts: Sequence[Part], moved: int) -> float:
        """Seconds of a step."""
        _, new, cached, sequences = self.features(parts)
        return self.step_s + self.token_s * new + self.cached_s * (cached + moved) + self.sequence_s * sequences

    def demand_s(self, num_prompt_tokens: int, num_output_tokens: int, *, sequences: float, tokens: float) -> float:
        """Time of the engine that one request takes at least, in steps of `tokens` tokens and `sequences` sequences."""
        new, decoded = num_prompt_tokens + num_output_tokens - 1, num_output_tokens - 1
        cached = decoded * (num_prompt_tokens + (decoded - 1) / 2)
        steps = max(num_output_tokens / sequences, new / tokens)
        own_s = self.token_s * new + self.cached_s * cached + self.sequence_s * num_output_tokens
        return steps * self.step_s + own_s

    @staticmethod
    def features(parts: Sequence[Part]) -> tuple[int, int, int, int]:
        """What the coefficients multiply: 1 step, and its new tokens, cached tokens and sequences."""
        return 1, sum(new for new, _ in parts), sum(past for _, past in parts), len(parts)


def save_clock(clock: LineClock, path: Path) -> None:
    """Write a clock as JSON."""
    path.write_text(json.dumps(asdict(clock), indent=1) + "\n", encoding="utf-8")


def load_clock(path: Path) -> LineClock:
    """Read a clock that `save_clock` wrote; InputError for any other file."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        return LineClock(**{name: float(value) for name, value in fields.items()})
    except OSError as problem:
        raise InputError(f"{path} cannot be read", got=problem.strerror or str(problem)) from None
    except (ValueError, TypeError, AttributeError):
        raise InputError(
            f"{path} is no clock", expected="JSON with four numbers", help="mlsys-lab calibrate TRACE --out FILE"
        ) from None


class BoundClock:
    """Lower bound of a replica's step time, divided by the fraction of peak that the machine reaches (`efficiency`).

    A replica has `expert` data-parallel ranks of `tensor` devices each: matrices are sharded over `tensor` devices,
    experts over the ranks, and every rank has sequences of its own. The bound is that of the rank with the most
    sequences, ⌈S/expert⌉ of the step's S, and the same fraction of its tokens; expert loads are assumed equal. Compute,
    memory and links overlap: the longest counts, and `spent_s` sums the time for which each was the longest. Swapping
    does not overlap.
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
        fraction = math.ceil(len(parts) / self.expert) / len(parts)  # of the sequences, on the fullest rank
        read = sum(step.cached_layers(self.config, past) for _, past in parts) + tokens * self.config.n_layers
        memory = self.weight_bytes * self._weights(tokens) + self.element_bytes * fraction * read / t
        within, between = zip(*(one.split(self.machine.node) for one in self._traffic(fraction * tokens)), strict=True)
        flops = fraction * sum(map(self._part_flops, parts))
        bound = least_time(Work(flops / t, memory, sum(within), sum(between)), self.machine)
        self.spent_s[bound.binds] += bound.time_s / self.efficiency
        swap_s = moved * self.token_bytes / (t * self.expert) / HOST_BYTES_PER_S
        return bound.time_s / self.efficiency + swap_s

    def demand(self, num_prompt_tokens: int, num_output_tokens: int, *, sequences: float, tokens: float) -> TimeBound:
        """Time of each of the replica's resources that one request takes at least, divided by the efficiency.

        Steps have `tokens` tokens and `sequences` sequences, which share the weights that a step reads.
        """
        devices, new = self.tensor * self.expert, num_prompt_tokens + num_output_tokens - 1
        past = num_prompt_tokens + (num_output_tokens - 1) // 2
        flops = self._part_flops((num_prompt_tokens, 0)) + (num_output_tokens - 1) * self._part_flops((1, past))
        read = (num_output_tokens - 1) * step.cached_layers(self.config, past) + new * self.config.n_layers
        steps = max(num_output_tokens / sequences, new / tokens)
        memory = steps * self.weight_bytes * self._weights(sequences) + self.element_bytes * read / devices
        within, between = zip(*(one.split(self.machine.node) for one in self._traffic(new / self.expert)), strict=True)
        bound = least_time(Work(flops / devices, memory, sum(within), sum(between)), self.machine)
        return TimeBound(*(time_s / self.efficiency for time_s in astuple(bound)))

    def _weights(self, tokens: float) -> float:
        """Parameters that one device reads in a step: its layers' (of experts, only those in use) and the LM head's."""
        head = self.config.vocab_size * self.config.d_model / self.tensor
        return self._held.dense + step.experts_used(self.config, tokens) * self._held.experts + head

    def _traffic(self, rows: float) -> list[Traffic]:
        """Bytes that a device sends for the tokens of its rank: tensor-parallel all-reduces and expert dispatch."""
        config, t, e = self.config, self.tensor, self.expert
        sums = communication.tensor_parallel_bytes(config, rows, t, layers=config.n_layers, training=False)
        routed_layers = config.n_layers - config.experts.dense_layers if config.experts else 0
        routed = communication.expert_parallel_bytes(config, rows / t, e, layers=routed_layers)
        return [Traffic(sums, t, 1), Traffic(routed, e, t, "all-to-all", node_copies(config))]

    def _part_flops(self, part: Part) -> float:
        if part not in self._flops:
            self._flops[part] = step.forward(self.config, *part, head_tokens=1).total
        return self._flops[part]
