"""Training of a transformer in any layout: data, tensor, pipeline, context and expert parallelism, and ZeRO, composed.

Dimension letters: D tokens of the data set, B sequences of a batch, T tokens of a sequence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import partial

import torch
from torch import nn

from mlsys_lab.comm import Rank
from mlsys_lab.comm.collectives.all_reduce import all_reduce
from mlsys_lab.configs import TrainConfig
from mlsys_lab.errors import InputError
from mlsys_lab.flops.layout import Layout
from mlsys_lab.models import training
from mlsys_lab.models.training import Tokens
from mlsys_lab.models.transformer import Transformer
from mlsys_lab.parallel.activation_checkpointing import apply_activation_checkpointing
from mlsys_lab.parallel.context import ring_attention, zigzag_positions
from mlsys_lab.parallel.expert import apply_expert_parallel
from mlsys_lab.parallel.mesh import DeviceMesh
from mlsys_lab.parallel.pipeline import Pipeline, interleaved
from mlsys_lab.parallel.pipeline.transformer import TransformerChunk
from mlsys_lab.parallel.tags import Tag
from mlsys_lab.parallel.tensor import apply_tensor_parallel, vocab_parallel_token_losses
from mlsys_lab.parallel.train.sequences import IGNORED, Sequences, digest
from mlsys_lab.parallel.train.strategies import DataParallelChunk, DataParallelStrategy, ParameterShard
from mlsys_lab.parallel.zero import clip_grad_norm

EMBEDDING = "embedding.weight"


class Trainer:
    """A training run on this rank of a layout; its steps equal those of `mlsys_lab.models.training.train`.

    model: the full model, the same on every rank; each rank keeps its shard of it. data: a text's token ids (D,), which
    every epoch cuts at another offset, or sequences, whose loss is the mean over all counted tokens of the batch.
    `steps_done` counts the steps taken. Pipelines run 1F1B, interleaved with several model chunks; context parallelism
    is ring attention in zigzag order; experts are sharded over neighbouring data ranks, and the matrices of each over
    its tensor ranks; ZeRO shards over the replicas (data and context ranks), an expert over those that have it.
    Gradients are clipped by their norm over all ranks. With experts, the loss has no load-balancing term. Raises
    InputError where the layout does not fit the model, the configuration or the number of ranks.
    """

    def __init__(
        self, model: Transformer, data: Tokens | Sequences, config: TrainConfig, layout: Layout, world: Rank
    ) -> None:
        check_layout(model, config, layout)
        self.mesh = mesh = DeviceMesh(layout, world)
        self.model_config, self.window, self.layout, self.config = model.config, model.window, layout, config
        self.data, self.data_digest = data, digest(data)
        self.shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        if isinstance(data, Sequences):  # batches of their indices: a text of one-token sequences
            self.batches = training.Batches(len(data) + 1, config.batch_size, 1, config.seed)
        else:
            self.batches = training.Batches(len(data), config.batch_size, config.seq_len, config.seed)
        self.steps_done = 0
        self._all_positions = zigzag_positions(config.seq_len, layout.context) if layout.context > 1 else None
        self._positions = (
            self._all_positions[mesh.context_group.rank] if self._all_positions else torch.arange(config.seq_len)
        )
        self._embedding_group = mesh.embedding_group() if model.config.tied else None
        self.names: dict[nn.Parameter, str] = {}
        self._expert_parameters: set[nn.Parameter] = set()
        copies = [deepcopy(model) for _ in range(layout.interleave - 1)]
        self.chunks = [self._make_chunk(one, index) for index, one in enumerate([model, *copies])]
        self._grad_norm_masks = [shard.local_slice(self._primary_mask(shard)) for _, shard in self.shards()]
        self._pipeline = Pipeline([chunk.module for chunk in self.chunks], mesh.pipeline_group)
        self._schedule = interleaved(
            mesh.pipeline_group.size, layout.micro_batches(config.batch_size), layout.interleave
        )

    def _make_chunk(self, model: Transformer, index: int) -> DataParallelChunk:
        """Cut a full model down, in place, to this rank's shard of its stage's chunk `index`."""
        mesh, layout = self.mesh, self.layout
        if self._all_positions:
            _use_ring_attention(model, mesh.context_group, self._all_positions)
        if layout.tensor > 1:
            apply_tensor_parallel(model, mesh.tensor_group, sequence_parallel=layout.sequence_parallel)
        names = {parameter: name for name, parameter in model.named_parameters()}
        expert_parameters = apply_expert_parallel(model, mesh.expert_group)
        apply_activation_checkpointing(model.blocks, layout.recomputation)
        stages = mesh.pipeline_group.size
        chunk = TransformerChunk(
            model, index * stages + mesh.pipeline_group.rank, stages * layout.interleave, self._positions
        )
        self.names |= {parameter: names[parameter] for parameter in chunk.parameters()}
        expert_parameters.intersection_update(chunk.parameters())
        self._expert_parameters |= expert_parameters
        has_tied = self._embedding_group is not None and (chunk.is_first or chunk.is_last)
        tied = model.get_parameter(EMBEDDING) if has_tied else None
        return DataParallelChunk(chunk, expert_parameters, mesh, layout.zero_stage, tied)

    def step(self) -> float:
        """Train on the next batch; return its mean loss before the update, in nats per token, on every rank."""
        config, mesh, shards = self.config, self.mesh, [shard.parameter for _, shard in self.shards()]
        inputs, targets = self._next_batch()  # (B, T) each
        micro_batches = self._micro_batches(targets, self.layout.micro_batch)
        loss = self._pipeline.step(
            self._schedule,
            self._micro_batches(inputs, self.layout.micro_batch),
            micro_batches,
            self._loss_fn(int((targets != IGNORED).sum()), len(micro_batches)),
            lambda chunk, is_last: self.chunks[chunk].backward_context(is_last),
        )
        for strategy in self._strategies():
            strategy.finish_gradient_synchronization()
        if self._embedding_group is not None:
            self._sum_tied_gradients(self._embedding_group)
        clip_grad_norm(shards, training.GRADIENT_NORM, mesh.world, self._grad_norm_masks)
        self.steps_done += 1
        for strategy in self._strategies():
            for group in strategy.optimizer.param_groups:
                group["lr"] = training.learning_rate(self.steps_done, config.steps, config.lr)
            strategy.step()
        return self._mean_loss(0.0 if loss is None else loss.item())

    def evaluate(self, sequences: Sequences) -> float:
        """Mean loss of sequences, in nats per counted token, on every rank."""
        stages, layout = self.mesh.pipeline_group.size, self.layout
        schedule, ranks = interleaved(stages, stages, layout.interleave), layout.data * stages
        micro_batch = max(layout.micro_batch, self.config.batch_size // ranks)  # larger: no activations are kept
        loss_fn, padded = self._loss_fn(sequences.num_targets, stages), sequences.padded(ranks * micro_batch)
        own = 0.0
        for first in range(0, len(padded), ranks * micro_batch):
            batch = padded[first : first + ranks * micro_batch]
            inputs, targets = (self._micro_batches(one, micro_batch) for one in batch)
            loss = self._pipeline.evaluate(schedule, inputs, targets, loss_fn)
            own += 0.0 if loss is None else loss.item()
        return self._mean_loss(own)

    def shards(self) -> Iterator[tuple[DataParallelStrategy, ParameterShard]]:
        """Yield each shard that this rank updates, with the strategy that it belongs to."""
        for strategy in self._strategies():
            for shard in strategy.shards:
                yield strategy, shard

    def _strategies(self) -> list[DataParallelStrategy]:
        return [strategy for chunk in self.chunks for strategy in chunk.strategies]

    def sharded_dim(self, parameter: nn.Parameter) -> int | None:
        """Dimension along which tensor parallelism has sharded a parameter, None if it is replicated."""
        lengths = enumerate(zip(parameter.shape, self.shapes[self.names[parameter]], strict=True))
        return next((dim for dim, (own, full) in lengths if own < full), None)

    def is_primary_copy(self, parameter: nn.Parameter) -> bool:
        """Whether this rank is the one that counts and saves a parameter that other ranks have too."""
        coordinates = self.mesh.coordinates
        is_tensor_copy = self.sharded_dim(parameter) is None and coordinates["tensor"] > 0
        is_tied_copy = self.names[parameter] == EMBEDDING and coordinates["pipeline"] > 0
        replicas = self.mesh.expert_replica_group if parameter in self._expert_parameters else self.mesh.replica_group
        is_replica = self.layout.zero_stage == 0 and replicas.rank > 0
        return not (is_tensor_copy or is_tied_copy or is_replica)

    def _primary_mask(self, shard: ParameterShard) -> torch.Tensor:
        """1 for each element of the shard's parameters that this rank counts, 0 for copies."""
        return torch.cat(
            [torch.full((one.numel(),), float(self.is_primary_copy(one))) for one in shard.bucket.parameters]
        )

    def _sum_tied_gradients(self, embedding_group: Rank) -> None:
        """All-reduce the gradients of an embedding that the first and the last stage have."""
        for _, shard in self.shards():
            if any(self.names[one] == EMBEDDING for one in shard.bucket.parameters):
                assert shard.parameter.grad is not None
                shard.parameter.grad.copy_(all_reduce(embedding_group, shard.parameter.grad, Tag.TIED_EMBEDDING))

    def _next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets (B, T) of the next step, for all ranks."""
        rows = next(self.batches)
        if isinstance(self.data, Sequences):
            return self.data[rows]
        windows = training.windows(self.data, rows, self.config.seq_len)  # (B, T + 1)
        return windows[:, :-1], windows[:, 1:]

    def _micro_batches(self, batch: torch.Tensor, size: int) -> list[torch.Tensor]:
        """This rank's sequences and token positions of a batch (B, T) for all ranks, `size` sequences at a time."""
        own = batch.chunk(self.mesh.data_group.size)[self.mesh.data_group.rank]
        return [one[:, self._positions] for one in torch.split(own, size)]

    def _loss_fn(
        self, num_targets: int, num_micro_batches: int
    ) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        """Loss of a micro-batch, whose mean over micro-batches and replicas is that over all counted tokens.

        A mean over each micro-batch would weigh tokens by how few of them the loss counts there.
        """
        weight = num_micro_batches * self.mesh.replica_group.size / num_targets
        return partial(_weighted_loss, weight=weight, group=self.mesh.tensor_group)

    def _mean_loss(self, loss: float) -> float:
        """Mean over replicas of the last stages' losses, on every rank; other stages have 0."""
        own = loss / self.mesh.replica_group.size if self.mesh.tensor_group.rank == 0 else 0.0
        value = torch.tensor([own], dtype=torch.float64, device=self.mesh.world.device)
        return all_reduce(self.mesh.world, value, Tag.MEAN_LOSS).item()


def _weighted_loss(logits: torch.Tensor, targets: torch.Tensor, *, weight: float, group: Rank) -> torch.Tensor:
    """Sum of the counted tokens' losses, times `weight`: logits (B, T, V/p) and targets (B, T) -> scalar."""
    losses = vocab_parallel_token_losses(logits.flatten(0, 1), targets.flatten(), group)
    return losses.where(targets.flatten() != IGNORED, 0.0).sum() * weight


def check_layout(model: Transformer, config: TrainConfig, layout: Layout) -> None:
    """Raise InputError unless the layout supports the model and its degrees divide model, batch and sequence."""
    model_config = model.config
    layout.check(model_config)
    if model_config.vocab_size % layout.tensor:
        got = f"{model_config.vocab_size} tokens among {layout.tensor} tensor-parallel ranks"
        raise InputError("the vocabulary does not divide evenly", got=got)
    if layout.context > 1:
        _check_context_parallel(model)
    layout.micro_batches(config.batch_size)
    zigzag, scattered = 2 if layout.context > 1 else 1, layout.tensor if layout.sequence_parallel else 1
    multiple = layout.context * math.lcm(zigzag, scattered)
    if config.seq_len % multiple or config.seq_len > model_config.context:
        expected = f"a multiple of {multiple}, up to {model_config.context}"
        raise InputError(
            "sequences do not fit the layout or the model", got=f"{config.seq_len} tokens", expected=expected
        )


def _check_context_parallel(model: Transformer) -> None:
    unsupported = {
        "a sliding window": model.window is not None,
        "ALiBi": model.config.position == "alibi",
        "latent attention": model.config.latent is not None,
    }
    if named := [name for name, present in unsupported.items() if present]:
        got = f"{model.config.name} with {', '.join(named)}"
        raise InputError("context parallelism does not support this model", got=got)


def _use_ring_attention(model: Transformer, group: Rank, positions: Sequence[torch.Tensor]) -> None:
    """Make a model attend to the tokens of all context ranks, which have these positions."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        assert bias is None
        return ring_attention(q, k, v, group, positions)

    for block in model.blocks:
        block.attention.attention = attention  # type: ignore[union-attr]
