"""Bytes of activations that a training step keeps for its backward pass (Korthikanti et al., arXiv:2205.05198, §4).

What is kept of a layer, for each token, in elements of `element_bytes`; a mask of dropout is one byte:

| kept                                            | elements          | with tensor parallelism |
|-------------------------------------------------|-------------------|-------------------------|
| input of the norm before attention, and its out | 2·D               | on every device         |
| queries, keys, values                           | N·H + K·H + K·V_H | divided                 |
| softmax of the scores, in plain attention       | N·T               | divided                 |
| its dropout: mask, result                       | N·T bytes, N·T    | divided                 |
| attention's result, input of the output matrix  | N·V_H             | divided                 |
| dropout's mask of attention and of the MLP      | 2·D bytes         | on every device         |
| input of the norm before the MLP, and its out   | 2·D               | on every device         |
| post-norms: attention's and the MLP's results   | 2·D               | on every device         |
| MLP: what goes in and out of its activation     | 2·F               | divided                 |
| gated also:  the other factor, and the product  | 2·F               | divided                 |
| less, fused: what comes out of the activation   | F                 | divided                 |
| each expert's input and result                  | 2·D               | on every device         |

(V_H is a value's width, H but for latent attention.) With dropout, GELU, F = 4D and H·N = D in 16 bits this is the
paper's T·B·D·(34 + 5·N·T/D). What is divided is divided by the tensor-parallel degree; sequence parallelism divides
the rest too. Fused attention (FlashAttention, arXiv:2205.14135) keeps one fp32 number a query and head in place of the
scores. A fused gated activation (Megatron-LM, core/fusions/fused_bias_swiglu.py) keeps its two factors and computes the
activated one again in its backward pass, which multiplies no matrices.
Left out: a norm's own statistics (8 bytes or less a token), and what routing keeps to find its tokens again.

Counted by what autograd saves, `mlsys_lab.models.Transformer` in fp32 on a CPU keeps exactly this and, besides what is
left out: with torch's RMS norm on CPUs, the normed input before its weight (D a token and norm); in plain attention
with fewer key/value heads, keys and values repeated for every query head; in fused attention with rotary positions, a
copy of the result in the order of tokens (N·H); of each expert, its result once more, weighted.
tests/flops/test_counting.py adds them up to the byte.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlsys_lab.configs.transformer import TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.flops.compute import check_recomputation
from mlsys_lab.validation import require_at_least_one, require_positive


@dataclass(frozen=True)
class LayerActivations:
    """Bytes that one layer keeps for its backward pass on one device of a tensor-parallel group, by kind."""

    replicated: float  # along the tensor-parallel group, unless the sequence is divided
    attention: float  # queries, keys, values and attention's result
    scores: float  # softmax and its dropout, or the fused kernel's statistics
    mlp: float

    @property
    def total(self) -> float:
        """Bytes of all kinds of activations together."""
        return self.replicated + self.attention + self.scores + self.mlp


def layer(
    config: TransformerConfig,
    tokens: int,
    batch: int = 1,
    *,
    tensor: int = 1,
    sequence_parallel: bool = False,
    recomputation: str = "none",
    element_bytes: float = 2,
    fused_attention: bool = False,
    fused_activation: bool = False,
    dropout: bool = False,
    key_tokens: int | None = None,
) -> LayerActivations:
    """Bytes of activations that one layer keeps on each device; averaged over dense and expert layers of a mixed model.

    "selective" keeps neither scores nor their dropout; "full" keeps the layer's input alone. `key_tokens` is the length
    of the rows of scores, `tokens` unless context parallelism has left a device with fewer queries than keys.
    Sequence parallelism gives each tensor-parallel rank as many tokens of a sequence: `InputError` where they do not
    divide so.
    """
    check_recomputation(recomputation)
    key_tokens = tokens if key_tokens is None else key_tokens
    require_at_least_one(tokens=tokens, batch=batch, tensor=tensor, key_tokens=key_tokens)
    require_positive(element_bytes=element_bytes)
    if sequence_parallel and tokens % tensor:
        raise InputError(
            "sequence parallelism does not divide evenly", got=f"{tokens} tokens among {tensor} tensor-parallel ranks"
        )
    rows, D, N = batch * tokens, config.d_model, config.n_heads
    shared = tensor if sequence_parallel else 1
    if recomputation == "full":
        return LayerActivations(rows * D * element_bytes / shared, 0.0, 0.0, 0.0)
    inputs = (1 if config.parallel_blocks else 2) * (2 if config.pre_norms else 1)  # of norms, and their results
    post_norms = 2 if config.post_norms else 0
    mask_bytes = 2 * D if dropout else 0
    value_dim = config.latent.v_dim if config.latent else config.head_dim
    kv_copies = max(1.0, tensor / config.n_kv_heads)
    key_value = config.n_kv_heads * (config.head_dim + value_dim) * kv_copies
    score_bytes = 4.0 if fused_attention else key_tokens * element_bytes
    if dropout and not fused_attention:
        score_bytes += key_tokens * (1 + element_bytes)
    return LayerActivations(
        replicated=rows * (((inputs + post_norms) * D + _sent_elements(config)) * element_bytes + mask_bytes) / shared,
        attention=rows * (N * config.head_dim + key_value + N * value_dim) * element_bytes / tensor,
        scores=0.0 if recomputation == "selective" else rows * N * score_bytes / tensor,
        mlp=rows * mlp_elements(config, fused=fused_activation) * element_bytes / tensor,
    )


def mlp_elements(config: TransformerConfig, *, fused: bool = False) -> float:
    """Elements that the MLP keeps for a token, its input aside: 2·F, or 4·F of a gated one, over the experts in use.

    A gated one with a `fused` activation keeps 3·F.
    """
    per_width = (3 if fused else 4) if config.gated else 2
    if (experts := config.experts) is None:
        return per_width * config.d_ff
    routed = (experts.active + experts.shared) * experts.d_ff
    routed_layers = config.n_layers - experts.dense_layers
    return per_width * (experts.dense_layers * config.d_ff + routed_layers * routed) / config.n_layers


def _sent_elements(config: TransformerConfig) -> float:
    """Elements kept for a token that is sent to experts: input and result for each expert that it uses."""
    if (experts := config.experts) is None:
        return 0.0
    return 2 * experts.active * config.d_model * (config.n_layers - experts.dense_layers) / config.n_layers


def head_bytes(
    config: TransformerConfig, tokens: int, batch: int = 1, *, tensor: int = 1, element_bytes: float = 2
) -> float:
    """Bytes kept behind the last layer: input and output of the last norm, and the loss's probabilities in fp32.

    Korthikanti et al., §4.3: 4·T·B·D (1 + V/D) for 16 bits; their division of the first two terms is by sequence
    parallelism and left out here.
    """
    require_at_least_one(tokens=tokens, batch=batch, tensor=tensor)
    require_positive(element_bytes=element_bytes)
    return batch * tokens * (2 * config.d_model * element_bytes + 4.0 * config.vocab_size / tensor)


def stack(kept: LayerActivations, whole: LayerActivations, *, layers: float, in_flight: float = 1) -> float:
    """Most bytes that `layers` layers keep at once, of `in_flight` micro-batches; `kept` is `layer` with recomputation.

    What a layer does not keep (it is in `whole`, without recomputation) is there while its own backward pass runs, for
    one layer at a time: in_flight · layers · kept + (whole - kept). Of a pipeline's stages `Layout.in_flight` says how
    many micro-batches they keep.
    """
    require_positive(layers=layers)
    require_at_least_one(in_flight=in_flight)
    return in_flight * layers * kept.total + (whole.total - kept.total)


def saved_bytes(tokens: float, widths: float, n_layers: int, element_bytes: float = 2) -> float:
    """Bytes of keeping `widths` elements a token in each layer: checkpoints placed by hand.

    >>> saved_bytes(4e6, 3 * 8192, 80) / 1e12  # TB of three checkpoints a layer in a Llama 3 70B, four million tokens
    15.72864
    """
    require_positive(tokens=tokens, widths=widths, n_layers=n_layers, element_bytes=element_bytes)
    return tokens * widths * n_layers * element_bytes
