"""A decoder transformer: norm, attention, norm and MLP in every block, added to the residual stream.

Dimension letters: B batch, T tokens, D d_model, N query heads, K key/value heads, H head_dim,
R rotary_dim, V vocabulary.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from mlsys_lab.configs import TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.models.attention import Attend, Attention, CachedAttention, SelfAttention, fused_attention
from mlsys_lab.models.experts import MLP, MixtureOfExperts
from mlsys_lab.models.latent import LatentSelfAttention
from mlsys_lab.models.positions import alibi_slopes, rotary_angles, score_bias

INTEGERS = (torch.int32, torch.int64)


class Block(nn.Module):
    """Pre-norm block: x + attention(norm(x)), then x + mlp(norm(x)); both from one norm in parallel blocks.

    With post-norms each result is normalised before it is added; without pre-norms the inputs are not.
    """

    def __init__(self, config: TransformerConfig, layer: int, attention: Attention) -> None:
        super().__init__()
        experts = config.experts
        self.attention_norm = norm(config) if config.pre_norms else nn.Identity()
        kind = SelfAttention if config.latent is None else LatentSelfAttention
        self.attention = kind(config, attention)
        self.mlp_norm = None if config.parallel_blocks else norm(config) if config.pre_norms else nn.Identity()
        self.attention_post_norm = norm(config) if config.post_norms else nn.Identity()
        self.mlp_post_norm = norm(config) if config.post_norms else nn.Identity()
        routed = experts is not None and layer >= experts.dense_layers
        self.mlp = MixtureOfExperts(config, experts) if experts and routed else MLP(config, config.d_ff)

    def forward(
        self,
        x: torch.Tensor,
        angles: torch.Tensor | None,
        bias: torch.Tensor | None,
        attend: Attend | None = None,
    ) -> torch.Tensor:
        """Add attention and MLP to x: (B, T, D) -> (B, T, D); other arguments as in `SelfAttention`."""
        h = self.attention_norm(x)
        attended = self.attention_post_norm(self.attention(h, angles, bias, attend))
        if self.mlp_norm is None:
            return x + attended + self.mlp_post_norm(self.mlp(h))
        x = x + attended
        return x + self.mlp_post_norm(self.mlp(self.mlp_norm(x)))


class Transformer(nn.Module):
    """Decoder transformer of the GPT-2 and LLaMA families: token ids (B, T) -> next-token logits (B, T, V).

    `attention` is called by each layer with its queries, keys and values. With a `window` a token sees itself and the
    `window` - 1 before it (Mistral, arXiv:2310.06825, §2), in every layer. Raises InputError for attention sinks and a
    router bias, which `mlsys_lab.flops` covers but this model does not. Weights are initialised as in GPT-2: normal,
    standard deviation 0.02, divided by √(2L) where a block adds to the residual stream (Radford et al. 2019, §2.3);
    biases 0.
    """

    def __init__(
        self, config: TransformerConfig, attention: Attention = fused_attention, *, window: int | None = None
    ) -> None:
        super().__init__()
        if window is not None and window < 1:
            raise InputError("window of attention", got=window, expected="1 or more, or None for all tokens before")
        if config.attention_sinks or config.router_bias:
            raise InputError("sinks and a router's bias are not built here", got=config.name, expected="neither")
        self.config, self.window = config, window
        V, D = config.vocab_size, config.d_model
        self.embedding = nn.Embedding(V, D)
        self.positions = nn.Embedding(config.context, D) if config.position == "learned" else None
        self.embedding_norm = norm(config) if config.embedding_norm else nn.Identity()
        self.blocks = nn.ModuleList(Block(config, layer, attention) for layer in range(config.n_layers))
        self.norm = norm(config)
        self.head = None if config.tied else nn.Linear(D, V, bias=config.head_bias)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw all weights again from the initial distribution, in place."""
        residual = (2 * self.config.n_layers) ** -0.5
        for name, module in self.named_modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                adds = name.endswith((".out", ".down"))
                module.weight.normal_(std=0.02 * (residual if adds else 1))
            if isinstance(module, nn.Linear) and module.bias is not None:
                module.bias.zero_()

    def forward(
        self,
        tokens: torch.Tensor,
        *,
        positions: torch.Tensor | None = None,
        attend: CachedAttention | None = None,
        rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Next-token logits: ids (B, T) -> (B, T, V).

        `positions` (T,) or (B, T) are consecutive token positions; 0 to T-1 if None. `attend` replaces attention, mask
        and bias in every layer. With `rows`, indices (R,) into the B·T tokens, only their logits are computed, (R, V).
        Raises InputError for other shapes and dtypes, tokens outside the vocabulary and positions outside the context;
        values on a GPU are not checked.
        """
        self._check(tokens, positions, rows)
        x = self.embed(tokens, positions)
        angles, bias = self.position_terms(x, positions, masked=attend is None)
        for layer, block in enumerate(self.blocks):
            x = block(x, angles, bias, attend and partial(attend, layer))
        if rows is not None:
            x = x.flatten(0, 1)[rows]  # (R, D)
        return self.predict(x)  # (B, T, V) or (R, V)

    def embed(self, tokens: torch.Tensor, positions: torch.Tensor | None = None) -> torch.Tensor:
        """Input of the first block: ids (B, T) -> (B, T, D). InputError for a token outside the vocabulary."""
        try:
            x = self.embedding(tokens)
        except IndexError:
            got = f"{int(tokens.min())} to {int(tokens.max())}"
            raise InputError(
                "token outside the vocabulary", got=got, expected=f"0 to {self.config.vocab_size - 1}"
            ) from None
        if self.config.scaled_embedding:
            scale = torch.tensor(self.config.d_model**0.5, dtype=x.dtype).item()  # rounded, as Gemma was trained
            x = x * scale
        if self.positions is not None:
            x = x + (self.positions.weight[: tokens.shape[1]] if positions is None else self.positions(positions))
        return self.embedding_norm(x)

    def position_terms(
        self, x: torch.Tensor, positions: torch.Tensor | None = None, *, masked: bool = True
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Rotary angles (2, ..., T, R/2) and score bias for every block, None where unused.

        x (B, T, D) gives their dtype; its tokens are at 0 to T-1 if `positions` is None. Without `masked`, no bias.
        """
        c, angles, bias = self.config, None, None
        T = x.shape[1] if positions is None else positions.shape[-1]
        biased = masked and (c.position == "alibi" or (self.window is not None and self.window < T))
        if c.position != "rotary" and not biased:
            return None, None
        if positions is None:
            fine = torch.promote_types(x.dtype, torch.float32)
            positions = torch.arange(T, device=x.device, dtype=fine)
        if c.position == "rotary":
            per_head = positions[:, None] if positions.ndim == 2 else positions  # (B, 1, T) or (T,)
            angles = rotary_angles(per_head, c.rotary_dim, c.rope_theta, x, c.rope_scaling)
        if biased:
            bias = score_bias(positions, positions, x, slopes=self.slopes(), window=self.window)
        return angles, bias

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        """Logits from the last block's output: (..., D) -> (..., V)."""
        if self.head is None:
            return F.linear(self.norm(x), self.embedding.weight)
        return F.linear(self.norm(x), self.head.weight, self.head.bias)

    def slopes(self) -> torch.Tensor | None:
        """ALiBi's slopes (N,), or None for other position embeddings."""
        return alibi_slopes(self.config.n_heads, self.embedding.weight) if self.config.position == "alibi" else None

    def score_bias(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Mask and ALiBi bias for query and key positions: (..., T) and (..., S) -> (..., N or 1, T, S)."""
        return score_bias(queries, keys, self.embedding.weight, slopes=self.slopes(), window=self.window)

    def oldest_visible(self, position: int) -> int:
        """First position that a query at `position` attends to."""
        return 0 if self.window is None else max(0, position - self.window + 1)

    def _check(self, tokens: torch.Tensor, positions: torch.Tensor | None, rows: torch.Tensor | None) -> None:
        context = self.config.context
        too_long = positions is None and tokens.shape[-1:] > (context,)
        if tokens.ndim != 2 or too_long or tokens.dtype not in INTEGERS:
            expected = f"integers (B, T), T up to {context}" if positions is None else "integers (B, T)"
            raise InputError(
                "tokens of another shape", got=f"{tuple(tokens.shape)} of {tokens.dtype}", expected=expected
            )
        if positions is not None:
            _check_indices("positions", positions, context, (tokens.shape, tokens.shape[1:]))
        if rows is not None:
            _check_indices("rows", rows, tokens.numel(), (torch.Size([rows.numel()]),))


def _check_indices(name: str, indices: torch.Tensor, end: int, shapes: tuple[torch.Size, ...]) -> None:
    """Raise InputError unless these are integers of one of the shapes and, if cheap to check, below `end`."""
    if indices.shape not in shapes or indices.dtype not in INTEGERS:
        raise InputError(
            f"{name} of another shape",
            got=f"{tuple(indices.shape)} of {indices.dtype}",
            expected=f"integers {' or '.join(str(tuple(shape)) for shape in shapes)}",
        )
    if indices.device.type == "cpu" and indices.numel():
        first, last = int(indices.min()), int(indices.max())
        if first < 0 or last >= end:
            raise InputError(f"{name} out of range", got=f"{first} to {last}", expected=f"0 to {end - 1}")


def norm(config: TransformerConfig) -> nn.Module:
    """A new norm over the last axis, as configured."""
    if config.norm == "rms":
        return nn.RMSNorm(config.d_model, config.norm_eps, elementwise_affine=config.norm_weight)
    return nn.LayerNorm(config.d_model, config.norm_eps, config.norm_weight, bias=config.norm_bias)
