"""Published decoders by name: `preset("llama3-70b")`, read from presets.toml, where each has its source."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from types import MappingProxyType
from typing import Any, NamedTuple

from mlsys_lab.configs.fields import describe_window
from mlsys_lab.configs.transformer import (
    Experts,
    LatentAttention,
    RotaryScaling,
    TransformerConfig,
    Window,
    require_attention,
)
from mlsys_lab.errors import InputError, did_you_mean


class ActiveParameters(NamedTuple):
    """Active parameters of a mixture of experts as its publisher prints them, and which parameters it counts."""

    billions: float
    counted: str
    source: str


def _read_configs(families: list[dict[str, Any]]) -> Iterator[TransformerConfig]:
    nested = {"experts": Experts, "latent": LatentAttention, "rope_scaling": RotaryScaling}
    for family in families:
        for name, own in family["models"].items():
            fields = family.get("common", {}) | own
            made = {key: nested[key](**fields[key]) for key in nested.keys() & fields.keys()}
            yield TransformerConfig(name, **(fields | made))


_TABLES = tomllib.loads((files(__package__) / "presets.toml").read_text(encoding="utf-8"))

PRESETS: Mapping[str, TransformerConfig] = MappingProxyType(
    {config.name: config for config in _read_configs(_TABLES["families"])}
)
"""Every published decoder that the course computes with, by name."""
PUBLISHED_ACTIVE: Mapping[str, ActiveParameters] = MappingProxyType(
    {name: ActiveParameters(**row) for name, row in _TABLES["published_active"].items()}
)
"""Published active parameters, by the name of the preset."""
WINDOWS: Mapping[str, Window] = MappingProxyType({name: Window(**row) for name, row in _TABLES["windows"].items()})
"""Attention windows of the presets that have one, an argument of `cache.kv_cache_bytes` and `step.step_cost`."""


def preset_omissions(name: str) -> tuple[str, ...]:
    """Phrases for what a preset's counts leave out, as `huggingface.omissions` has them for a config.json.

    >>> preset_omissions("gemma2-9b")
    ('attention reaches back 4096 tokens only in 21 of 42 layers',)
    """
    config = preset(name)
    return (describe_window(*WINDOWS[config.name], config.n_layers),) if config.name in WINDOWS else ()


def preset(name: str) -> TransformerConfig:
    """Look up a published decoder by name, however it is cased and divided; InputError suggests near names.

    >>> preset("LLaMA 2 7B").d_ff
    11008
    """
    by_letters = {_letters(known): config for known, config in PRESETS.items()}
    letters = _letters(name)
    require_attention(name)
    if letters in by_letters:
        return by_letters[letters]
    near = [known for known in PRESETS if letters and _letters(known).startswith(letters)]
    help_ = f"did you mean {' or '.join(map(repr, near))}?" if near else did_you_mean(name.lower(), PRESETS)
    raise InputError("no such preset", got=repr(name), expected=f"one of {', '.join(PRESETS)}", help=help_)


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", name.lower())
