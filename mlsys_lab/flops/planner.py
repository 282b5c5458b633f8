"""Rank the layouts of a training step on many devices: each with its memory, its time and what that is spent on.

What ranks is `TimeBound.in_turn_s`: compute, memory, links and network one after the other. By the least time, in which
all four overlap, most layouts of a dense model are equal; published ones are among the best when nothing overlaps
(`mlsys_lab.flops.published_runs`). What `mlsys_lab.flops.bounds` leaves out is left out here too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from mlsys_lab.configs.transformer import TransformerConfig
from mlsys_lab.errors import InputError, did_you_mean
from mlsys_lab.flops import compute
from mlsys_lab.flops.bounds import Machine, TimeBound, least_time, training_work
from mlsys_lab.flops.defaults import TRAINING_EFFICIENCY
from mlsys_lab.flops.estimate import MemoryUse, check_tokens, training_memory
from mlsys_lab.flops.layout import Layout
from mlsys_lab.flops.memory import Recipe
from mlsys_lab.flops.stage import stage_flops
from mlsys_lab.validation import require_integer

LEAST_CONTEXT_TOKENS = 4096
"""Tokens of a sequence that a context-parallel rank has at least: fewer are better divided as sequences."""
MOST_MICRO_BATCH = 4
INTERLEAVES = (1, 2, 4, 8)

Given = Mapping[str, int | bool | str]
"""Fields of `Layout` that are not to be chosen, with their values."""


@dataclass(frozen=True)
class Plan:
    """A layout with what it takes of the fullest device: bytes, and seconds by what they are spent on."""

    layout: Layout
    memory: MemoryUse
    capacity_bytes: float
    bound: TimeBound
    recomputation_s: float  # of the bound's compute_s
    bubble_s: float  # of the bound's compute_s
    mfu: float

    @property
    def time_s(self) -> float:
        """Seconds of a step in which nothing overlaps; `bound.time_s` are those in which everything does."""
        return self.bound.in_turn_s

    @property
    def expected_s(self) -> float:
        """Seconds that a real step takes, at the efficiency of published runs (`flops.defaults`)."""
        return self.time_s / TRAINING_EFFICIENCY

    @property
    def expected_mfu(self) -> float:
        """MFU of a step that takes `expected_s`; `mfu` is that of one that takes `time_s`."""
        return self.mfu * TRAINING_EFFICIENCY

    @property
    def best_mfu(self) -> float:
        """Highest MFU that the bound allows, everything overlapped."""
        return self.mfu * self.time_s / self.bound.time_s

    @property
    def missing_bytes(self) -> float:
        """Bytes by which the memory of a device is too small; 0 where the layout fits."""
        return max(0.0, self.memory.total - self.capacity_bytes)

    @property
    def parts(self) -> dict[str, float]:
        """Seconds by what they are spent on, `time_s` together."""
        return {
            "model": self.bound.compute_s - self.recomputation_s - self.bubble_s,
            "recomputation": self.recomputation_s,
            "bubble": self.bubble_s,
            "memory": self.bound.memory_s,
            "link": self.bound.link_s,
            "network": self.bound.network_s,
        }

    def loss(self, best: Plan) -> tuple[str, float]:
        """The part in which this plan takes most longer than `best`, and the seconds of that part alone."""
        extra = {part: time_s - best.parts[part] for part, time_s in self.parts.items()}
        return max(extra.items(), key=lambda one: one[1])

    def as_dict(self) -> dict[str, Any]:
        """All figures as plain numbers, strings and dictionaries, ready for JSON; units are in the names."""
        return {
            "layout": asdict(self.layout),
            "time_s": self.time_s,
            "least_s": self.bound.time_s,
            "expected_s": self.expected_s,
            "parts_s": self.parts,
            "mfu": self.mfu,
            "best_mfu": self.best_mfu,
            "expected_mfu": self.expected_mfu,
            "memory": asdict(self.memory) | {"total": self.memory.total, "largest": self.memory.largest},
            "missing_bytes": self.missing_bytes,
        }


def plan(
    config: TransformerConfig,
    machine: Machine,
    recipe: Recipe,
    *,
    devices: int,
    batch: int,
    tokens: int,
    causal: bool = True,
    given: Given | None = None,
) -> list[Plan]:
    """Rank the layouts of a training step on `batch` sequences of `tokens` tokens: the fastest first, misfits last.

    There is one plan for each way to divide the devices into data-, tensor-, pipeline-, context- and expert-parallel
    ranks, with the settings that make it fastest: micro-batch, interleaving, ZeRO stage, recomputation, sequence
    parallelism. Where no settings fit it has those that need least memory. `given` fixes fields of the layout.
    Tensor-parallel ranks stay within a node, and context-parallel ones have `LEAST_CONTEXT_TOKENS` tokens at least,
    unless they are given. Raises InputError where nothing divides so.
    """
    given = given or {}
    names = [field.name for field in fields(Layout)]
    for name in given:
        if name not in names:
            raise InputError("a layout has no such field", got=repr(name), help=did_you_mean(name, names))
    Layout(**{"data": given.get("expert", 1), "pipeline": given.get("interleave", 1), **given})  # type: ignore[arg-type]
    for name, count in (("devices", devices), ("batch", batch)):
        require_integer(name, count)
    check_tokens(config, tokens)

    def evaluate(layout: Layout, memory: MemoryUse) -> Plan:
        """Price a layout and its memory: the least time of a step, the parts of it, and MFU."""
        work = training_work(config, layout, recipe, batch=batch, tokens=tokens, node=machine.node, causal=causal)
        flops = stage_flops(config, layout, batch=batch, tokens=tokens, causal=causal)
        bound, peak = least_time(work, machine), machine.peak_flops_per_s
        model = compute.training(config, tokens, batch, causal=causal).model
        return Plan(
            layout=layout,
            memory=memory,
            capacity_bytes=machine.memory_bytes,
            bound=bound,
            recomputation_s=flops.recomputed / peak,
            bubble_s=flops.bubble / peak,
            mfu=model / (bound.in_turn_s * peak * devices),
        )

    def settle(grid: Layout) -> Plan | None:
        """The fastest settings that fit; else those that need the least memory; None where no setting is possible."""
        fastest: Plan | None = None
        least: tuple[Layout, MemoryUse] | None = None
        for stages in _settings(grid, config, batch=batch, tokens=tokens, given=given):
            for layout in stages:
                memory = training_memory(config, layout, recipe, batch=batch, tokens=tokens)
                if least is None or memory.total < least[1].total:
                    least = layout, memory
                if memory.total <= machine.memory_bytes:
                    one = evaluate(layout, memory)
                    fastest = one if fastest is None or one.time_s < fastest.time_s else fastest
                    break  # a higher stage sends no less
        return fastest or (evaluate(*least) if least else None)

    grids = _grids(config, machine.node, devices=devices, batch=batch, tokens=tokens, given=given)
    plans = [one for one in map(settle, grids) if one]
    if not plans:
        so = ", ".join(f"{name} {str(value).lower()}" for name, value in given.items())
        got = f"{devices} devices, {batch} sequences of {tokens} tokens" + (f", {so}" if so else "")
        raise InputError(f"no layout divides {config.name} so", got=got, help="try a batch or devices in powers of two")
    return sorted(plans, key=lambda one: (one.missing_bytes, one.time_s))


def _grids(
    config: TransformerConfig, node: int, *, devices: int, batch: int, tokens: int, given: Given
) -> Iterator[Layout]:
    """Every layout of the devices that model and batch allow, with all other settings at their defaults."""

    def ways(name: str, amount: int, most: int) -> list[int]:
        """Degrees of one kind: the given one, or all up to `most`, of those that divide `amount`."""
        degrees = [int(given[name])] if name in given else range(1, min(amount, most) + 1)
        return [k for k in degrees if amount % k == 0]

    for t in ways("tensor", devices, node):
        for p in ways("pipeline", devices // t, config.n_layers):
            for c in ways("context", devices // (t * p), max(1, tokens // LEAST_CONTEXT_TOKENS)):
                data = devices // (t * p * c)
                if given.get("data", data) != data or batch % data or tokens % c:
                    continue
                for e in ways("expert", data, config.experts.count if config.experts else 1):
                    grid = Layout(data=data, tensor=t, pipeline=p, context=c, expert=e)
                    try:
                        grid.check(config)
                    except InputError:
                        continue
                    yield grid


def _settings(
    grid: Layout, config: TransformerConfig, *, batch: int, tokens: int, given: Given
) -> Iterator[list[Layout]]:
    """Settings of a grid, as lists of layouts that differ in the ZeRO stage only, the lowest first.

    Stage 0 sends as much as stage 1 and keeps more. With fused attention "selective" recomputation has nothing to save.
    """

    def options(name: str, *values: int | bool | str) -> tuple[Any, ...]:
        return (given[name],) if name in given else values

    sequences, p = batch // grid.data, grid.pipeline
    own = tokens // grid.context
    for micro_batch in options("micro_batch", *range(1, MOST_MICRO_BATCH + 1)):
        if sequences % micro_batch:
            continue
        for interleave in options("interleave", *INTERLEAVES):
            whole = p > 1 and sequences // micro_batch % p == 0 and p * interleave <= config.n_layers + 2
            if interleave > 1 and not whole:
                continue
            for recomputation in options("recomputation", "none", "full"):
                for sequence_parallel in options(
                    "sequence_parallel", *((False, True) if grid.tensor > 1 else (False,))
                ):
                    if sequence_parallel and own % grid.tensor:
                        continue
                    one = grid.replace(
                        micro_batch=micro_batch,
                        interleave=interleave,
                        recomputation=recomputation,
                        sequence_parallel=sequence_parallel,
                    )
                    stages = options("zero_stage", *((1, 2, 3) if grid.replicas > 1 else (0,)))
                    yield [one.replace(zero_stage=stage) for stage in stages]
