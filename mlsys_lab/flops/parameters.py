"""Numbers of parameters of a transformer, by what they are for.

Dimension letters: L layers, D d_model, F d_ff, N query heads, K key/value heads, H head_dim, V vocabulary, E experts.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlsys_lab.configs.transformer import LatentAttention, TransformerConfig


@dataclass(frozen=True)
class Parameters:
    """Parameters of a whole model by kind, biases with their matrices; `idle` are those of `mlp` that a token skips.

    `attention` holds the projections of queries, keys, values and output, `mlp` the dense ones and all experts,
    `router` what chooses among experts, `norm` every norm, `head` the output embedding (0 where it is tied).
    """

    embedding: int
    position: int
    attention: int
    mlp: int
    router: int
    norm: int
    head: int
    idle: int = 0

    @property
    def total(self) -> int:
        """Number of all parameters that are stored."""
        return self.embedding + self.position + self.attention + self.mlp + self.router + self.norm + self.head

    @property
    def active(self) -> int:
        """Parameters of all kinds but the experts that a token leaves idle; the embedding and the head count whole.

        This is the convention of most publishers. DeepSeek-V3's and gpt-oss's leave out the embedding:
        `presets.PUBLISHED_ACTIVE` has what each prints, and by which convention.
        """
        return self.total - self.idle

    @property
    def non_embedding(self) -> int:
        """Parameters without embedding, learned positions and head: N of scaling laws (Kaplan et al. 2020, §2.1)."""
        return self.total - self.embedding - self.position - self.head


def parameters(config: TransformerConfig) -> Parameters:
    """Parameters of a model, by kind: exactly those that `mlsys_lab.models.Transformer` has.

    Not counted: what a published checkpoint holds besides the decoder, such as buffers (GPT-2's masks), a bias that
    balances experts and gets no gradient (DeepSeek-V3), a head for multi-token prediction (likewise).

    >>> parameters(TransformerConfig("tiny", 2, d_model=8, n_heads=2, d_ff=16, vocab_size=10, context=4)).total
    1480
    """
    c = config
    norms = c.n_layers * c.block_norms + 1 + c.embedding_norm  # per block, last, first
    norm = norms * c.d_model * (c.norm_weight + c.norm_bias) + c.n_layers * _inner_norm_parameters(c)
    mlp, router, idle = c.n_layers * mlp_parameters(c, c.d_ff), 0, 0
    if c.experts is not None:
        expert, layers = mlp_parameters(c, c.experts.d_ff), c.n_layers - c.experts.dense_layers
        mlp = c.experts.dense_layers * mlp_parameters(c, c.d_ff)
        mlp += layers * (c.experts.count + c.experts.shared) * expert
        idle = layers * (c.experts.count - c.experts.active) * expert
        router = layers * c.experts.count * (c.d_model + c.router_bias)
    return Parameters(
        embedding=c.vocab_size * c.d_model,
        position=c.context * c.d_model if c.position == "learned" else 0,
        attention=c.n_layers * attention_parameters(c),
        mlp=mlp,
        router=router,
        norm=norm,
        head=0 if c.tied else c.vocab_size * (c.d_model + c.head_bias),
        idle=idle,
    )


def attention_parameters(config: TransformerConfig) -> int:
    """Parameters of one layer's attention, with biases and sinks, without norms: D·(2N + 2K)·H for grouped heads."""
    c = config
    if c.latent is not None:
        sinks = c.n_heads if c.attention_sinks else 0
        return _latent_parameters(c, c.latent) + (c.d_model if c.out_bias else 0) + sinks
    inputs, outputs = (c.n_heads + 2 * c.n_kv_heads) * c.head_dim, c.n_heads * c.head_dim
    biases = (inputs if c.qkv_bias else 0) + (c.d_model if c.out_bias else 0)
    return c.d_model * (inputs + outputs) + biases + (c.n_heads if c.attention_sinks else 0)


def mlp_parameters(config: TransformerConfig, d_ff: int) -> int:
    """Parameters of one MLP of hidden width `d_ff`: 3·D·F for a gated one, else 2·D·F; and its biases."""
    inputs = 2 if config.gated else 1
    biases = inputs * d_ff + config.d_model if config.mlp_bias else 0
    return (inputs + 1) * config.d_model * d_ff + biases


def replicated_parameters(config: TransformerConfig, *, between_regions: bool = True) -> int:
    """Parameters that every tensor-parallel rank holds in full; biases of output matrices are left out.

    Those within a tensor-parallel region are routers, norms of queries and keys, and norms of latent vectors. Between
    the regions are the other norms, and the matrices that lead to latent vectors.
    """
    c, counts = config, parameters(config)
    inside = counts.router + c.n_layers * _inner_norm_parameters(c)
    if not between_regions:
        return inside
    down = c.d_model * ((c.latent.q_rank or 0) + c.latent.kv_rank + c.latent.rope_dim) if c.latent else 0
    return counts.router + counts.norm + c.n_layers * down


def _latent_parameters(c: TransformerConfig, latent: LatentAttention) -> int:
    """Parameters of latent attention's matrices (arXiv:2405.04434, appendix C): queries, keys and values, output."""
    query = c.n_heads * (latent.nope_dim + latent.rope_dim)
    queries = c.d_model * query if latent.q_rank is None else latent.q_rank * (c.d_model + query)
    down = c.d_model * (latent.kv_rank + latent.rope_dim)
    up = latent.kv_rank * c.n_heads * (latent.nope_dim + latent.v_dim)
    return queries + down + up + c.n_heads * latent.v_dim * c.d_model


def _inner_norm_parameters(c: TransformerConfig) -> int:
    """Parameters of the norms within one layer's attention: of queries and keys, or of the latent vectors."""
    if c.latent is not None:
        return (c.latent.q_rank or 0) + c.latent.kv_rank
    heads = c.n_heads + c.n_kv_heads if c.qk_norm_all_heads else 2
    return heads * c.head_dim if c.qk_norm else 0
