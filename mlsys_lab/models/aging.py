"""A small model that reveals whether keys and values were cached or recomputed: its weights change with every pass."""

from __future__ import annotations

from typing import Any, Literal

import torch

from mlsys_lab.configs import TransformerConfig
from mlsys_lab.models.transformer import Transformer


class AgingModel(Transformer):
    """A narrow float64 `Transformer` whose keys and values change after each forward pass.

    After a pass, the rows of all key and value projections rotate by one. Logits therefore show in which pass each
    token went through the model: cached keys are those of their own pass, recomputed ones are not. `weights` are all
    parameters in order, flat, `count_weights` of them; initialised as in `Transformer` if None.
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
        """Total number of parameters."""
        return sum(parameter.numel() for parameter in self.parameters())

    def forward(self, tokens: torch.Tensor, **how: Any) -> torch.Tensor:
        """Logits as in `Transformer.forward`; then age the model by one pass."""
        logits = super().forward(tokens, **how)
        for name, parameter in self.named_parameters():
            if name.endswith((".key.weight", ".value.weight")):
                parameter.data = parameter.data.roll(1, 0)
        return logits
