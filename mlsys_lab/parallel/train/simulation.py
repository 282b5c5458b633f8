"""A training step of a layout on simulated ranks: when each computes, when it communicates, and when the step ends."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from mlsys_lab.comm.simulate import Cluster, Task, Timeline
from mlsys_lab.configs.transformer import TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.flops import communication, compute
from mlsys_lab.flops.bounds import Machine, Traffic
from mlsys_lab.flops.layout import Layout, shard
from mlsys_lab.flops.memory import BYTES, Recipe
from mlsys_lab.parallel.mesh import AXES, find_place
from mlsys_lab.parallel.pipeline.schedules import Action, one_forward_one_backward
from mlsys_lab.parallel.pipeline.simulation import in_order

LATENCY_S = 5e-6
"""What a message takes however short it is; a collective of n ranks is n - 1 of them, one after the other."""
Axes = tuple[str, ...]
TENSOR: Axes = ("tensor",)
CONTEXT: Axes = ("context",)
REPLICAS: Axes = ("context", "data")
"""Axes along which ranks talk; on the last ones they hold the same parameters."""


@dataclass(frozen=True)
class Seconds:
    """Times of what a step consists of: of one layer and micro-batch, but for `head` and `send` of a whole stage."""

    forward: float
    head: float
    tensor: float  # messages of tensor parallelism, one way
    ring: float  # of context parallelism, forward
    send: float  # to the next stage
    gradients: float  # reduce-scatter
    weights: float  # all-gather


def simulate_step(
    config: TransformerConfig, layout: Layout, machine: Machine, recipe: Recipe, *, batch: int, tokens: int
) -> Timeline:
    """Timeline of a step on `batch` sequences of `tokens`, one-forward-one-backward, each rank a device of its own.

    Compute is at the machine's peak, and messages of a group meet no others, so that what is idle is the layout's
    doing. Every layer waits for messages of tensor and context parallelism; gradients of a layer travel once its last
    backward pass is done (with ZeRO 2 and 3 each), and with ZeRO 3 weights come ahead of it. Left out: the optimiser's
    own time and experts. Raises InputError where the model or the batch does not divide.
    """
    _check(config, layout)
    step = _Step(layout, config.n_layers // layout.pipeline, _work_out(config, layout, machine, recipe, tokens))
    schedule = one_forward_one_backward(layout.pipeline, layout.micro_batches(batch))
    for stage, action in in_order(schedule):
        step.go_through(stage, action, is_last=action == schedule[stage][-1])
    return step.cluster.timeline()


def _check(config: TransformerConfig, layout: Layout) -> None:
    layout.check(config)
    if config.n_layers % layout.pipeline or layout.interleave > 1:
        raise InputError(
            "stages that are simulated have equally many layers, in one piece",
            got=f"{config.n_layers} layers over {layout.pipeline} stages in {layout.interleave} pieces each",
        )


def _work_out(config: TransformerConfig, layout: Layout, machine: Machine, recipe: Recipe, tokens: int) -> Seconds:
    t, c, d, p = layout.tensor, layout.context, layout.data, layout.pipeline
    element, rows = BYTES[recipe.compute], layout.micro_batch * layout.rank_tokens(tokens)
    once, rate = compute.forward(config, tokens, layout.micro_batch, causal=True), machine.peak_flops_per_s * t * c
    held = shard(config, layout)
    layer = (held.dense + held.experts) * p / config.n_layers
    replicas = layout.replicas

    def seconds(sent_bytes: float, ranks: int, stride: int, *, messages: int = 1, pattern: str = "ring") -> float:
        inside, beyond = Traffic(sent_bytes, ranks, stride, pattern).split(machine.node)
        hops = messages * (ranks - 1 if pattern == "ring" else min(1, ranks - 1))
        return inside / machine.link_bytes_per_s + beyond / machine.network_bytes_per_s + hops * LATENCY_S

    halves = 1 if config.parallel_blocks else 2
    gathers = 2 * halves * communication.gather_bytes(rows * config.d_model * element, t)
    ring = communication.context_parallel_bytes(config, rows * c, c, layers=1, element_bytes=element, tensor=t)
    sent = communication.pipeline_bytes(config, rows, element_bytes=element, tensor=t)
    gradients = communication.gather_bytes(min(recipe.gradients, 4) * layer, replicas)
    return Seconds(
        forward=once.layers / config.n_layers / rate,
        head=once.head / rate,
        tensor=seconds(gathers, t, 1, messages=2 * halves),
        ring=seconds(ring, c, t),
        send=seconds(sent, p, t * c * d, pattern="neighbours"),
        gradients=seconds(gradients, replicas, t),
        weights=seconds(communication.gather_bytes(recipe.weights * layer, replicas), replicas, t),
    )


At = dict[int, list[Task]]
"""For each rank the tasks that its next one waits for."""


class _Step:
    """A cluster, and what has been issued to it."""

    def __init__(self, layout: Layout, layers: int, seconds: Seconds) -> None:
        self.layout, self.layers, self.seconds = layout, layers, seconds
        self.cluster = Cluster(layout.devices)
        self._span = layout.devices // layout.pipeline  # ranks of a stage
        self._done: dict[tuple[str, int, int], At] = {}
        self._groups = {axes: _find_groups(layout, axes) for axes in (TENSOR, CONTEXT, REPLICAS)}

    def go_through(self, stage: int, action: Action, *, is_last: bool) -> None:
        """Issue a stage's pass over a micro-batch: its layers, one by one, on all of its ranks."""
        zero, seconds = self.layout.zero_stage, self.seconds
        is_forward, has_head = action.kind == "forward", stage == self.layout.pipeline - 1
        again = 1 if self.layout.recomputation == "full" and not is_forward else 0
        at = self._begin(stage, action)
        if has_head and not is_forward:
            at = self._compute(2 * seconds.head, "head", at)
        for _ in range(self.layers):
            if zero == 3:  # as early as what is before on their stream allows
                coming = self._communicate(REPLICAS, seconds.weights, "weights", {rank: [] for rank in at})
                at = {rank: at[rank] + coming[rank] for rank in at}
            at = self._compute((1 if is_forward else 2 + again) * seconds.forward, action.kind, at)
            if not is_forward and (is_last or zero >= 2):
                ways = 1 if zero else 2  # an all-reduce is a reduce-scatter and an all-gather
                self._communicate(REPLICAS, ways * seconds.gradients, "gradients", at)
            at = self._communicate(TENSOR, (1 + again) * seconds.tensor, "activations", at)
            rounds = 1 if is_forward else 2 + again
            at = self._communicate(CONTEXT, rounds * seconds.ring, "keys and values", at)
        if has_head and is_forward:
            at = self._compute(seconds.head, "head", at)
        if is_last and zero in (1, 2):
            self._communicate(REPLICAS, self.layers * seconds.weights, "weights", at)
        self._done[action.kind, action.micro_batch, stage] = at

    def _begin(self, stage: int, action: Action) -> At:
        """What the ranks of a stage wait for: messages of the stage before, or backward of the one behind."""
        before = stage - 1 if action.kind == "forward" else stage + 1
        ranks = range(stage * self._span, (stage + 1) * self._span)
        if not 0 <= before < self.layout.pipeline:
            return self._done.get(("forward", action.micro_batch, stage), {rank: [] for rank in ranks})
        given, away = self._done[action.kind, action.micro_batch, before], (before - stage) * self._span
        return {
            rank: [self.cluster.send(rank + away, rank, self.seconds.send, "send", given[rank + away])]
            for rank in ranks
        }

    def _compute(self, seconds: float, name: str, at: At) -> At:
        return {rank: [self.cluster.compute(rank, seconds, name, after)] for rank, after in at.items()}

    def _communicate(self, axes: Axes, seconds: float, name: str, at: At) -> At:
        """Issue a collective to each group along some axes; all of a group wait for it."""
        if not seconds:
            return at
        together: At = {}
        for group in self._groups[axes]:
            if group[0] in at:
                task = self.cluster.collective(group, seconds, name, [one for rank in group for one in at[rank]])
                together |= {rank: [task] for rank in group}
        return together


def _find_groups(layout: Layout, axes: Axes) -> list[list[int]]:
    """All groups of ranks that differ on these axes alone."""
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank in range(layout.devices):
        place = find_place(layout, rank)
        groups[tuple(place[axis] for axis in AXES if axis not in axes)].append(rank)
    return list(groups.values())
