"""Closed-form prediction of the bytes sent in a training step, per traffic tag."""

from __future__ import annotations

from mlsys_lab.configs.transformer import TransformerConfig
from mlsys_lab.flops import communication
from mlsys_lab.flops.layout import Layout, shard
from mlsys_lab.flops.parameters import replicated_parameters
from mlsys_lab.parallel.pipeline.transformer import chunk_sizes
from mlsys_lab.parallel.tags import Tag

SCALAR_BYTES = 8
"""Bytes of a scalar that is sent: float64 norms and losses, int64 counts."""


def predict_bytes(
    config: TransformerConfig, layout: Layout, *, batch: int, seq_len: int, element_bytes: int
) -> dict[str, float]:
    """Bytes that all ranks send in a step of `Trainer` on `batch` sequences of `seq_len` tokens each, per traffic tag.

    Weights, activations and gradients all have `element_bytes`. Tags without messages are left out. Assumes equal
    expert loads. Counts too few gradient bytes for biases added after a sum: they are replicated, and are counted as
    sharded.
    """
    n, t, c, p, d = layout.devices, layout.tensor, layout.context, layout.pipeline, layout.data
    m, rows = layout.micro_batches(batch), batch * seq_len / (d * c)
    stage_ranks = n / p
    vocabulary = communication.vocabulary_parallel_bytes(
        config, rows, t, element_bytes=element_bytes, sequence_parallel=layout.sequence_parallel
    )
    blocks = _block_bytes(config, layout, rows, element_bytes)
    sent = {
        Tag.VOCAB_PARALLEL_LOSS: stage_ranks * vocabulary.loss,
        Tag.ACTIVATIONS: stage_ranks * (vocabulary.embedding + vocabulary.head) + n * blocks,
    }
    between = communication.pipeline_bytes(
        config, rows, element_bytes=element_bytes, tensor=t if layout.sequence_parallel else 1
    )
    num_chunks = p * layout.interleave
    # Tokens are scattered before the first block: a first chunk without one sends them all.
    is_whole = layout.sequence_parallel and num_chunks > 1 and chunk_sizes(config.n_layers, num_chunks)[0] == 0
    messages = num_chunks - 1 + (t - 1 if is_whole else 0)
    sent[Tag.STAGE_ACTIVATIONS] = sent[Tag.STAGE_GRADIENTS] = messages * stage_ranks * between
    ring = n * communication.context_parallel_bytes(
        config, rows * c, c, layers=config.n_layers / p, element_bytes=element_bytes, tensor=t
    )
    sent[Tag.RING_KV_GRADIENTS], sent[Tag.RING_KV] = ring, ring * (2 if layout.recomputation == "none" else 3)

    own = shard(config, layout)
    fraction = layout.stage_layers(config) / config.n_layers  # of all layers, in `own`
    dense = element_bytes * (own.dense / fraction + own.embedding + own.head)  # of one rank on every stage
    experts = element_bytes * own.experts / fraction
    sent[Tag.GRADIENTS] = sent[Tag.WEIGHTS] = 0.0
    for size_bytes, replicas in ((dense, layout.replicas), (experts, layout.replicas // layout.expert)):
        options = {"zero_stage": layout.zero_stage, "micro_batches": m}
        total = communication.data_parallel_bytes(size_bytes, size_bytes, replicas, **options)
        gradients = communication.data_parallel_bytes(0, size_bytes, replicas, **options)
        sent[Tag.GRADIENTS] += stage_ranks * gradients
        sent[Tag.WEIGHTS] += stage_ranks * (total - gradients)
    if config.experts is not None:
        recomputed, layers = int(layout.recomputation == "full"), config.n_layers - config.experts.dense_layers
        dispatch = communication.expert_parallel_bytes(
            config, rows, layout.expert, layers=layers, element_bytes=element_bytes
        )
        sent[Tag.EXPERT_TOKENS] = stage_ranks * dispatch * (2 + recomputed)
        numbers = SCALAR_BYTES * config.experts.count
        sent[Tag.EXPERT_COUNTS] = (
            stage_ranks * layers * m * (1 + recomputed) * communication.gather_bytes(numbers, layout.expert)
        )
    partial_gradients = element_bytes * replicated_parameters(config, between_regions=layout.sequence_parallel)
    sent[Tag.REPLICATED_GRADIENTS] = m * stage_ranks * communication.all_reduce_bytes(partial_gradients, t)
    if config.tied and p > 1:
        both = stage_ranks * 2 * communication.all_reduce_bytes(own.embedding * element_bytes, 2)
        sent[Tag.TIED_EMBEDDING] = both / (layout.replicas if layout.zero_stage else 1)
    sent[Tag.GRAD_NORM] = sent[Tag.MEAN_LOSS] = n * communication.all_reduce_bytes(SCALAR_BYTES, n)
    return {tag: size_bytes for tag, size_bytes in sent.items() if size_bytes}


def _block_bytes(config: TransformerConfig, layout: Layout, rows: float, element_bytes: int) -> float:
    """Bytes of activations that a rank sends within its blocks, forward, backward and recomputed.

    Full recomputation does not repeat the MLP's final sum unless a post-norm needs it: torch stops before it.
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
    if layout.recomputation == "full" and not config.post_norms:
        one_gather = communication.gather_bytes(rows * config.d_model * element_bytes, t)
        sent -= layers * (1 if layout.sequence_parallel else 2) * one_gather
    return sent
