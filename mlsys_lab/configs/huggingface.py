"""From a Hugging Face config.json to a `TransformerConfig`, for the architectures that this package counts correctly.

What changes no count is not part of a `TransformerConfig`; `omissions` says what of it a file has. What would make the
arithmetic wrong is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlsys_lab.configs.architectures import DEFAULTS, FAMILIES
from mlsys_lab.configs.fields import Fields, describe_window
from mlsys_lab.configs.transformer import TransformerConfig, require_attention
from mlsys_lab.errors import InputError, did_you_mean

Source = str | Path | Mapping[str, Any]

ATTENTION = {"full_attention", "sliding_attention", "chunked_attention", "attention"}
"""Kinds of layers, as `layer_types` names them, that keep keys and values of the tokens that they see."""
SHARED = ("_name_or_path", "quantization_config", "tie_word_embeddings")
"""Fields of a model that reads pictures too which are said of its decoder as well."""


def read_config(source: Source) -> TransformerConfig:
    """Read a model's sizes from its config.json: a path to the file or its folder, or the content as a mapping.

    Fields that a file may leave out have the value that `transformers` gives them. Raises InputError for a file that
    cannot be read, misses a size, is of an unknown `model_type`, or asks for something that is not computed here.
    """
    found = read_fields(source)
    return FAMILIES[found.text("model_type")](found)


def omissions(source: Source) -> tuple[str, ...]:
    """Phrases for what a config.json asks for beyond a `TransformerConfig`; none of it changes `parameters`.

    >>> omissions({"model_type": "mistral", "sliding_window": 4096})
    ('attention reaches back 4096 tokens only (sliding_window)',)
    """
    found = read_fields(source)
    said = []
    if found.inside:
        said.append(f"all of {found.inside} but its decoder (text_config)")
    if found.unknown_scaling:
        said.append(f"rotary angles are stretched ({found.unknown_scaling})")
    if found.window is not None:
        told = describe_window(found.window, found.windowed_layers, found.size("num_hidden_layers", default=0))
        said.append(f"{told} ({found.window_field})")
    if modules := found.get("num_nextn_predict_layers"):
        said.append(f"{modules} further module predicts a later token (num_nextn_predict_layers)")
    if found.get("quantization_config"):
        said.append("weights are stored quantised (quantization_config)")
    return tuple(said)


def read_fields(source: Source) -> Fields:
    """Read a model's config.json: a mapping, the file's path or that of its folder.

    Of a model that reads pictures too, those of its decoder. Raises InputError for a file that cannot be read, is no
    JSON object, or has a `model_type` or a kind of layers that is not known here.
    """
    if isinstance(source, Mapping):
        fields: Any = source
        name = "config"
    else:
        path = Path(source)
        path = path / "config.json" if path.is_dir() else path
        name = str(path)
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
        except OSError as problem:
            raise InputError(f"cannot read {path}", got=problem.strerror, expected="a config.json") from None
        except (ValueError, RecursionError) as problem:
            raise InputError(f"{path} is not JSON", got=str(problem)) from None
    if not isinstance(fields, Mapping):
        raise InputError(f"{name} is not an object", got=type(fields).__name__, expected="names and values")
    decoder, inside = _find_decoder(fields)
    whole, kind = fields.get("model_type"), decoder.get("model_type")
    for one in (whole, kind):
        require_attention(str(one))
    _refuse_other_layers(decoder, name)
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise InputError(
            f"{name}: unknown architecture",
            got=f"model_type {whole!r}" if whole is not None else "no model_type",
            expected=f"one of {', '.join(FAMILIES)}",
            help="" if inside else _suggest(str(whole)),
        )
    given = {field: value for field, value in decoder.items() if value is not None}
    return Fields({**DEFAULTS.get(kind, {}), **given}, name, inside)


def _find_decoder(fields: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """The fields of the decoder, and the `model_type` of what it is part of: "" where the file is that of a decoder."""
    kind, inner = fields.get("model_type"), fields.get("text_config")
    if str(kind) in FAMILIES or not isinstance(inner, Mapping):
        return fields, ""
    shared = {field: fields[field] for field in SHARED if field in fields}
    return {"model_type": f"{kind}_text", **shared, **inner}, str(kind)


def _refuse_other_layers(fields: Mapping[str, Any], name: str) -> None:
    """Raise InputError for layers of a kind that keeps no keys and values, or has them in another way."""
    types = fields.get("layer_types") or []
    if not isinstance(types, list):
        raise InputError(f"{name}: layer_types is not a list", got=repr(types))
    if others := sorted({str(kind) for kind in types} - ATTENTION):
        raise InputError(
            f"{name}: layers of this kind are not counted here",
            got=", ".join(others),
            expected=f"layer_types of {', '.join(sorted(ATTENTION))}",
        )


def _suggest(kind: str) -> str:
    """A suggestion for a misspelt `model_type`: one much like it, and of no other generation, whose number differs."""
    alike = [known for known in FAMILIES if re.findall(r"\d+", known) == re.findall(r"\d+", kind)]
    return did_you_mean(kind, alike, nearness=0.8)
