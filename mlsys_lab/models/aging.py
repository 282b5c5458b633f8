"""A small model that can tell whether keys and values were kept or computed anew: every pass makes it another."""

from __future__ import annotations

from typing import Any, Literal

import torch

from mlsys_lab.configs import TransformerConfig
from mlsys_lab.models.transformer import Transformer


class AgingModel(Transformer):
    """A narrow `Transformer` in float64 whose keys and values are others after each pass.

    After a pass, the rows of all key and value projections have moved on by one. So logits show in which pass each
    token went through the model: keys that a cache kept are those of their own pass, and keys computed again are not.
    `weights` are all parameters in their order, flat, `count_weights` of them; drawn as in `Transformer` where None.
    """

    def __init__(
        self,
        weights: torch.Tensor | None = None,
        *,
        n_layers: int = 3,
        kv_heads: int = 4,
        window: int | None = None,
        position: Literal["learned", "rotary"] = "rotary",
    ) -> None:
        config = TransformerConfig(
            "an aging model",
            n_layers=n_layers,
            d_model=16,
            n_heads=4,
            head_dim=6,
            d_ff=24,
            vocab_size=19,
            context=64,
            n_kv_heads=kv_heads,
            position=position,
        )
        super().__init__(config, window=window)
        self.double()
        if weights is not None:
            parameters = list(self.parameters())
            parts = torch.split(weights, [parameter.numel() for parameter in parameters])
            with torch.no_grad():
                for parameter, part in zip(parameters, parts, strict=True):
                    parameter.copy_(part.view_as(parameter))

    @property
    def count_weights(self) -> int:
        """Number of all parameters together."""
        return sum(parameter.numel() for parameter in self.parameters())

    def forward(self, tokens: torch.Tensor, **how: Any) -> torch.Tensor:
        """Logits as `Transformer.forward` gives them; then the model is a pass older."""
        logits = super().forward(tokens, **how)
        for name, parameter in self.named_parameters():
            if name.endswith((".key.weight", ".value.weight")):
                parameter.data = parameter.data.roll(1, 0)
        return logits
