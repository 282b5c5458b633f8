"""What a model needs on given devices: parameters, memory by kind, least times, tokens per second, cost.

`estimate_training` and `estimate_serving` are pure functions; `Estimate.as_dict` has all figures as plain numbers. The
estimator on the course's site repeats this arithmetic in JavaScript, and a test holds the two equal.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from mlsys_lab.configs.transformer import TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.flops import activations, cache, compute, step
from mlsys_lab.flops.bounds import Machine, TimeBound, layer_activations, least_time, serving_work, training_work
from mlsys_lab.flops.defaults import SERVING_EFFICIENCY, TRAINING_EFFICIENCY
from mlsys_lab.flops.layout import Layout, shard
from mlsys_lab.flops.memory import BYTES, Recipe, States, states
from mlsys_lab.flops.parameters import parameters
from mlsys_lab.validation import is_integer, require_integer


@dataclass(frozen=True)
class MemoryUse:
    """Bytes by kind on the device of a layout that holds most."""

    weights: float
    gradients: float = 0.0
    master: float = 0.0
    moments: float = 0.0
    gathered: float = 0.0  # weights that ZeRO 3 has fetched, gradients of a chunk that ZeRO 2 has yet to shard
    activations: float = 0.0
    cache: float = 0.0

    @property
    def total(self) -> float:
        """Bytes of all kinds together."""
        total: float = sum(vars(self).values())
        return total

    @property
    def largest(self) -> str:
        """Name of the kind that takes most bytes."""
        return max(asdict(self).items(), key=lambda kind: kind[1])[0]


@dataclass(frozen=True)
class Estimate:
    """Needs of one model, layout and machine; times are lower bounds, so speeds are upper and costs lower ones.

    `expected_s` and `expected_mfu` are what a real step takes and reaches, at the efficiency of `flops.defaults`.
    """

    mode: str  # "training" or "serving"
    model: str
    devices: int
    parameters: float
    active_parameters: float
    parameters_per_device: float
    flops: dict[str, float]  # of a whole step, prefill or decoding step, on all devices together
    memory: MemoryUse
    capacity_bytes: float
    bounds: dict[str, TimeBound]  # "step", or "prefill" and "decode"
    expected_s: dict[str, float]  # of the same
    tokens_per_s: dict[str, float]  # of all devices together
    cost_per_million_tokens: dict[str, float] | None
    mfu: float | None  # highest that the bound allows; training only
    expected_mfu: float | None

    @property
    def fits(self) -> bool:
        """Whether the fullest device has the memory that is needed."""
        return self.memory.total <= self.capacity_bytes

    def as_dict(self) -> dict[str, Any]:
        """All figures as plain numbers, strings and dictionaries, ready for JSON; units are in the names."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        return plain | {
            "fits": self.fits,
            "memory": asdict(self.memory) | {"total": self.memory.total, "largest": self.memory.largest},
            "bounds": {
                name: asdict(bound) | {"time_s": bound.time_s, "binds": bound.binds, "margin": bound.margin}
                for name, bound in self.bounds.items()
            },
        }


def training_memory(config: TransformerConfig, layout: Layout, recipe: Recipe, *, batch: int, tokens: int) -> MemoryUse:
    """Bytes on the fullest stage: the first has most micro-batches in flight, the second more layers, the last logits.

    Fused attention and gated activation, no dropout. Left out: buffers of the communication library, fragmentation, the
    runtime's own.
    """
    held, p, replicas = shard(config, layout), layout.pipeline, layout.replicas
    micro_batches, full = layout.micro_batches(batch), layout.stage_layers(config)
    kept = layer_activations(config, layout, recipe, tokens=tokens)
    whole = layer_activations(config, layout, recipe, tokens=tokens, recomputation="none")
    head = activations.head_bytes(
        config,
        layout.rank_tokens(tokens),
        layout.micro_batch,
        tensor=layout.tensor,
        element_bytes=BYTES[recipe.compute],
    )
    experts = states(held.experts, recipe, data=replicas // layout.expert, zero_stage=layout.zero_stage)
    # Experts that no other rank holds are whole already.
    divided = (held.dense if replicas > 1 else 0.0) + (held.experts if replicas > layout.expert else 0.0)
    gathered = recipe.weights * divided / full if layout.zero_stage == 3 else 0.0
    if layout.interleave > 1 and layout.zero_stage >= 2:  # a full model chunk, for a round of micro-batches
        whole_bytes = recipe.gradients + (recipe.weights if layout.zero_stage == 3 else 0.0)
        gathered = whole_bytes * divided / layout.interleave

    def stage(number: int) -> MemoryUse:
        first, last = number == 0, number == p - 1
        dense = states(held.at(first=first, last=last), recipe, data=replicas, zero_stage=layout.zero_stage)
        both = States(*(getattr(dense, kind.name) + getattr(experts, kind.name) for kind in fields(States)))
        own = layout.stage_layers(config, first=first and p > 1, last=last)
        layers = activations.stack(kept, whole, layers=own, in_flight=layout.in_flight(number, micro_batches))
        return MemoryUse(**asdict(both), gathered=gathered, activations=layers + (head if last else 0.0))

    return max(map(stage, sorted({0, min(1, p - 1), p - 1})), key=lambda one: one.total)


def estimate_training(
    config: TransformerConfig,
    machine: Machine,
    layout: Layout,
    recipe: Recipe,
    *,
    batch: int,
    tokens: int,
    causal: bool = True,
    price_per_hour: float | None = None,
) -> Estimate:
    """Estimate a training step on `batch` sequences of `tokens` tokens; `price_per_hour` is for one device.

    FLOPs of attention are those that a causal mask lets through: a bound has to hold for a kernel that skips the rest.
    `causal=False` counts all pairs, as most published MFU does.
    """
    _check(config, tokens, price_per_hour)
    work = training_work(config, layout, recipe, batch=batch, tokens=tokens, node=machine.node, causal=causal)
    bound = least_time(work, machine)
    flops = compute.training(config, tokens, batch, recomputation=layout.recomputation, causal=causal)
    peak = machine.peak_flops_per_s * layout.devices
    speeds = {"step": batch * tokens / bound.time_s}
    return Estimate(
        mode="training",
        model=config.name,
        devices=layout.devices,
        parameters=parameters(config).total,
        active_parameters=parameters(config).active,
        parameters_per_device=_max_parameters(config, layout),
        flops={"model": flops.model, "hardware": flops.hardware},
        memory=training_memory(config, layout, recipe, batch=batch, tokens=tokens),
        capacity_bytes=machine.memory_bytes,
        bounds={"step": bound},
        expected_s={"step": bound.in_turn_s / TRAINING_EFFICIENCY},
        tokens_per_s=speeds,
        cost_per_million_tokens=_costs(speeds, layout, price_per_hour),
        mfu=flops.model / (bound.time_s * peak),
        expected_mfu=TRAINING_EFFICIENCY * flops.model / (bound.in_turn_s * peak),
    )


def serving_memory(
    config: TransformerConfig, layout: Layout, *, batch: int, tokens: int, weight_bytes: float, cache_bytes: float
) -> MemoryUse:
    """Bytes, by kind, while `batch` sequences of `tokens` tokens are served, over all data-parallel ranks.

    Activations are those of a prefill of `micro_batch` prompts at 16 bits: what goes into a layer, its normed copy,
    what goes into the MLP's activation; and the logits of one token of every sequence in fp32.
    """
    t = layout.tensor
    sequences = _sequences(layout, batch)
    rows = layout.micro_batch * tokens
    activation_bytes = rows * (2 * config.d_model + activations.mlp_elements(config) / 2 / t) * 2
    cached = sequences * cache.kv_cache_bytes(config, tokens, element_bytes=cache_bytes) * cache.copies(config, t)
    return MemoryUse(
        weights=weight_bytes * _max_parameters(config, layout),
        activations=activation_bytes + sequences * config.vocab_size / t * 4,
        cache=cached / t * layout.stage_layers(config) / config.n_layers,
    )


def estimate_serving(
    config: TransformerConfig,
    machine: Machine,
    layout: Layout,
    *,
    batch: int,
    tokens: int,
    weight_bytes: float = 2,
    cache_bytes: float = 2,
    price_per_hour: float | None = None,
) -> Estimate:
    """Estimate serving `batch` sequences of `tokens` tokens at once: prefill of such prompts, decoding at their end.

    Each data-parallel rank serves its part of the batch. "prefill" is the least time to the first token of
    `micro_batch` prompts on a rank, "decode" that of one more token for every sequence; tokens per second are of all
    ranks, with all pipeline stages at work on different sequences as far as there are enough.
    """
    _check(config, tokens, price_per_hour)
    sequences, p = _sequences(layout, batch), layout.pipeline
    together = max(1.0, sequences / p)
    shapes = {"prefill": (layout.micro_batch, tokens, 0), "decode": (together, 1, tokens - 1)}
    bounds, flops = {}, {}
    for phase, (rows, new, past) in shapes.items():
        work = serving_work(
            config,
            layout,
            sequences=rows,
            tokens=new,
            past=past,
            weight_bytes=weight_bytes,
            cache_bytes=cache_bytes,
            node=machine.node,
        )
        bounds[phase] = least_time(work, machine)
        once = step.forward(config, new, past, head_tokens=1).total
        flops[phase] = once * (layout.data * layout.micro_batch if phase == "prefill" else batch)
    speeds = {
        "prefill": layout.data * p * layout.micro_batch * tokens / bounds["prefill"].time_s,
        "decode": batch / bounds["decode"].time_s,
    }
    return Estimate(
        mode="serving",
        model=config.name,
        devices=layout.devices,
        parameters=parameters(config).total,
        active_parameters=parameters(config).active,
        parameters_per_device=_max_parameters(config, layout),
        flops=flops,
        memory=serving_memory(
            config, layout, batch=batch, tokens=tokens, weight_bytes=weight_bytes, cache_bytes=cache_bytes
        ),
        capacity_bytes=machine.memory_bytes,
        bounds=bounds,
        expected_s={phase: bound.time_s / SERVING_EFFICIENCY for phase, bound in bounds.items()},
        tokens_per_s=speeds,
        cost_per_million_tokens=_costs(speeds, layout, price_per_hour),
        mfu=None,
        expected_mfu=None,
    )


def training_run(
    estimate: Estimate, total_tokens: float, *, mfu: float | None = None, price_per_hour: float | None = None
) -> tuple[float, float | None]:
    """Seconds that training on `total_tokens` takes, and what it costs (None without a price, of one device an hour).

    Both are the least that the estimate's bound allows; with an `mfu`, a fraction, what they are where that is reached.
    Raises InputError for no tokens, and for an MFU that the bound does not allow.
    """
    if estimate.mfu is None:
        raise InputError("a training run of an estimate for serving", help="estimate_training")
    if not 0 < total_tokens < float("inf"):
        raise InputError("tokens of a training run out of range", got=total_tokens, expected="more than 0")
    if mfu is not None and not 0 < mfu <= estimate.mfu:
        most = f"more than 0 and at most the bound's {100 * estimate.mfu:.3g} %"
        raise InputError("the MFU cannot be so", got=f"{100 * mfu:.3g} %", expected=most)
    time_s = total_tokens / estimate.tokens_per_s["step"] * (1 if mfu is None else estimate.mfu / mfu)
    return time_s, None if price_per_hour is None else time_s / 3600 * estimate.devices * price_per_hour


def _max_parameters(config: TransformerConfig, layout: Layout) -> float:
    """Parameters on one device of the first or the last pipeline stage, whichever holds more."""
    held, single = shard(config, layout), layout.pipeline == 1
    return max(held.at(first=True, last=single), held.at(first=single, last=True)) + held.experts


def _costs(tokens_per_s: dict[str, float], layout: Layout, price_per_hour: float | None) -> dict[str, float] | None:
    """Cost of a million tokens for each speed in tokens/s, in the currency of the price; None without a price."""
    if price_per_hour is None:
        return None
    per_s = price_per_hour * layout.devices / 3600
    return {name: per_s / speed * 1e6 for name, speed in tokens_per_s.items()}


def _sequences(layout: Layout, batch: int) -> int:
    """Sequences of a batch that one data-parallel rank works on; InputError unless they divide evenly."""
    if not is_integer(batch, at_least=1) or batch % layout.data:
        wanted = f"a multiple of {layout.data} data-parallel ranks"
        raise InputError("the batch does not divide evenly", got=f"{batch} sequences", expected=wanted)
    return batch // layout.data


def check_tokens(config: TransformerConfig, tokens: int) -> None:
    """Raise InputError unless the model takes sequences of `tokens` tokens."""
    require_integer("tokens of a sequence", tokens)
    if config.position == "learned" and tokens > config.context:
        raise InputError(
            f"{config.name} has no positions for that many tokens", got=tokens, expected=f"up to {config.context}"
        )


def _check(config: TransformerConfig, tokens: int, price_per_hour: float | None) -> None:
    check_tokens(config, tokens)
    if price_per_hour is not None and not 0 <= price_per_hour < float("inf"):
        raise InputError("a price cannot be so", got=price_per_hour, expected="0 or more an hour and device")
