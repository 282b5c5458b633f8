"""Training of a transformer in any layout: data, tensor, pipeline, context and expert parallelism, and ZeRO, composed.

Dimension letters: D tokens of the text, B sequences of a batch, T tokens of a sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import nn

from mlsys_lab.comm import Rank
from mlsys_lab.comm.collectives.all_reduce import ring
from mlsys_lab.configs.transformer import TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.flops.layout import Layout
from mlsys_lab.models import training
from mlsys_lab.models.training import Tokens
from mlsys_lab.models.transformer import Transformer
from mlsys_lab.parallel.context import ring_attention, zigzag_positions
from mlsys_lab.parallel.expert import divide_experts
from mlsys_lab.parallel.mesh import Mesh
from mlsys_lab.parallel.pipeline import Pipeline, interleaved
from mlsys_lab.parallel.pipeline.stage import Stage
from mlsys_lab.parallel.recomputation import recompute
from mlsys_lab.parallel.sharded import clip_gradients
from mlsys_lab.parallel.tensor import divide_transformer, divided_cross_entropy
from mlsys_lab.parallel.train.piece import Piece
from mlsys_lab.parallel.train.replica import Replica, Share

TIED, REPORT = "gradients of the tied embedding", "report"
"""Purposes with which the ledger counts gradients of an embedding on both ends of a pipeline, and reported losses."""
EMBEDDING = "embedding.weight"


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
    taken. Pipelines are one-forward-one-backward, interleaved where stages have several pieces; context parallelism is
    ring attention on zigzag positions; neighbouring data ranks divide experts, and data and context ranks, by ZeRO,
    what they have alike. A norm of gradients is of all ranks. Raises InputError where the layout does not fit the
    model, the plan or the number of ranks.
    """

    def __init__(self, model: Transformer, ids: Tokens, plan: Plan, layout: Layout, world: Rank) -> None:
        check(model.config, plan, layout)
        self.mesh = mesh = Mesh(layout, world)
        self.config, self.layout, self.plan, self._ids = model.config, layout, plan, ids
        self.shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        self.batches, self.done = training.Batches(len(ids), plan.batch, plan.sequence, plan.seed), 0
        self._positions = zigzag_positions(plan.sequence, layout.context) if layout.context > 1 else None
        self._places = self._positions[mesh.context.rank] if self._positions else torch.arange(plan.sequence)
        self._ends = mesh.ends() if model.config.tied else None
        self.names: dict[nn.Parameter, str] = {}
        self._experts: set[nn.Parameter] = set()
        copies = [deepcopy(model) for _ in range(layout.interleave - 1)]
        self.pieces = [self._take_piece(one, number) for number, one in enumerate([model, *copies])]
        self._counts = [share.cut(self._count(share)) for _, share in self.shares()]
        self._pipeline = Pipeline([piece.module for piece in self.pieces], mesh.pipeline)
        self._schedule = interleaved(mesh.pipeline.size, layout.micro_batches(plan.batch), layout.interleave)

    def _take_piece(self, model: Transformer, number: int) -> Piece:
        """Cut a whole model down, in place, to what this rank has of its stage's piece `number`."""
        mesh, layout = self.mesh, self.layout
        if self._positions:
            _attend_round_the_ring(model, mesh.context, self._positions)
        if model.config.experts is None:
            divide_transformer(model, mesh.tensor, sequence_parallel=layout.sequence_parallel)
        names = {parameter: name for name, parameter in model.named_parameters()}
        experts = divide_experts(model, mesh.expert)
        recompute(model.blocks, layout.recomputation)
        size = mesh.pipeline.size
        stage = Stage(model, number * size + mesh.pipeline.rank, size * layout.interleave, self._places)
        self.names |= {parameter: names[parameter] for parameter in stage.parameters()}
        experts.intersection_update(stage.parameters())
        self._experts |= experts
        is_end = self._ends is not None and (stage.is_first or stage.is_last)
        tied = model.get_parameter(EMBEDDING) if is_end else None
        return Piece(stage, experts, mesh, layout.zero_stage, tied)

    def step(self) -> float:
        """Train on the next batch; returns its mean loss before the update, in nats a token, on every rank."""
        plan, mesh, shards = self.plan, self.mesh, [share.shard for _, share in self.shares()]
        windows = training.windows(self._ids, next(self.batches), plan.sequence)  # (B, T + 1)
        own = torch.split(windows.chunk(mesh.data.size)[mesh.data.rank], self.layout.micro_batch)
        inputs, targets = [one[:, self._places] for one in own], [one[:, self._places + 1] for one in own]
        loss = self._pipeline.step(
            self._schedule,
            inputs,
            targets,
            self._loss,
            lambda piece, is_last: self.pieces[piece].around_backward(is_last),
        )
        for replica in self._replicas():
            replica.finish()
        if self._ends is not None:
            self._add_up_tied(self._ends)
        clip_gradients(shards, training.GRADIENT_NORM, mesh.world, self._counts)
        self.done += 1
        for replica in self._replicas():
            for group in replica.optimizer.param_groups:
                group["lr"] = training.learning_rate(self.done, plan.steps, plan.rate)
            replica.step()
        return self._report(loss)

    def shares(self) -> Iterator[tuple[Replica, Share]]:
        """Yield each share that this rank updates, with the replica that it belongs to."""
        for replica in self._replicas():
            for share in replica.shares:
                yield replica, share

    def _replicas(self) -> list[Replica]:
        return [replica for piece in self.pieces for replica in piece.replicas]

    def divided_dim(self, parameter: nn.Parameter) -> int | None:
        """Dimension along which tensor parallelism has divided a parameter, None for one that is whole."""
        pairs = enumerate(zip(parameter.shape, self.shapes[self.names[parameter]], strict=True))
        return next((dim for dim, (own, whole) in pairs if own < whole), None)

    def counts_once(self, parameter: nn.Parameter) -> bool:
        """Whether this rank is the one that counts a parameter of which others have copies."""
        place = self.mesh.place
        is_copy = self.divided_dim(parameter) is None and place["tensor"] > 0
        is_second_end = self.names[parameter] == EMBEDDING and place["pipeline"] > 0
        replicas = self.mesh.expert_replicas if parameter in self._experts else self.mesh.replicas
        is_replica = self.layout.zero_stage == 0 and replicas.rank > 0
        return not (is_copy or is_second_end or is_replica)

    def _count(self, share: Share) -> torch.Tensor:
        return torch.cat([torch.full((one.numel(),), float(self.counts_once(one))) for one in share.flat.parameters])

    def _add_up_tied(self, ends: Rank) -> None:
        """Sum the gradients of an embedding that the first and the last stage have."""
        for _, share in self.shares():
            if any(self.names[one] == EMBEDDING for one in share.flat.parameters):
                assert share.shard.grad is not None
                share.shard.grad.copy_(ring(ends, share.shard.grad, TIED))

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
    layout.check(config)
    if config.experts is not None and (layout.tensor > 1 or layout.zero_stage == 3 or layout.sequence_parallel):
        raise InputError(
            "experts are divided over data ranks alone",
            got=f"{layout.tensor} tensor-parallel ranks, ZeRO {layout.zero_stage}",
            expected="1 of them, ZeRO 0 to 2",
        )
    layout.micro_batches(plan.batch)
    parts = layout.context * (2 if layout.context > 1 else 1)
    parts = max(parts, layout.context * (layout.tensor if layout.sequence_parallel else 1))
    if plan.sequence % parts or plan.sequence > config.context:
        expected = f"a multiple of {parts}, up to {config.context}"
        raise InputError(
            "sequences do not fit the layout or the model", got=f"{plan.sequence} tokens", expected=expected
        )


def _attend_round_the_ring(model: Transformer, group: Rank, positions: Sequence[torch.Tensor]) -> None:
    """Let a model attend to all context ranks' tokens, which stand at `positions`."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return ring_attention(q, k, v, group, positions)

    for block in model.blocks:
        block.attention.attention = attend  # type: ignore[union-attr]
