"""Load Hugging Face checkpoints: a folder with config.json and safetensors, in one file or in shards."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from mlsys_lab.configs.fields import Fields
from mlsys_lab.configs.huggingface import read_config, read_fields
from mlsys_lab.configs.transformer import SCALINGS
from mlsys_lab.errors import InputError
from mlsys_lab.models.attention import Attention, fused_attention
from mlsys_lab.models.layouts import IGNORED_BUFFERS, LAYOUTS, Layout, StoredWeight, locate
from mlsys_lab.models.transformer import Transformer

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
HEAD = "lm_head.weight"
FLOATING_POINT = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
OTHER_MODEL = "config.json may be that of another model"
WINDOWED = ("mistral", "mixtral", "phi3")
"""Architectures whose sliding window, if any, applies to every layer."""


def load(
    folder: str | Path,
    *,
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
    attention: Attention = fused_attention,
) -> Transformer:
    """A `Transformer` with the weights of a checkpoint of one of the families in `layouts.LAYOUTS`.

    These are GPT-2, BLOOM, OPT, LLaMA, Mistral, Mixtral, Qwen 2 and 3, Qwen 3 with experts, Gemma 1, OLMo 1 and 2,
    and Phi 1 to 3.
    `dtype` None keeps that of the stored embedding. Files are memory-mapped and tensors copied one by one, so memory
    for the model and one tensor is enough. If only some layers have a sliding window (Qwen), the window becomes the
    context length, within which it makes no difference. Raises InputError, in one line, for a folder without these
    files, damaged files, tensors that are missing, unused or of another shape, quantized weights, and for an
    architecture or rotary scaling that `Transformer` does not support.
    """
    folder = Path(folder)
    fields = read_fields(folder / "config.json")
    model = build_empty(folder, fields, attention)
    if fields.get("quantization_config"):
        help_ = "mlsys_lab.efficiency.quantization.load_checkpoint loads some"
        raise InputError(f"{folder}: quantised weights are not loaded here", expected="floating-point ones", help=help_)
    load_weights(model, Checkpoint(folder), LAYOUTS[fields.text("model_type")], dtype=dtype, device=device)
    return model


def load_weights(
    model: Transformer,
    checkpoint: Checkpoint,
    layout: Layout,
    *,
    dtype: torch.dtype | None,
    device: str | torch.device,
    loaded: Iterable[str] = (),
) -> None:
    """Load all parameters of a model from a checkpoint; `loaded` are names of tensors that are loaded already.

    InputError for tensors that are missing, unused or of another shape.
    """
    folder = checkpoint.folder
    wanted = {name: checkpoint.rename(locate(name, layout)) for name, _ in model.named_parameters()}
    _check_names(checkpoint, [stored.name for stored in wanted.values()], loaded, tied=model.config.tied)
    weights: dict[str, torch.Tensor] = {}
    for name, ours in model.named_parameters():
        stored = wanted[name]
        tensor = checkpoint.tensor(stored.name, stored.shape(ours.shape, model.config))
        dtype = dtype or tensor.dtype
        # Copy, so that no view keeps a stacked tensor alive.
        weights[name] = stored.take(tensor, model.config).to(device, dtype, copy=True).contiguous()
        if stored.plus:
            weights[name] += stored.plus
    if model.config.tied and HEAD in checkpoint.files:
        head = checkpoint.tensor(HEAD, tuple(model.embedding.weight.shape)).to(device, dtype)
        if not torch.equal(head, weights["embedding.weight"]):
            raise InputError(f"{folder}: config.json ties the head to the embedding, but {HEAD} is another matrix")
    model.load_state_dict(weights, assign=True, strict=False)  # buffers of quantized layers are loaded already


def build_empty(folder: Path, fields: Fields, attention: Attention) -> Transformer:
    """The model of a checkpoint's config.json on the meta device, without memory for weights.

    InputError for an architecture or rotary scaling that `Transformer` does not support.
    """
    config = read_config(folder)
    if fields.inside or fields.text("model_type") not in LAYOUTS:
        raise InputError(
            f"{folder}: weights of this architecture are not loaded here",
            got=fields.inside or fields.text("model_type"),
            expected=f"one of {', '.join(LAYOUTS)}",
        )
    if fields.unknown_scaling and config.position == "rotary":
        raise InputError(
            f"{folder}: rotary angles stretched in this way are not computed here",
            got=fields.unknown_scaling,
            expected=f"one of {', '.join(SCALINGS)}",
        )
    fields.refuse("norm_topk_prob", unless=True, default=fields.text("model_type") != "qwen3_moe")
    window = fields.window
    if window is not None and fields.text("model_type") not in WINDOWED:
        config, window = dataclasses.replace(config, context=window), None
    with torch.device("meta"):
        return Transformer(config, attention, window=window)


class Checkpoint:
    """The tensors of a folder of safetensors files, read one at a time, and all their names."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.open: dict[str, Any] = {}
        if (folder / INDEX).exists():
            self.files = self._read_index()
        elif (folder / SINGLE).exists():
            self.files = dict.fromkeys(self._open(SINGLE).keys(), SINGLE)
        else:
            others = sorted(path.name for path in folder.glob("*.bin"))
            help_ = f"{others[0]} is a pickle; convert it to safetensors" if others else ""
            raise InputError(f"no weights in {folder}", expected=f"{SINGLE} or {INDEX}", help=help_)

    def rename(self, stored: StoredWeight) -> StoredWeight:
        """Adapt a stored name to this checkpoint: some omit the prefix "transformer." or "model."."""
        bare = stored.name.removeprefix("transformer.").removeprefix("model.")
        return dataclasses.replace(stored, name=bare) if bare in self.files else stored

    def tensor(
        self, name: str, shape: tuple[int, ...], dtypes: Collection[torch.dtype] = FLOATING_POINT
    ) -> torch.Tensor:
        """Read one tensor; InputError if it is missing or has another shape or dtype."""
        if name not in self.files:
            raise InputError(f"{self.folder} lacks {name}", help=OTHER_MODEL)
        file = self.files[name]
        try:
            piece = self._open(file).get_slice(name)
            found = tuple(piece.get_shape())
            if found != shape:
                raise InputError(f"{name} in {self.folder / file} has another shape", got=found, expected=shape)
            tensor = self._open(file).get_tensor(name)
        except SafetensorError as problem:
            raise InputError(f"cannot read {name} from {self.folder / file}", got=_line(problem)) from None
        if tensor.dtype not in dtypes:
            expected = "16 to 64 bits" if dtypes is FLOATING_POINT else " or ".join(map(str, dtypes))
            what = "is quantised" if dtypes is FLOATING_POINT else "has another dtype"
            raise InputError(f"{name} in {self.folder / file} {what}", got=tensor.dtype, expected=expected)
        return tensor

    def _read_index(self) -> dict[str, str]:
        path = self.folder / INDEX
        try:
            files = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
            pairs = {str(name): Path(file) for name, file in files.items()}
        except (OSError, ValueError, RecursionError, TypeError, KeyError, AttributeError) as problem:
            expected = "JSON with a weight_map from tensors to files"
            raise InputError(f"{path} is no index", got=_line(problem), expected=expected) from None
        for file in set(pairs.values()):
            if file.name != str(file):
                raise InputError(
                    f"{path} names a file elsewhere", got=file, expected=f"names of files in {self.folder}"
                )
            if not (self.folder / file).exists():
                raise InputError(f"a shard is missing from {self.folder}", expected=file)
        return {name: str(file) for name, file in pairs.items()}

    def _open(self, file: str) -> Any:
        if file not in self.open:
            try:
                self.open[file] = safe_open(self.folder / file, framework="pt")
            except (SafetensorError, OSError) as problem:
                raise InputError(f"{self.folder / file} is not safetensors", got=_line(problem)) from None
        return self.open[file]


def _check_names(checkpoint: Checkpoint, wanted: Iterable[str], loaded: Iterable[str], *, tied: bool) -> None:
    names = set(wanted)
    known = names.union(loaded, [HEAD] if tied else [])
    missing = [name for name in sorted(names) if name not in checkpoint.files]
    left_over = [name for name in sorted(checkpoint.files) if name not in known and not name.endswith(IGNORED_BUFFERS)]
    if missing:
        help_ = f"left over is {_some(left_over)}" if left_over else OTHER_MODEL
        raise InputError(f"{checkpoint.folder} lacks {_some(missing)}", help=help_)
    if left_over:
        what = f"{checkpoint.folder} has tensors that the model has not: {_some(left_over)}"
        raise InputError(what, help=OTHER_MODEL)


def _some(names: list[str]) -> str:
    more = len(names) - 3
    return ", ".join(names[:3]) + (f" and {more} more" if more > 0 else "")


def _line(problem: Exception) -> str:
    return " ".join(f"{type(problem).__name__}: {problem}".split())
