"""Bytes that a step of a layout sends, in closed form: by the purposes with which the ledger counts messages."""

from __future__ import annotations

from mlsys_lab.configs.transformer import TransformerConfig
from mlsys_lab.flops import communication
from mlsys_lab.flops.layout import Layout, shard
from mlsys_lab.flops.parameters import parameters
from mlsys_lab.parallel.context.ring import GRADIENTS as KEY_GRADIENTS
from mlsys_lab.parallel.context.ring import KEYS_VALUES
from mlsys_lab.parallel.data.averaging import GRADIENTS
from mlsys_lab.parallel.expert.layer import COUNTS, TOKENS
from mlsys_lab.parallel.pipeline.execution import ACTIVATIONS as BETWEEN_STAGES
from mlsys_lab.parallel.pipeline.execution import GRADIENTS as STAGE_GRADIENTS
from mlsys_lab.parallel.sharded.optimizer import NORM, WEIGHTS
from mlsys_lab.parallel.tensor.loss import LOSS
from mlsys_lab.parallel.tensor.regions import ACTIVATIONS
from mlsys_lab.parallel.tensor.transformer import COPIES
from mlsys_lab.parallel.train.trainer import REPORT, TIED

NUMBER_BYTES = 8
"""A norm or a loss travels as one number in float64."""


def count_bytes(
    config: TransformerConfig, layout: Layout, *, batch: int, tokens: int, element_bytes: int
) -> dict[str, float]:
    """Bytes that all ranks together send in a step of `Trainer` on `batch` sequences of `tokens`, by purpose.

    Weights, activations and gradients are all of `element_bytes`. Purposes of which nothing is sent are left out.
    Tokens are taken to choose all experts equally often. Of a model with biases behind sums the gradients are counted
    short: such biases are on every rank, and are taken as divided.
    """
    n, t, c, p, d = layout.devices, layout.tensor, layout.context, layout.pipeline, layout.data
    m, rows = layout.micro_batches(batch), batch * tokens / (d * c)
    ends = n / p  # ranks of a stage
    vocabulary = communication.vocabulary_parallel_bytes(
        config, rows, t, element_bytes=element_bytes, sequence_parallel=layout.sequence_parallel
    )
    blocks = _block_bytes(config, layout, rows, element_bytes)
    sent = {LOSS: ends * vocabulary.loss, ACTIVATIONS: ends * (vocabulary.embedding + vocabulary.head) + n * blocks}
    between = communication.pipeline_bytes(
        config, rows, element_bytes=element_bytes, tensor=t if layout.sequence_parallel else 1
    )
    sent[BETWEEN_STAGES] = sent[STAGE_GRADIENTS] = (p * layout.interleave - 1) * ends * between
    ring = n * communication.context_parallel_bytes(
        config, rows * c, c, layers=config.n_layers / p, element_bytes=element_bytes, tensor=t
    )
    sent[KEY_GRADIENTS], sent[KEYS_VALUES] = ring, ring * (2 if layout.recomputation == "none" else 3)

    held = shard(config, layout)
    fullest = layout.stage_layers(config) / config.n_layers  # what `held` has of all layers
    shared = element_bytes * (held.dense / fullest + held.embedding + held.head)  # of one rank on every stage
    experts = element_bytes * held.experts / fullest
    sent[GRADIENTS] = sent[WEIGHTS] = 0.0
    for size_bytes, replicas in ((shared, layout.replicas), (experts, layout.replicas // layout.expert)):
        once = {"zero_stage": layout.zero_stage, "micro_batches": m}
        whole = communication.data_parallel_bytes(size_bytes, size_bytes, replicas, **once)
        gradients = communication.data_parallel_bytes(0, size_bytes, replicas, **once)
        sent[GRADIENTS] += ends * gradients
        sent[WEIGHTS] += ends * (whole - gradients)
    if config.experts is not None:
        again, layers = int(layout.recomputation == "full"), config.n_layers - config.experts.dense_layers
        there = communication.expert_parallel_bytes(
            config, rows, layout.expert, layers=layers, element_bytes=element_bytes
        )
        sent[TOKENS] = ends * there * (2 + again)
        numbers = NUMBER_BYTES * config.experts.count
        sent[COUNTS] = ends * layers * m * (1 + again) * communication.gather_bytes(numbers, layout.expert)
    if layout.sequence_parallel:
        sent[COPIES] = m * ends * communication.all_reduce_bytes(parameters(config).norm * element_bytes, t)
    if config.tied and p > 1:
        both = ends * 2 * communication.all_reduce_bytes(held.embedding * element_bytes, 2)
        sent[TIED] = both / (layout.replicas if layout.zero_stage else 1)
    sent[NORM] = sent[REPORT] = n * communication.all_reduce_bytes(NUMBER_BYTES, n)
    return {purpose: size_bytes for purpose, size_bytes in sent.items() if size_bytes}


def _block_bytes(config: TransformerConfig, layout: Layout, rows: float, element_bytes: int) -> float:
    """Bytes of a rank's activations within its blocks, forward, backward and recomputed.

    Of full recomputation the MLP's last sum is spared, which nothing needs again: torch stops before it.
    """
    layers, t = config.n_layers / layout.pipeline, layout.tensor
    sent = communication.tensor_parallel_bytes(
        config,
        rows,
        t,
        layers=layers,
        element_bytes=element_bytes,
        sequence_parallel=layout.sequence_parallel,
        recomputation=layout.recomputation,
    )
    if layout.recomputation == "full":
        once = communication.gather_bytes(rows * config.d_model * element_bytes, t)
        sent -= layers * (1 if layout.sequence_parallel else 2) * once
    return sent
