"""Data of the figure of attention's share of the FLOPs, for the sizes of published transformers.

The figure repeats `mlsys_lab.flops.compute` in JavaScript, and a test holds the two equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Self

import anywidget
import traitlets

from mlsys_lab.configs import TransformerConfig
from mlsys_lab.configs.presets import PRESETS, preset
from mlsys_lab.errors import InputError
from mlsys_lab.flops.compute import attention_crossover, attention_share
from mlsys_lab.widgets.modules import esm
from mlsys_lab.widgets.page import table

_TABLE_TOKENS = (2_048, 8_192, 32_768, 131_072, 1_048_576)


def attention_share_data(
    model: str | TransformerConfig = "llama3-8b", *, tokens: int = 8_192, causal: bool = False
) -> dict[str, Any]:
    """The data of the figure, opened on a preset or on sizes of one's own, with sequences of `tokens` (2⁷ to 2²²).

    `causal` counts only the pairs of positions that a causal mask lets through. Raises `InputError` for an unknown
    preset or a length that the figure does not draw.
    """
    if not 2**7 <= tokens <= 2**22:
        raise InputError("the figure does not draw this length", got=f"{tokens} tokens", expected="128 to 4194304")
    config = preset(model) if isinstance(model, str) else model
    return {
        "presets": [asdict(one) for one in PRESETS.values()],
        "preset": config.name if isinstance(model, str) else "",
        "own": asdict(config),
        "tokens": tokens,
        "causal": causal,
    }


def attention_share_table(data: Mapping[str, Any]) -> str:
    """Each preset's share at a few lengths and where it reaches one half, as an HTML table for where no script runs."""
    rows = (
        (
            name,
            *(f"{100 * attention_share(config, tokens, causal=data['causal']):.3g} %" for tokens in _TABLE_TOKENS),
            f"{attention_crossover(config, causal=data['causal']):,.0f}",
        )
        for name, config in PRESETS.items()
    )
    return table(("model", *(f"{tokens:,} tokens" for tokens in _TABLE_TOKENS), "one half at"), rows)


class AttentionShare(anywidget.AnyWidget):
    """Notebook figure of attention's share of the FLOPs by sequence length: `AttentionShare.of("gpt3-175b")`.

    preset: a name of `presets`; any other shows the sizes in `own`, a `TransformerConfig` as a dict.
    """

    _esm = esm("attention_share")
    presets: traitlets.List[Any] = traitlets.List(traitlets.Dict()).tag(sync=True)
    preset = traitlets.Unicode().tag(sync=True)
    own: traitlets.Dict[str, Any] = traitlets.Dict().tag(sync=True)
    tokens = traitlets.Int(8_192).tag(sync=True)
    causal = traitlets.Bool(False).tag(sync=True)

    @classmethod
    def of(cls, model: str | TransformerConfig, **options: Any) -> Self:
        """Figure opened on a preset or a config; `options` are keyword arguments of `attention_share_data`."""
        return cls(**attention_share_data(model, **options))
