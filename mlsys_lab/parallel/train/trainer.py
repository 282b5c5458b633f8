"""Training of a transformer in any layout: data, tensor, pipeline and context parallelism, and ZeRO, composed.

Dimension letters: D tokens of the text, B sequences of a batch, T tokens of a sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from mlsys_lab.comm import Rank
from mlsys_lab.comm.collectives.all_reduce import ring
from mlsys_lab.errors import InputError
from mlsys_lab.flops.config import TransformerConfig
from mlsys_lab.flops.layout import Layout
from mlsys_lab.models import training
from mlsys_lab.models.training import Tokens
from mlsys_lab.models.transformer import Transformer
from mlsys_lab.parallel.context import ring_attention, zigzag_positions
from mlsys_lab.parallel.mesh import Mesh
from mlsys_lab.parallel.pipeline import Pipeline, one_forward_one_backward
from mlsys_lab.parallel.pipeline.stage import Stage, check_stages
from mlsys_lab.parallel.recomputation import recompute
from mlsys_lab.parallel.sharded import clip_gradients
from mlsys_lab.parallel.tensor import divide_transformer, divided_cross_entropy
from mlsys_lab.parallel.train.replica import Share, replicate

TIED, REPORT = "gradients of the tied embedding", "report"
"""Purposes with which the ledger counts gradients of an embedding on both ends of a pipeline, and reported losses."""


@dataclass(frozen=True)
class Plan:
    """What decides about a run besides model, text and layout; the arguments of `mlsys_lab.models.training.train`."""

    batch: int
    sequence: int
    steps: int
    rate: float
    seed: int = 0


class Trainer:
    """A training run on this rank of a layout: steps as `mlsys_lab.models.training.train` takes them in one process.

    model: whole, and the same on every rank; each keeps its part of it. ids (D,): the text. `done` counts the steps
    taken. Pipelines are one-forward-one-backward; context parallelism is ring attention on zigzag positions; ZeRO
    divides among data and context ranks, and a norm of gradients is of all of them. Raises InputError where the layout
    does not fit the model, the plan or the number of ranks.
    """

    def __init__(self, model: Transformer, ids: Tokens, plan: Plan, layout: Layout, world: Rank) -> None:
        check(model.config, plan, layout)
        self.mesh = mesh = Mesh(layout, world)
        self.config, self.layout, self.plan, self._ids = model.config, layout, plan, ids
        self.shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        self.batches, self.done = training.Batches(len(ids), plan.batch, plan.sequence, plan.seed), 0
        self._places = _attend_round_the_ring(model, mesh, plan.sequence)
        divide_transformer(model, mesh.tensor, sequence_parallel=layout.sequence_parallel)
        recompute(model.blocks, layout.recomputation)
        stage = Stage(model, mesh.pipeline.rank, mesh.pipeline.size, self._places)
        self.names = {parameter: name for name, parameter in model.named_parameters()}
        self._ends = mesh.ends() if model.config.tied else None
        tied = model.get_parameter("embedding.weight") if self._ends else None
        self.replica = replicate(stage, mesh.replicas, layout.zero_stage, alone=tied)
        self._tied = [one.shard for one in self.replica.shares if any(own is tied for own in one.flat.parameters)]
        self._counts = [share.cut(self._count(share)) for share in self.replica.shares]
        self._pipeline = Pipeline([self.replica.module], mesh.pipeline)
        self._schedule = one_forward_one_backward(mesh.pipeline.size, layout.micro_batches(plan.batch))

    def step(self) -> float:
        """Train on the next batch; returns its mean loss before the update, in nats a token, on every rank."""
        plan, mesh, replica = self.plan, self.mesh, self.replica
        windows = training.windows(self._ids, next(self.batches), plan.sequence)  # (B, T + 1)
        own = torch.split(windows.chunk(mesh.data.size)[mesh.data.rank], self.layout.micro_batch)
        inputs, targets = [one[:, self._places] for one in own], [one[:, self._places + 1] for one in own]
        loss = self._pipeline.step(self._schedule, inputs, targets, self._loss, replica.around_backward)
        replica.finish()
        for shard in self._tied:
            assert self._ends is not None and shard.grad is not None
            shard.grad.copy_(ring(self._ends, shard.grad, TIED))
        shards = [share.shard for share in replica.shares]
        clip_gradients(shards, training.GRADIENT_NORM, mesh.world, self._counts)
        self.done += 1
        for group in replica.optimizer.param_groups:
            group["lr"] = training.learning_rate(self.done, plan.steps, plan.rate)
        replica.step()
        return self._report(loss)

    def divided_dim(self, parameter: nn.Parameter) -> int | None:
        """Dimension along which tensor parallelism has divided a parameter, None for one that is whole."""
        pairs = enumerate(zip(parameter.shape, self.shapes[self.names[parameter]], strict=True))
        return next((dim for dim, (own, whole) in pairs if own < whole), None)

    def counts_once(self, parameter: nn.Parameter) -> bool:
        """Whether this rank is the one that counts a parameter of which others have copies."""
        name, place = self.names[parameter], self.mesh.place
        is_copy = self.divided_dim(parameter) is None and place["tensor"] > 0
        is_second_end = name == "embedding.weight" and place["pipeline"] > 0
        is_replica = not self.replica.is_divided and self.mesh.replicas.rank > 0
        return not (is_copy or is_second_end or is_replica)

    def _count(self, share: Share) -> torch.Tensor:
        return torch.cat([torch.full((one.numel(),), float(self.counts_once(one))) for one in share.flat.parameters])

    def _loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return divided_cross_entropy(logits.flatten(0, 1), targets.flatten(), self.mesh.tensor)

    def _report(self, loss: torch.Tensor | None) -> float:
        """Mean of the last stages' losses, on every rank."""
        counts = loss is not None and self.mesh.tensor.rank == 0
        own = loss.item() / self.mesh.replicas.size if loss is not None and counts else 0.0
        value = torch.tensor([own], dtype=torch.float64, device=self.mesh.world.device)
        return ring(self.mesh.world, value, REPORT).item()


def check(config: TransformerConfig, plan: Plan, layout: Layout) -> None:
    """Raise InputError where a model or a plan does not divide by a layout."""
    check_stages(config, layout)
    layout.check(config)
    layout.micro_batches(plan.batch)
    parts = layout.context * (2 if layout.context > 1 else 1)
    parts = max(parts, layout.context * (layout.tensor if layout.sequence_parallel else 1))
    if plan.sequence % parts or plan.sequence > config.context:
        expected = f"a multiple of {parts}, up to {config.context}"
        raise InputError(
            "sequences do not fit the layout or the model", got=f"{plan.sequence} tokens", expected=expected
        )
    if layout.zero_stage == 3 and layout.pipeline > 1 and config.tied:
        raise InputError(
            "ZeRO 3 divides a tied embedding otherwise on the first stage than on the last",
            got=f"{layout.pipeline} stages",
            help="ZeRO 2, or a head of its own",
        )


def _attend_round_the_ring(model: Transformer, mesh: Mesh, sequence: int) -> torch.Tensor:
    """Let the model attend to all context ranks' tokens; returns where this rank's stand, (T/c,)."""
    if mesh.context.size == 1:
        return torch.arange(sequence)
    positions = zigzag_positions(sequence, mesh.context.size)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return ring_attention(q, k, v, mesh.context, positions)

    for block in model.blocks:
        block.attention.attention = attend  # type: ignore[union-attr]
    return positions[mesh.context.rank]
