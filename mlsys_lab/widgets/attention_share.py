"""Interactive figure of attention's fraction of the FLOPs, by sequence length, for published transformers.

The figure reimplements `mlsys_lab.flops.compute` in JavaScript; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Self

import anywidget
import traitlets

from mlsys_lab.configs import TransformerConfig
from mlsys_lab.configs.presets import PRESETS, WINDOWS, preset
from mlsys_lab.errors import InputError
from mlsys_lab.flops.compute import attention_crossover, attention_share
from mlsys_lab.widgets.modules import esm
from mlsys_lab.widgets.page import table

_TABLE_TOKENS = (2_048, 8_192, 32_768, 131_072, 1_048_576)


def attention_share_data(
    model: str | TransformerConfig = "llama3-8b", *, tokens: int = 8_192, causal: bool = False
) -> dict[str, Any]:
    """Data of the figure, which initially shows a preset or a config at a sequence length of `tokens` (2⁷ to 2²²).

    `causal` counts only the pairs of positions that a causal mask allows. InputError for an unknown preset or a length
    out of range.
    """
    if not 2**7 <= tokens <= 2**22:
        raise InputError("length out of range", got=f"{tokens} tokens", expected="128 to 4194304")
    config = preset(model) if isinstance(model, str) else model
    return {
        "presets": [_sizes(one) for one in PRESETS.values()],
        "preset": config.name if isinstance(model, str) else "",
        "own": _sizes(config),
        "tokens": tokens,
        "causal": causal,
    }


def _sizes(config: TransformerConfig) -> dict[str, Any]:
    """A config for the figure, with the sliding window that the preset of its name has."""
    window = WINDOWS.get(config.name)
    return asdict(config) | {"window": window and window._asdict()}


def attention_share_table(data: Mapping[str, Any]) -> str:
    """HTML table of each preset's fraction at a few lengths, and the length at which it reaches one half."""
    rows = (
        (
            name,
            *(
                f"{100 * attention_share(config, tokens, causal=data['causal'], window=WINDOWS.get(name)):.3g} %"
                for tokens in _TABLE_TOKENS
            ),
            f"{attention_crossover(config, causal=data['causal'], window=WINDOWS.get(name)):,.0f}",
        )
        for name, config in PRESETS.items()
    )
    return table(("model", *(f"{tokens:,} tokens" for tokens in _TABLE_TOKENS), "one half at"), rows)


class AttentionShare(anywidget.AnyWidget):
    """Notebook figure of attention's fraction of the FLOPs by sequence length: `AttentionShare.of("gpt3-175b")`.

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
        """Figure that initially shows a model; `options` are keyword arguments of `attention_share_data`."""
        return cls(**attention_share_data(model, **options))
