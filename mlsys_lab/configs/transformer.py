"""Sizes of a decoder transformer: those that determine its parameters, FLOPs and bytes, and no others.

Dimension letters, here and everywhere above: B batch, T tokens of a sequence, L layers, D d_model, F d_ff,
N query heads, K key/value heads, H head_dim, V vocabulary, E experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from mlsys_lab.errors import InputError
from mlsys_lab.validation import require_integer, require_one_of, require_positive_number

POSITIONS = ("learned", "rotary", "alibi")
NORMS = ("rms", "layer")
ACTIVATIONS = ("swiglu", "geglu", "gelu", "gelu_tanh", "relu")
GATED = ("swiglu", "geglu")
SCALINGS = ("linear", "llama3")
FLAGS = (
    "qkv_bias",
    "out_bias",
    "mlp_bias",
    "norm_bias",
    "norm_weight",
    "qk_norm",
    "qk_norm_all_heads",
    "embedding_norm",
    "pre_norms",
    "post_norms",
    "attention_sinks",
    "router_bias",
    "parallel_blocks",
    "scaled_embedding",
    "head_bias",
    "tied",
)


@dataclass(frozen=True)
class Experts:
    """Mixture of experts in place of the dense MLP; each expert is an MLP of the model's activation.

    `count` experts are routed, of which a token uses `active`, and `shared` more that every token uses; all are `d_ff`
    wide. The first `dense_layers` layers keep the dense MLP, `TransformerConfig.d_ff` wide; where they lie among the
    others, as in Llama 4, no count is another. With `max_groups` the router takes a token's experts from at most that
    many groups of neighbours, which are kept in one node (node-limited routing: DeepSeek-V3, arXiv:2412.19437,
    §2.1.2); 0 leaves it free. Raises InputError for sizes that are no whole numbers in range.
    """

    count: int
    active: int
    d_ff: int
    shared: int = 0
    dense_layers: int = 0
    max_groups: int = 0

    def __post_init__(self) -> None:
        _require_integers(self, "count", "active", "d_ff", at_least=1)
        _require_integers(self, "shared", "dense_layers", "max_groups", at_least=0)
        if self.active > self.count:
            raise InputError("a token uses more experts than there are", got=self.active, expected=f"1 to {self.count}")


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention: keys and values of all heads come from one small vector (arXiv:2405.04434, §2.1).

    A token keeps a latent vector of `kv_rank` and one rotary key of `rope_dim` that all heads share. A head's query and
    key are `nope_dim` wide without positions and `rope_dim` with, its value `v_dim`. Queries go through a latent vector
    of `q_rank` too, or straight from the model's width where it is None. Raises InputError for sizes that are no
    whole numbers, and an odd `rope_dim`.
    """

    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    q_rank: int | None = None

    def __post_init__(self) -> None:
        _require_integers(self, "kv_rank", "nope_dim", "rope_dim", "v_dim", at_least=1)
        if self.q_rank is not None:
            _require_integers(self, "q_rank", at_least=1)
        _require_even("LatentAttention.rope_dim", self.rope_dim)


@dataclass(frozen=True)
class RotaryScaling:
    """Rotary scaling: angles that grow more slowly with position, for sequences longer than those trained on.

    "linear" divides every angle by `factor` (Chen et al. 2023, arXiv:2306.15595, §2.3). "llama3" divides only those of
    pairs that turn less than `low_freq_factor` times within the `original_context`, keeps those that turn more than
    `high_freq_factor` times, and blends in between; "linear" has no use for these three. They begin as Llama 3.1 has
    them. Raises InputError for an unknown kind, numbers out of range, and factors that do not leave room between them.
    """

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192

    def __post_init__(self) -> None:
        require_one_of("rotary scaling", self.kind, SCALINGS)
        _require_positive_numbers(self, "factor", "low_freq_factor", "high_freq_factor")
        _require_integers(self, "original_context", at_least=1)
        if self.factor < 1:
            raise InputError("RotaryScaling.factor out of range", got=self.factor, expected="a number, at least 1")
        if self.low_freq_factor >= self.high_freq_factor:
            raise InputError(
                "RotaryScaling.low_freq_factor must be below high_freq_factor",
                got=f"{self.low_freq_factor} and {self.high_freq_factor}",
            )


class Window(NamedTuple):
    """Sliding-window attention: a token attends to `tokens` tokens, itself included, in `layers` of the layers."""

    tokens: int
    layers: int


@dataclass(frozen=True)
class TransformerConfig:
    """A decoder transformer. Raises InputError for sizes that do not fit together.

    `n_kv_heads` 0 means as many as query heads, and 1 is multi-query attention; `head_dim` 0 means D / N, and with
    latent attention `nope_dim + rope_dim`. A "swiglu" or "geglu" MLP has three matrices, the others two. Biases are
    those of queries, keys and values; of attention's output; of the MLP; of norms ("layer" only); of the head (Phi).
    `norm_weight` False: norms only normalise (OLMo). `qk_norm` is an RMS norm over each head's query and key before the
    positions (Qwen 3), with `qk_norm_all_heads` over all heads' queries and over all keys (OLMo 2). `embedding_norm` is
    one over embedded tokens (BLOOM). `pre_norms` are those of the inputs of attention and MLP, `post_norms` those of
    their outputs, before the residual addition (Gemma 2 has both, OLMo 2 the latter alone). `attention_sinks` are one
    number a head that its softmax counts as one more score, `router_bias` one an expert (gpt-oss). `parallel_blocks`
    feed attention and MLP from one norm and add both (PaLM). `scaled_embedding` multiplies embedded tokens by √D
    (Gemma). `tied`: the head is the embedding.
    `rope_scaling` None leaves rotary angles as `rope_theta` makes them; `partial_rotary_factor` is the fraction of each
    head's dimensions, the first ones, that they rotate (Phi). Left out, since it changes no count: dropout.
    """

    name: str
    n_layers: int
    d_model: int
    n_heads: int
    d_ff: int
    vocab_size: int
    context: int
    n_kv_heads: int = 0
    head_dim: int = 0
    position: Literal["learned", "rotary", "alibi"] = "rotary"
    norm: Literal["rms", "layer"] = "rms"
    activation: Literal["swiglu", "geglu", "gelu", "gelu_tanh", "relu"] = "swiglu"
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    norm_bias: bool = False
    norm_weight: bool = True
    qk_norm: bool = False
    qk_norm_all_heads: bool = False
    embedding_norm: bool = False
    pre_norms: bool = True
    post_norms: bool = False
    attention_sinks: bool = False
    router_bias: bool = False
    parallel_blocks: bool = False
    scaled_embedding: bool = False
    head_bias: bool = False
    tied: bool = False
    rope_theta: float = 10_000.0
    partial_rotary_factor: float = 1.0
    norm_eps: float = 1e-5
    experts: Experts | None = None
    latent: LatentAttention | None = None
    rope_scaling: RotaryScaling | None = None

    @property
    def gated(self) -> bool:
        """Whether the MLP multiplies two inner vectors, one of them activated: three matrices in place of two."""
        return self.activation in GATED

    @property
    def block_norms(self) -> int:
        """Norms of one block over vectors of the model's width."""
        before = 1 if self.parallel_blocks else 2
        return (before if self.pre_norms else 0) + (2 if self.post_norms else 0)

    @property
    def rotary_dim(self) -> int:
        """Dimensions of a head that rotary positions rotate."""
        return self.latent.rope_dim if self.latent else int(self.head_dim * self.partial_rotary_factor)

    def __post_init__(self) -> None:
        _require_integers(self, "n_layers", "d_model", "n_heads", "d_ff", "vocab_size", "context", at_least=1)
        _require_integers(self, "n_kv_heads", "head_dim", at_least=0)
        require_one_of("position", self.position, POSITIONS)
        require_one_of("norm", self.norm, NORMS)
        require_one_of("activation", self.activation, ACTIVATIONS)
        for name in FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise InputError(
                    f"TransformerConfig.{name} must be a boolean",
                    got=repr(getattr(self, name)),
                    expected="True or False",
                )
        _require_positive_numbers(self, "rope_theta", "norm_eps", "partial_rotary_factor")
        self._check_heads()
        if self.norm == "rms" and self.norm_bias:
            raise InputError("an RMS norm has no bias", got="norm_bias", help="norm='layer' can have one")
        needs = {"norm_bias": "norm_weight", "qk_norm_all_heads": "qk_norm"}
        for name, needed in needs.items():
            if getattr(self, name) and not getattr(self, needed):
                raise InputError(f"TransformerConfig.{name} needs {needed}", got=f"{needed}=False")
        if self.tied and self.head_bias:
            raise InputError("a tied head has no bias", got="head_bias", help="tied=False can have one")
        if self.experts is not None and self.experts.dense_layers >= self.n_layers:
            raise InputError(
                "no layer is left for the experts",
                got=f"{self.experts.dense_layers} dense of {self.n_layers} layers",
                expected="fewer, or experts=None",
            )

    def _check_heads(self) -> None:
        if self.n_kv_heads == 0:
            object.__setattr__(self, "n_kv_heads", self.n_heads)
        if self.n_heads % self.n_kv_heads:
            raise InputError(
                "query heads must divide among key/value heads",
                got=f"{self.n_heads} query and {self.n_kv_heads} key/value heads",
            )
        if self.latent is not None:
            self._check_latent(self.latent)
        elif self.head_dim == 0:
            if self.d_model % self.n_heads:
                raise InputError("d_model must divide among heads", got=f"{self.d_model} wide, {self.n_heads} heads")
            object.__setattr__(self, "head_dim", self.d_model // self.n_heads)
        if not 0 < self.rotary_dim <= self.head_dim:
            got, expected = self.partial_rotary_factor, "a fraction of head_dim, at most 1"
            raise InputError("TransformerConfig.partial_rotary_factor out of range", got=got, expected=expected)
        if self.position == "rotary" and self.latent is None:
            part = "" if self.partial_rotary_factor == 1 else f"{self.partial_rotary_factor} of "
            _require_even(f"{part}head_dim with rotary positions", self.rotary_dim)

    def _check_latent(self, latent: LatentAttention) -> None:
        width = latent.nope_dim + latent.rope_dim
        if self.head_dim not in (0, width):
            raise InputError("head_dim is not that of latent attention", got=self.head_dim, expected=width)
        object.__setattr__(self, "head_dim", width)
        if self.n_kv_heads != self.n_heads:
            raise InputError(
                "latent attention has a key and a value for every query head",
                got=f"{self.n_kv_heads} key/value heads",
                expected=self.n_heads,
            )
        if self.position != "rotary" or self.qkv_bias or self.qk_norm:
            raise InputError(
                "latent attention has rotary positions, no biases of queries, keys and values, and norms of its own",
                got=f"position={self.position!r}, qkv_bias={self.qkv_bias}, qk_norm={self.qk_norm}",
            )


OTHER_LAYERS = (
    *("mamba", "rwkv", "jamba", "bamba", "zamba", "recurrentgemma", "nemotronh", "retnet", "xlstm"),
    *("falconh1", "granitemoehybrid", "lfm2", "lfm3", "kimilinear", "minimaxtext", "qwen3next", "qwen35"),
    *("olmohybrid", "bailinghybrid"),
)
"""Parts of names, without their punctuation, of models that have layers with a state of fixed size in place of
attention, or among layers with it: state-space layers, linear attention, short convolutions."""


def require_attention(name: str) -> None:
    """Raise InputError for a name or `model_type` of models in which some layers have no keys and values."""
    letters = "".join(filter(str.isalnum, name.lower()))
    if any(family in letters for family in OTHER_LAYERS):
        raise InputError(
            "layers without keys and values are not counted here",
            got=repr(name),
            expected="a decoder with attention in every layer",
            help="state-space, linear-attention and convolution layers keep a state of fixed size: no formula holds",
        )


def _require_integers(record: Any, *names: str, at_least: int) -> None:
    for name in names:
        require_integer(f"{type(record).__name__}.{name}", getattr(record, name), at_least=at_least)


def _require_positive_numbers(record: Any, *names: str) -> None:
    for name in names:
        require_positive_number(f"{type(record).__name__}.{name}", getattr(record, name))


def _require_even(what: str, value: int) -> None:
    if value % 2:
        raise InputError(f"{what} must be even: rotary positions rotate pairs", got=value)
