"""The format of compressed-tensors, in which vLLM and transformers read quantized checkpoints.

A layer's weight is stored as `weight_packed` (codes as a little-endian stream of bits in int32 words, signed codes from
0 by adding 2ᵇ⁻¹), `weight_scale`, `weight_zero_point` if asymmetric (packed along the outputs) and `weight_shape`; or,
where activations have 8 bits too, as int8 `weight` and `weight_scale`. config.json has the scheme, under
"quantization_config". Groups of inputs that do not divide them, and scales of a whole tensor, are not supported here.
As of version 0.20 the library packs any number of bits; vLLM's kernels take 4 and 8.

Dimension letters: O outputs, I inputs, G scales of an output, b bits of a code, W words of a row.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

from mlsys_lab.efficiency.formats import INT8, IntFormat, pack, unpack
from mlsys_lab.efficiency.formats.packing import WIDTHS
from mlsys_lab.efficiency.quantization.layers import PackedTensor
from mlsys_lab.efficiency.quantization.recipes import BY_TOKEN
from mlsys_lab.efficiency.quantization.scheme import Scheme
from mlsys_lab.efficiency.quantization.tensor import QuantizedTensor
from mlsys_lab.errors import InputError

METHOD, PACKED, INTEGERS = "compressed-tensors", "pack-quantized", "int-quantized"
"""`quant_method`, and the two supported formats: packed codes for weights alone, int8 for weights and activations."""
SCALE_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
WORD_BITS = 32


class Part(NamedTuple):
    """A tensor of a checkpoint: its shape, and the dtypes that it may have."""

    shape: tuple[int, ...]
    dtypes: Collection[torch.dtype]


@dataclass(frozen=True)
class Stored:
    """What a "quantization_config" says: the scheme of weights, and of activations if they are quantized too.

    InputError for schemes that are not stored in this format.
    """

    weights: Scheme
    activations: Scheme | None = None

    def __post_init__(self) -> None:
        format = self.weights.format
        if not isinstance(format, IntFormat) or format.bits not in (*WIDTHS, 8):
            expected = f"integers of {', '.join(map(str, WIDTHS))} or 8 bits"
            raise InputError("weights in this format are not stored quantized", got=format, expected=expected)
        if self.weights.strategy == "tensor" or self.weights.scale_dtype not in SCALE_DTYPES:
            got = f"a scale per {self.weights.strategy} in {self.weights.scale_dtype}"
            expected = "one per channel or group, in fp32, fp16 or bf16"
            raise InputError("weights with these scales are not stored quantized", got=got, expected=expected)
        if self.activations is None:
            return
        if (self.activations.format, self.activations.strategy) != (INT8, "channel"):
            got = f"{self.activations.format} per {self.activations.strategy}"
            expected = "int8 with a scale per token"
            raise InputError("activations in this format are not stored quantized", got=got, expected=expected)
        if self.weights.format != INT8 or self.weights.strategy != "channel":
            got = f"{format.bits} bits per {self.weights.strategy}"
            raise InputError("weights of another format than their activations", got=got, expected="int8 per channel")

    @property
    def format(self) -> str:
        """Name of the format in config.json."""
        return PACKED if self.activations is None else INTEGERS

    def config(self, ignored: Sequence[str]) -> dict[str, Any]:
        """The object for config.json; `ignored` are names of linear layers that are not quantized."""
        token = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
        group = {
            "targets": ["Linear"],
            "weights": {
                "num_bits": self.weights.format.bits,
                "type": "int",
                "symmetric": self.weights.symmetric,
                "strategy": self.weights.strategy,
                "group_size": self.weights.group_size,
                "dynamic": False,
            },
            "input_activations": None if self.activations is None else token,
            "output_activations": None,
        }
        return {
            "quant_method": METHOD,
            "format": self.format,
            "quantization_status": "compressed",
            "config_groups": {"group_0": group},
            "ignore": list(ignored),
            "kv_cache_scheme": None,
        }


def read_stored(config: object, name: str) -> Stored:
    """The scheme in the "quantization_config" of the checkpoint `name`; InputError for what is not supported here."""
    method = config.get("quant_method") if isinstance(config, Mapping) else None
    if not isinstance(config, Mapping) or method != METHOD:
        expected = f"{METHOD} with integers of 2 to 8 bits, as `mlsys-lab compress` writes it"
        raise InputError(f"{name}: weights quantised in this way are not loaded here", got=method, expected=expected)
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or len(groups) != 1:
        got = f"{len(groups)} config_groups" if isinstance(groups, Mapping) else f"config_groups {groups!r}"
        raise InputError(f"{name}: layers quantised in several ways are not loaded here", got=got, expected="one")
    (group,) = groups.values()
    format = _entry(group, "format") or config.get("format")
    if format not in (PACKED, INTEGERS):
        expected = f"{PACKED} or {INTEGERS}"
        raise InputError(f"{name}: weights in this format are not loaded here", got=format, expected=expected)
    for part in ("kv_cache_scheme", "sparsity_config", "transform_config"):
        if config.get(part):
            raise InputError(f"{name}: checkpoints with a {part} are not loaded here", got=config[part])
    weights = _read_scheme(_entry(group, "weights"), ("channel", "group"), name)
    activations = _entry(group, "input_activations")
    if activations is not None and not _read_scheme(activations, ("token",), name).symmetric:
        expected = "symmetric ones"
        raise InputError(f"{name}: activations with zero points are not computed here", expected=expected)
    stored = Stored(weights, None if activations is None else BY_TOKEN)
    if _entry(group, "output_activations") is not None or stored.format != format:
        got = f"{format}, input_activations {activations}"
        raise InputError(f"{name}: quantised activations of this kind are not loaded here", got=got)
    return stored


def _read_scheme(given: object, strategies: Collection[str], name: str) -> Scheme:
    """The scheme that an object of a config group describes."""
    bits, kind, strategy = (_entry(given, field) for field in ("num_bits", "type", "strategy"))
    known = (*WIDTHS, 8) if "group" in strategies else (8,)
    if bits not in known or kind != "int" or strategy not in strategies:
        got = f"{kind} of {bits} bits, a scale per {strategy}"
        expected = f"int of {', '.join(map(str, known))} bits, a scale per {' or '.join(strategies)}"
        raise InputError(f"{name}: codes of this kind are not loaded here", got=got, expected=expected)
    size = _entry(given, "group_size") if strategy == "group" else None
    is_symmetric = _entry(given, "symmetric") is not False  # which may be left out
    return Scheme(IntFormat(bits, is_symmetric), "channel" if size is None else "group", size)


def _entry(given: object, field: str) -> Any:
    return given.get(field) if isinstance(given, Mapping) else None


def store(tensor: QuantizedTensor, stored: Stored) -> dict[str, torch.Tensor]:
    """What is stored of a matrix (O, I), by the last part of the tensor's name."""
    if stored.format == INTEGERS:
        return {"weight": tensor.codes, "weight_scale": tensor.scale}
    bits = tensor.scheme.format.bits
    # uint8 wraps around, so the sum of a negative code and 2ᵇ⁻¹ is right
    unsigned = tensor.codes.view(torch.uint8) + (1 << bits - 1) if tensor.scheme.symmetric else tensor.codes
    parts = {
        "weight_packed": pack_words(unsigned, bits),
        "weight_scale": tensor.scale,
        "weight_shape": torch.tensor(tensor.codes.shape),
    }
    if tensor.zero_point is not None:
        parts["weight_zero_point"] = pack_words(tensor.zero_point.mT, bits).mT.contiguous()
    return parts


def stored_parts(stored: Stored, rows: int, inputs: int) -> dict[str, Part]:
    """What is stored of a matrix of that many outputs and inputs, by the last part of the tensor's name.

    InputError if groups do not divide the inputs.
    """
    bits = stored.weights.format.bits
    num_groups = stored.weights.split(torch.empty(rows, inputs, device="meta")).shape[1]
    parts: dict[str, Part] = {"weight_scale": Part((rows, num_groups), SCALE_DTYPES)}
    if stored.format == INTEGERS:
        return parts | {"weight": Part((rows, inputs), (torch.int8,))}
    parts["weight_packed"] = Part((rows, num_words(inputs, bits)), (torch.int32,))
    parts["weight_shape"] = Part((2,), (torch.int64, torch.int32))
    if not stored.weights.symmetric:
        parts["weight_zero_point"] = Part((num_words(rows, bits), num_groups), (torch.int32,))
    return parts


def restore(parts: Mapping[str, torch.Tensor], stored: Stored, rows: int, inputs: int) -> PackedTensor:
    """The matrix (O, I) of which `parts` were stored, the inverse of `store`, with codes that stay packed.

    InputError for scales that are not finite, a `weight_shape` of another matrix, and rows that do not fill whole
    bytes.
    """
    scale = parts["weight_scale"]
    scheme = replace(stored.weights, scale_dtype=scale.dtype)
    if not scale.isfinite().all():
        raise InputError("scales that are not finite", got="NaN or an infinity", expected="numbers")
    if stored.format == INTEGERS:
        return PackedTensor(parts["weight"], inputs, scale, None, scheme)
    if parts["weight_shape"].tolist() != [rows, inputs]:
        got = tuple(parts["weight_shape"].tolist())
        raise InputError("weight_shape is that of another matrix", got=got, expected=(rows, inputs))
    bits, zero_point = scheme.format.bits, None
    if inputs * bits % 8:
        raise InputError("rows of codes do not fill whole bytes", got=f"{inputs} inputs of {bits} bits")
    packed = parts["weight_packed"].view(torch.uint8)[:, : inputs * bits // 8]
    if scheme.symmetric:
        packed = _flip_signs(packed, bits)
    else:
        zero_point = unpack_words(parts["weight_zero_point"].mT, bits, rows).mT.contiguous()
    return PackedTensor(packed, inputs, scale, zero_point, scheme)


def _flip_signs(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes that were stored from 0, by adding 2ᵇ⁻¹, in two's complement: the highest bit of each is another.

    Packed bytes (O, n) -> (O, n), of 8 bits as int8.
    """
    if bits == 8:
        return (packed ^ 128).view(torch.int8)
    highest = pack(torch.full((8,), 1 << bits - 1, dtype=torch.uint8), bits)  # of 8 codes, in `bits` bytes
    return packed ^ highest.repeat(math.ceil(packed.shape[1] / bits))[: packed.shape[1]]


def num_words(count: int, bits: int) -> int:
    """Words of a row of codes."""
    return math.ceil(count * bits / WORD_BITS)


def pack_words(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack uint8 codes (O, I) into int32 words (O, W); the last one of a row is filled up with zeros."""
    padded = F.pad(codes, (0, -codes.shape[1] % WORD_BITS))
    packed = padded if bits == 8 else pack(padded, bits)
    used = 4 * num_words(codes.shape[1], bits)
    return packed[:, :used].clone(memory_format=torch.contiguous_format).view(torch.int32)


def unpack_words(words: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """Unpack the first `count` codes of each row of int32 words: (O, W) -> (O, I) in uint8."""
    packed = words.clone(memory_format=torch.contiguous_format).view(torch.uint8)
    padded = F.pad(packed, (0, -packed.shape[1] % (4 * bits)))  # to groups of 32 codes
    return (padded if bits == 8 else unpack(padded, bits))[:, :count].contiguous()
