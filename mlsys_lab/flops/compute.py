"""FLOPs of a decoder transformer: forward, backward and recomputed, matrix multiplication by matrix multiplication.

Only matrix multiplications are counted, each exactly; norms, activations, softmax, rotation and the embedding's look-up
are not: about a thousandth of a layer's FLOPs at D in the thousands, and of attention's a hundredth (some 5 FLOPs of
softmax a score next to 4·H), on other units. A multiply-add is two FLOPs. Attention is counted over all pairs of
positions, as a multiplication without a mask does them and as PaLM's and Megatron's formulas count; `causal=True`
counts the pairs that a causal mask lets through, which is what a kernel that skips masked blocks comes close to.

torch's FLOP counter finds the same on `mlsys_lab.models.Transformer`, forward, backward and recomputed, to the FLOP,
with two exceptions of its own: it does not know the fused attention of CPUs, and `torch.utils.checkpoint` stops
recomputing once all that was saved is there again, which spares the last multiplication (a layer's down projection, or
the weighted sum of values).

Letters: B batch, T tokens of a sequence, L layers, D d_model, F d_ff, N query heads, K key/value heads, H head_dim,
V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from mlsys_lab.configs.transformer import TransformerConfig, Window
from mlsys_lab.errors import InputError, did_you_mean
from mlsys_lab.flops.parameters import parameters
from mlsys_lab.validation import require_at_least_one, require_non_negative, require_positive

RECOMPUTATIONS = ("none", "selective", "full")
"""Kinds of recomputation in the backward pass: nothing, attention's scores and weighted sums, or whole layers."""


@dataclass(frozen=True)
class Flops:
    """FLOPs of a pass by kind of matrix multiplication, each summed over all layers."""

    query: float
    key_value: float
    scores: float  # query · key
    values: float  # softmax weights · value
    output: float  # of attention
    mlp: float  # experts that are used, and dense layers
    router: float
    head: float

    @property
    def total(self) -> float:
        """FLOPs of all matrix multiplications."""
        total: float = sum(getattr(self, field.name) for field in fields(self))
        return total

    @property
    def attention(self) -> float:
        """FLOPs of scores and weighted sums of values, the two products that grow with the square of the sequence."""
        return self.scores + self.values

    @property
    def layers(self) -> float:
        """FLOPs of all layers, without the head."""
        return self.total - self.head

    @property
    def attention_share(self) -> float:
        """Fraction of all FLOPs in scores and weighted sums of values, in [0, 1)."""
        return self.attention / self.total


def pairs(tokens: int, past: int = 0, *, causal: bool = False, window: int | None = None) -> float:
    """Pairs (query, key) that attention multiplies when `tokens` new tokens follow `past` cached ones.

    With a `window` a token sees itself and the `window` - 1 before it, and no later one, `causal` or not.

    >>> pairs(4), pairs(4, causal=True), pairs(1, past=9), pairs(4, past=9, window=3)
    (16, 10.0, 10, 12.0)
    """
    require_non_negative(tokens=tokens, past=past)
    if window is not None:
        require_at_least_one(window=window)
        growing = max(0, min(tokens, window - past))  # first tokens, which see all before them
        return pairs(growing, past, causal=True) + float((tokens - growing) * window)
    return tokens * past + (tokens * (tokens + 1) / 2 if causal else tokens * tokens)


def forward(
    config: TransformerConfig,
    tokens: int,
    batch: int = 1,
    *,
    causal: bool = False,
    past: int = 0,
    head_tokens: int | None = None,
    window: Window | None = None,
) -> Flops:
    """FLOPs of the forward pass over `batch` sequences of `tokens` new tokens that follow `past` cached ones.

    A linear map from m to n is 2mn a token. `head_tokens`: for how many tokens of each sequence logits are computed,
    all by default; a prefill needs 1. Latent attention is counted as trained, with keys and values of the new tokens
    unpacked; what it costs after cached ones is in `mlsys_lab.flops.step`. The layers of a `window` attend to its
    tokens only. Raises InputError.
    """
    require_at_least_one(tokens=tokens)
    require_positive(batch=batch)
    require_non_negative(past=past)
    if head_tokens is not None and not 0 <= head_tokens <= tokens:
        raise InputError("logits for tokens that there are not", got=head_tokens, expected=f"0 to {tokens}")
    D, N, K, H = config.d_model, config.n_heads, config.n_kv_heads, config.head_dim
    query, key_value, value_dim = D * N * H, D * 2 * K * H, H
    if latent := config.latent:
        value_dim = latent.v_dim
        query = latent.q_rank * (D + N * H) if latent.q_rank else D * N * H
        down, up = D * (latent.kv_rank + latent.rope_dim), latent.kv_rank * N * (latent.nope_dim + latent.v_dim)
        key_value = down + up
    matrices = 3 if config.gated else 2
    dense_layers, expert, router = config.n_layers, 0, 0
    if experts := config.experts:
        dense_layers = experts.dense_layers
        routed_layers = config.n_layers - dense_layers
        expert = routed_layers * (experts.active + experts.shared) * matrices * D * experts.d_ff
        router = routed_layers * D * experts.count
    layer_pairs = config.n_layers * pairs(tokens, past, causal=causal)
    if window is not None:
        narrow = pairs(tokens, past, window=window.tokens)
        layer_pairs -= window.layers * max(0, pairs(tokens, past, causal=causal) - narrow)
    all_tokens, all_pairs = batch * tokens, batch * layer_pairs
    token_macs = {
        "query": config.n_layers * query,
        "key_value": config.n_layers * key_value,
        "output": config.n_layers * N * value_dim * D,
        "mlp": dense_layers * matrices * D * config.d_ff + expert,
        "router": router,
    }
    return Flops(
        **{name: 2.0 * all_tokens * macs for name, macs in token_macs.items()},
        scores=2.0 * all_pairs * N * H,
        values=2.0 * all_pairs * N * value_dim,
        head=2.0 * batch * (tokens if head_tokens is None else head_tokens) * D * config.vocab_size,
    )


def decode(config: TransformerConfig, context: int, batch: int = 1) -> Flops:
    """FLOPs of one more token for each of `batch` sequences; it attends to `context` positions, itself among them."""
    require_at_least_one(context=context)
    return forward(config, 1, batch, past=context - 1)


@dataclass(frozen=True)
class TrainingFlops:
    """FLOPs of one training step: of the forward pass, of the backward pass, and of what is recomputed."""

    forward: float
    backward: float
    recomputed: float

    @property
    def model(self) -> float:
        """FLOPs of forward and backward pass without recomputation, which MFU counts."""
        return self.forward + self.backward

    @property
    def hardware(self) -> float:
        """FLOPs that are executed, recomputation included, which HFU counts."""
        return self.model + self.recomputed


def training(
    config: TransformerConfig,
    tokens: int,
    batch: int = 1,
    *,
    recomputation: str = "none",
    causal: bool = False,
) -> TrainingFlops:
    """FLOPs of a training step on `batch` sequences of `tokens` tokens.

    Y = X·W has two products in its backward pass, dX = dY·Wᵀ and dW = Xᵀ·dY, of the same size each; scores and weighted
    sums likewise. So the backward pass is exactly twice the forward. "full" recomputes every layer, not the head.
    "selective" recomputes scores and weighted sums (Korthikanti et al., arXiv:2205.05198, §5). With "full" on
    Megatron's shapes this is equation 3 of Narayanan et al. (arXiv:2104.04473).
    """
    check_recomputation(recomputation)
    once = forward(config, tokens, batch, causal=causal)
    recomputed = {"none": 0.0, "selective": once.attention, "full": once.layers}[recomputation]
    return TrainingFlops(forward=once.total, backward=2 * once.total, recomputed=recomputed)


def check_recomputation(name: str) -> None:
    """Raise InputError unless `name` is one of `RECOMPUTATIONS`."""
    if name not in RECOMPUTATIONS:
        raise InputError(
            "unknown recomputation",
            got=repr(name),
            expected=f"one of {', '.join(RECOMPUTATIONS)}",
            help=did_you_mean(name, RECOMPUTATIONS),
        )


def korthikanti_hardware(config: TransformerConfig, tokens: int, batch: int = 1) -> float:
    """Hardware FLOPs of a step with selective recomputation as the paper prints them (arXiv:2205.05198, appendix A).

    Its equation, 72·B·L·T·D²·(1 + T/3D + V/12DL), adds three times the scores and weighted sums of a forward pass;
    recomputing them once adds one time, as `training(recomputation="selective").hardware` does. The published HFU/MFU
    ratios (table 5) follow the printed equation.
    """
    once = forward(config, tokens, batch)
    return 3 * once.total + 3 * once.attention


def six_n(n_parameters: float, tokens: float) -> float:
    """Training FLOPs by the rule C = 6·N·D: 2 forward and 4 backward for each parameter and token (Kaplan, §2.1).

    >>> f"{six_n(70e9, 15e12):.2g}"
    '6.3e+24'
    """
    require_positive(n_parameters=n_parameters, tokens=tokens)
    return 6.0 * n_parameters * tokens


def two_n(n_parameters: float, tokens: float) -> float:
    """Forward FLOPs by the rule 2·N·D: a multiply-add for each parameter and token (Kaplan, §2.1)."""
    require_positive(n_parameters=n_parameters, tokens=tokens)
    return 2.0 * n_parameters * tokens


def six_n_ratio(config: TransformerConfig, tokens: int, *, causal: bool = False) -> float:
    """Ratio of the rule 6·N·D to what `training` counts, for a sequence of `tokens`; N are the active parameters.

    Below 1, the rule misses attention, which grows with the sequence; above 1, it counts parameters that do not
    multiply: an embedding of its own is only looked up, positions and norms are added and scaled. Of a mixture of
    experts it must count the experts that a token uses.
    """
    return six_n(parameters(config).active, tokens) / training(config, tokens, causal=causal).model


def kaplan_forward_per_token(config: TransformerConfig, tokens: int) -> float:
    """Forward FLOPs a token as Kaplan et al. count (arXiv:2001.08361, table 1): 2·N + 2·L·T·N·H, N without embeddings.

    Its N leaves out the head as well, which multiplies: 2·D·V a token that matter in small models. Its second term (the
    table's row "mask") is half of what scores and weighted sums cost over all pairs: one of the two, or a causal half.
    """
    require_at_least_one(tokens=tokens)
    attention = 2.0 * config.n_layers * tokens * config.n_heads * config.head_dim
    return two_n(parameters(config).non_embedding, 1) + attention


def palm_training_per_token(config: TransformerConfig, tokens: int, n_parameters: float | None = None) -> float:
    """Training FLOPs a token as PaLM's MFU counts (arXiv:2204.02311, appendix B): 6·N + 12·L·N·H·T, all pairs."""
    require_at_least_one(tokens=tokens)
    count = parameters(config).active if n_parameters is None else n_parameters
    return six_n(count, 1) + 12.0 * config.n_layers * config.n_heads * config.head_dim * tokens


def attention_share(
    config: TransformerConfig, tokens: int, *, causal: bool = False, window: Window | None = None
) -> float:
    """Fraction of a sequence's FLOPs in scores and weighted sums; equal forward, backward and in both.

    >>> from mlsys_lab.configs.presets import WINDOWS, preset
    >>> round(attention_share(preset("gemma3-27b"), 131_072, window=WINDOWS["gemma3-27b"]), 2)
    0.29
    """
    return forward(config, tokens, causal=causal, window=window).attention_share


def attention_crossover(config: TransformerConfig, *, causal: bool = False, window: Window | None = None) -> float:
    """Tokens of a sequence from which scores and weighted sums cost more than everything else.

    With all pairs, attention costs a·T per token and the rest b: half is reached at T = b/a; with the causal half,
    a·(T + 1)/2 takes the place of a·T. Layers with a `window` cost a constant from there on, and without any other
    layer half may never be reached: infinity.
    """
    one = forward(config, 1)
    ratio = (one.total - one.attention) / one.attention  # b/a
    plain = 2 * ratio - 1 if causal else ratio
    if window is None or plain <= window.tokens:
        return plain
    if window.layers == config.n_layers and forward(config, 2**30, window=window).attention_share < 0.5:
        return math.inf

    def excess(tokens: int) -> float:
        flops = forward(config, tokens, causal=causal, window=window)
        return 2 * flops.attention - flops.total

    low, high = window.tokens, window.tokens
    while excess(high) < 0:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if excess(middle) >= 0 else (middle, high)
    return float(high)
