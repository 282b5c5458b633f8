"""Simulation of a training step in a layout: when each rank computes and communicates, and when the step ends."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from mlsys_lab.comm.simulate import Cluster, Task, Timeline
from mlsys_lab.configs.transformer import TransformerConfig
from mlsys_lab.flops import communication, compute
from mlsys_lab.flops.bounds import Machine, Traffic
from mlsys_lab.flops.layout import Layout, shard
from mlsys_lab.flops.memory import BYTES, Recipe
from mlsys_lab.parallel.mesh import AXES, mesh_coordinates
from mlsys_lab.parallel.pipeline.schedules import Action, interleaved
from mlsys_lab.parallel.pipeline.simulation import in_time_order
from mlsys_lab.parallel.pipeline.transformer import chunk_sizes

LATENCY_S = 5e-6
"""Latency of a message; a collective of n ranks has n - 1 of them, one after the other."""
Axes = tuple[str, ...]
TENSOR: Axes = ("tensor",)
"""Mesh axis along which tensor-parallel ranks differ."""
CONTEXT: Axes = ("context",)
"""Mesh axis along which context-parallel ranks differ."""
REPLICA_AXES: Axes = ("context", "data")
"""Mesh axes along which ranks hold the same parameters."""


@dataclass(frozen=True)
class StepTimes:
    """Seconds per layer and micro-batch; `head_s` and `send_s` per stage and micro-batch."""

    forward_s: float
    head_s: float
    tensor_parallel_s: float  # messages in one direction
    ring_s: float  # context parallelism, forward
    send_s: float  # to the next stage
    reduce_scatter_s: float  # of gradients
    all_gather_s: float  # of weights


def simulate_step(
    config: TransformerConfig, layout: Layout, machine: Machine, recipe: Recipe, *, batch: int, seq_len: int
) -> Timeline:
    """Timeline of a 1F1B step, interleaved or not, on `batch` sequences of `seq_len` tokens, one device for each rank.

    Compute runs at the machine's peak and groups never contend for links, so all idle time is due to the layout. Every
    layer waits for messages of tensor and context parallelism. A layer's gradients are sent after its last backward
    pass, with ZeRO 2 and 3 after each; with ZeRO 3 its weights are prefetched. Left out: the optimizer's own time, and
    experts. Raises InputError where the model or the batch does not divide evenly.
    """
    layout.check(config)
    step, micro_batches = _StepSimulation(config, layout, machine, recipe, seq_len), layout.micro_batches(batch)
    for rank, action in in_time_order(interleaved(layout.pipeline, micro_batches, layout.interleave)):
        step.issue_pass(rank, action, is_last=action.micro_batch == micro_batches - 1)
    return step.cluster.timeline()


def _step_times(config: TransformerConfig, layout: Layout, machine: Machine, recipe: Recipe, seq_len: int) -> StepTimes:
    t, c, d, p = layout.tensor, layout.context, layout.data, layout.pipeline
    element, rows = BYTES[recipe.compute], layout.micro_batch * layout.rank_tokens(seq_len)
    flops, rate = compute.forward(config, seq_len, layout.micro_batch, causal=True), machine.peak_flops_per_s * t * c
    own = shard(config, layout)
    layer = (own.dense + own.experts) * p / config.n_layers
    replicas = layout.replicas

    def seconds(sent_bytes: float, ranks: int, stride: int, *, messages: int = 1, pattern: str = "ring") -> float:
        inside_bytes, between_bytes = Traffic(sent_bytes, ranks, stride, pattern).split(machine.node)
        hops = messages * (ranks - 1 if pattern == "ring" else min(1, ranks - 1))
        link_s = inside_bytes / machine.link_bytes_per_s + between_bytes / machine.network_bytes_per_s
        return link_s + hops * LATENCY_S

    sublayers = 1 if config.parallel_blocks else 2
    gathers = 2 * sublayers * communication.gather_bytes(rows * config.d_model * element, t)
    ring = communication.context_parallel_bytes(config, rows * c, c, layers=1, element_bytes=element, tensor=t)
    sent = communication.pipeline_bytes(config, rows, element_bytes=element, tensor=t)
    gradients = communication.gather_bytes(min(recipe.gradients, 4) * layer, replicas)
    return StepTimes(
        forward_s=flops.layers / config.n_layers / rate,
        head_s=flops.head / rate,
        tensor_parallel_s=seconds(gathers, t, 1, messages=2 * sublayers),
        ring_s=seconds(ring, c, t),
        send_s=seconds(sent, p, t * c * d, pattern="neighbours"),
        reduce_scatter_s=seconds(gradients, replicas, t),
        all_gather_s=seconds(communication.gather_bytes(recipe.weights * layer, replicas), replicas, t),
    )


Dependencies = dict[int, list[Task]]
"""For each rank the tasks that its next one depends on."""


class _StepSimulation:
    """A cluster, and the passes issued to it so far."""

    def __init__(
        self, config: TransformerConfig, layout: Layout, machine: Machine, recipe: Recipe, seq_len: int
    ) -> None:
        self.layout, self.times = layout, _step_times(config, layout, machine, recipe, seq_len)
        self.chunk_layers = chunk_sizes(config.n_layers, layout.pipeline * layout.interleave)
        self.cluster = Cluster(layout.devices)
        self._ranks_per_stage = layout.devices // layout.pipeline
        self._done: dict[tuple[str, int, int], Dependencies] = {}
        self._groups = {axes: _find_groups(layout, axes) for axes in (TENSOR, CONTEXT, REPLICA_AXES)}

    def issue_pass(self, pipeline_rank: int, action: Action, *, is_last: bool) -> None:
        """Issue a micro-batch's pass through a model chunk, layer by layer, on all ranks that have it.

        is_last: whether it is the chunk's last pass of its kind.
        """
        zero, times, stages = self.layout.zero_stage, self.times, self.layout.pipeline
        chunk = action.chunk * stages + pipeline_rank
        is_forward, has_head = action.kind == "forward", chunk == len(self.chunk_layers) - 1
        recomputed = 1 if self.layout.recomputation == "full" and not is_forward else 0
        after = self._receive_inputs(chunk, action)
        if has_head and not is_forward:
            after = self._compute(2 * times.head_s, "head", after)
        for _ in range(self.chunk_layers[chunk]):
            if zero == 3:  # prefetched: as early as their stream allows
                gathered = self._communicate(REPLICA_AXES, times.all_gather_s, "weights", {rank: [] for rank in after})
                after = {rank: after[rank] + gathered[rank] for rank in after}
            after = self._compute((1 if is_forward else 2 + recomputed) * times.forward_s, action.kind, after)
            if not is_forward and (is_last or zero >= 2):
                collectives = 1 if zero else 2  # an all-reduce is a reduce-scatter and an all-gather
                self._communicate(REPLICA_AXES, collectives * times.reduce_scatter_s, "gradients", after)
            after = self._communicate(TENSOR, (1 + recomputed) * times.tensor_parallel_s, "activations", after)
            rounds = 1 if is_forward else 2 + recomputed
            after = self._communicate(CONTEXT, rounds * times.ring_s, "keys and values", after)
        if has_head and is_forward:
            after = self._compute(times.head_s, "head", after)
        if is_last and not is_forward and action.chunk == 0 and zero in (1, 2):  # the rank's last pass
            layers = sum(self.chunk_layers[pipeline_rank::stages])
            self._communicate(REPLICA_AXES, layers * times.all_gather_s, "weights", after)
        self._done[action.kind, action.micro_batch, chunk] = after

    def _receive_inputs(self, chunk: int, action: Action) -> Dependencies:
        """Issue the receives of a pass: what the ranks of a chunk wait for, from the previous or the next chunk."""
        neighbour, stages = chunk - 1 if action.kind == "forward" else chunk + 1, self.layout.pipeline
        first = chunk % stages * self._ranks_per_stage
        ranks = range(first, first + self._ranks_per_stage)
        if not 0 <= neighbour < len(self.chunk_layers):
            return self._done.get(("forward", action.micro_batch, chunk), {rank: [] for rank in ranks})
        sent_after = self._done[action.kind, action.micro_batch, neighbour]
        offset = neighbour % stages * self._ranks_per_stage - first
        return {
            rank: [self.cluster.send(rank + offset, rank, self.times.send_s, "send", sent_after[rank + offset])]
            for rank in ranks
        }

    def _compute(self, seconds: float, name: str, after: Dependencies) -> Dependencies:
        return {rank: [self.cluster.compute(rank, seconds, name, tasks)] for rank, tasks in after.items()}

    def _communicate(self, axes: Axes, seconds: float, name: str, after: Dependencies) -> Dependencies:
        """Issue a collective to each group along some axes, for which all of its ranks wait."""
        if not seconds:
            return after
        ended: Dependencies = {}
        for group in self._groups[axes]:
            if group[0] in after:
                task = self.cluster.collective(group, seconds, name, [one for rank in group for one in after[rank]])
                ended |= {rank: [task] for rank in group}
        return ended


def _find_groups(layout: Layout, axes: Axes) -> list[list[int]]:
    """All groups of ranks that differ along these axes only."""
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank in range(layout.devices):
        coordinates = mesh_coordinates(layout, rank)
        groups[tuple(coordinates[axis] for axis in AXES if axis not in axes)].append(rank)
    return list(groups.values())
