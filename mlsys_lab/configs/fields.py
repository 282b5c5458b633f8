"""The fields of a Hugging Face config.json, under the names that successive versions of `transformers` write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlsys_lab.configs.transformer import SCALINGS, RotaryScaling
from mlsys_lab.errors import InputError


class Fields:
    """Reader of one config.json: finds a field under each of its names, and raises a one-line error for a wrong one.

    `inside` is the `model_type` of the multimodal model that the decoder is a part of, "" for a plain decoder.
    """

    def __init__(self, fields: Mapping[str, Any], name: str, inside: str = "") -> None:
        self.fields, self.name, self.inside = fields, name, inside

    def get(self, *names: str, default: Any = None) -> Any:
        """The value of the first of these names that is present and not null, else the default."""
        return next((self.fields[name] for name in names if self.fields.get(name) is not None), default)

    def size(self, *names: str, default: int | None = None) -> int:
        """The value of a field that must be a whole number; InputError if it is missing and has no default."""
        value = self.get(*names, default=default)
        if value is None:
            raise InputError(f"{self.name} has no such size", expected=" or ".join(names))
        if not isinstance(value, int) or isinstance(value, bool):
            raise InputError(f"{self.name}: {names[0]} is not a size", got=repr(value), expected="a whole number")
        return value

    def entries(self, name: str) -> list[Any] | None:
        """The value of a field that must be a list; None if it is missing."""
        value = self.get(name)
        if value is not None and not isinstance(value, list):
            raise InputError(f"{self.name}: {name} is not a list", got=repr(value))
        return value

    def text(self, name: str) -> str:
        """The value of a field that is a string; "" if it is missing."""
        return str(self.get(name, default=""))

    def refuse(self, name: str, *, unless: object, default: object) -> None:
        """Raise InputError where a field, or its default, is not the one value that this package computes correctly."""
        value = self.get(name, default=default)
        if value != unless:
            raise InputError(
                f"{self.name}: {self.text('model_type')} with this {name} is not computed here",
                got=repr(value),
                expected=repr(unless),
            )

    @property
    def rope_theta(self) -> float:
        """Base of the rotary angles, wherever the version of `transformers` writes it."""
        inner = self.rope.get("rope_theta")
        return self.get("rope_theta", default=1e4) if inner is None else inner  # type: ignore[no-any-return]

    def partial_rotary_factor(self, default: float) -> float:
        """Fraction of a head's dimensions that rotary positions rotate."""
        return self.get("partial_rotary_factor", default=self.rope.get("partial_rotary_factor", default))  # type: ignore[no-any-return]

    @property
    def rope_scaling(self) -> RotaryScaling | None:
        """Scaling of the rotary angles for long contexts; None if there is none, or an `unknown_scaling`."""
        kind: Any = self._rope_type
        if self.unknown_scaling or kind not in SCALINGS:
            return None
        names = ("factor", "low_freq_factor", "high_freq_factor") if kind == "llama3" else ("factor",)
        given: dict[str, Any] = {name: self.rope.get(name) for name in names}
        if missing := [name for name, value in given.items() if value is None]:
            raise InputError(f"{self.name}: rope_scaling of type {kind} has no {' and '.join(missing)}")
        if kind == "llama3":
            name = "original_max_position_embeddings"
            trained = self.get(name, default=self.rope.get(name))
            given["original_context"] = self.size("max_position_embeddings") if trained is None else trained
        return RotaryScaling(kind, **given)

    @property
    def unknown_scaling(self) -> str:
        """Type of rotary scaling that is not computed here; "" if there is none.

        `RotaryScaling` does not have it, or some layers turn no angles at all (Llama 4).
        """
        known = () if self.text("model_type") == "llama4_text" else SCALINGS
        return "" if self._rope_type in ("default", *known) else self._rope_type

    @property
    def _rope_type(self) -> str:
        return str(self.rope.get("rope_type") or self.rope.get("type") or "default")

    @property
    def window(self) -> int | None:
        """Size of the attention window in tokens, if smaller than the context; else None."""
        if not self.get("use_sliding_window", default=not self.text("model_type").startswith("qwen")):
            return None
        window = self.size(self.window_field, default=0)
        return window if 0 < window < self.size("max_position_embeddings", default=window + 1) else None

    @property
    def window_field(self) -> str:
        """Name of the field that has the `window`; Llama 4 cuts the sequence into chunks, and none is longer."""
        return "attention_chunk_size" if self.text("model_type") == "llama4_text" else "sliding_window"

    @property
    def windowed_layers(self) -> int:
        """Number of layers with the `window`: those of `layer_types`, or all but every p-th one."""
        layers = self.size("num_hidden_layers", default=0)
        if types := self.entries("layer_types"):
            return sum(kind in ("sliding_attention", "chunked_attention") for kind in types)
        if with_positions := self.entries("no_rope_layers"):
            return sum(map(bool, with_positions))
        pattern = {
            "gemma2": 2,
            "gpt_oss": 2,
            "gemma3_text": self.size("sliding_window_pattern", "_sliding_window_pattern", default=6),
            "llama4_text": self.size("no_rope_layer_interval", default=4),
        }
        every = pattern.get(self.text("model_type"))
        return layers - layers // every if every else layers

    @property
    def rope(self) -> Mapping[str, Any]:
        """The object that describes rotary angles; `transformers` takes the older name where both are present.

        Where it has one for each kind of layer, that of layers which see all tokens.
        """
        rope = self.get("rope_scaling") or self.get("rope_parameters", default={})
        rope = rope.get("full_attention", rope) if isinstance(rope, Mapping) else rope
        if not isinstance(rope, Mapping):
            raise InputError(f"{self.name}: rope_scaling is not an object", got=repr(rope))
        return rope


def describe_window(window: int, windowed_layers: int, n_layers: int) -> str:
    """Describe an attention window, and in how many layers it is if not in all."""
    where = "" if windowed_layers == n_layers else f" in {windowed_layers} of {n_layers} layers"
    return f"attention reaches back {window} tokens only{where}"
