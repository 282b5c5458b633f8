"""Serving with weights or KV cache in host memory: bytes that a step fetches over the host link, and its speed.

As in FlexGen (Sheng et al., arXiv:2303.06865): for throughput where latency does not matter. A step fetches each
layer's part while the layer before it is worked out, so that the longest of compute, memory and link counts; weights
are fetched once for all sequences of a step, so that larger batches make up for a slow link, until the caches do not
fit or take longest themselves. Left out: latency, copies within the host, attention worked out by the host's CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlsys_lab.configs.transformer import TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.flops import cache
from mlsys_lab.flops.bounds import Machine
from mlsys_lab.flops.parameters import parameters
from mlsys_lab.flops.step import Part, step_cost
from mlsys_lab.validation import require_at_least_one, require_positive

WORKING_LAYERS = 2
"""Layers whose offloaded weights a device has room for: the one at work, and the next, which is on its way."""


@dataclass(frozen=True)
class Offload:
    """Fractions of weights and KV cache that are in host memory, and the host link's bytes/s in each direction."""

    weights: float
    cache: float
    host_bytes_per_s: float

    def __post_init__(self) -> None:
        require_positive(host_bytes_per_s=self.host_bytes_per_s)
        for name in ("weights", "cache"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"offloaded {name} out of range", got=getattr(self, name), expected="a share, 0 to 1")


@dataclass(frozen=True)
class OffloadedStep:
    """Seconds that each part of a step on one device takes by itself; all overlap."""

    compute_s: float
    memory_s: float
    host_s: float

    @property
    def time_s(self) -> float:
        """Seconds of the step: those of its longest part."""
        return max(self.compute_s, self.memory_s, self.host_s)

    @property
    def binds(self) -> str:
        """The part that takes longest: "compute", "memory" or "host"."""
        return max(vars(self).items(), key=lambda part: part[1])[0].removesuffix("_s")


def offloaded_step(
    config: TransformerConfig,
    machine: Machine,
    offload: Offload,
    parts: Sequence[Part],
    *,
    weight_bytes: float = 2,
    cache_bytes: float = 2,
) -> OffloadedStep:
    """Least seconds of a step on one device, in which each sequence of `parts` gets new tokens after cached ones.

    Weights and cached keys and values come over the link, new ones go back the other way at the same time.
    """
    cost = step_cost(config, parts, weight_bytes=weight_bytes, cache_bytes=cache_bytes)
    fetched = offload.weights * cost.weight_bytes + offload.cache * cost.cache_read_bytes
    returned = offload.cache * cost.cache_written_bytes
    return OffloadedStep(
        compute_s=cost.flops / machine.peak_flops_per_s,
        memory_s=cost.memory_bytes / machine.memory_bytes_per_s,
        host_s=max(fetched, returned) / offload.host_bytes_per_s,
    )


def offloaded_tokens_per_s(
    config: TransformerConfig, machine: Machine, offload: Offload, *, batch: int, prompt: int, answer: int
) -> float:
    """Upper bound on the tokens per second that one device generates for `batch` prompts at once, in 16 bits."""
    require_at_least_one(batch=batch, prompt=prompt, answer=answer)
    steps = [(prompt, 0)] + [(1, past) for past in range(prompt, prompt + answer - 1)]
    time_s = sum(offloaded_step(config, machine, offload, [part] * batch).time_s for part in steps)
    return batch * answer / time_s


def largest_batch(
    config: TransformerConfig, machine: Machine, offload: Offload, *, host_bytes: float, tokens: int
) -> int:
    """Sequences of `tokens` tokens for whose caches, in 16 bits, both device and host have room; 0 where none have.

    The device also has room for `WORKING_LAYERS` layers of what is offloaded, weights and caches.
    """
    require_at_least_one(tokens=tokens)
    weights, one = 2 * parameters(config).total, cache.kv_cache_bytes(config, tokens)
    working = WORKING_LAYERS / config.n_layers
    on_device = machine.memory_bytes - weights * (1 - offload.weights + offload.weights * working)
    on_host = host_bytes - weights * offload.weights
    device_share = 1 - offload.cache + offload.cache * working
    if min(on_device, on_host) < 0:
        return 0
    fits = [on_device / (one * device_share), *([on_host / (one * offload.cache)] if offload.cache else [])]
    return int(min(fits))
