"""The format of compressed-tensors: packed as that library packs, read by it, and what it does not have is refused."""

from __future__ import annotations

import pytest
import torch
from compressed_tensors.compressors import PackedQuantizationCompressor
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from compressed_tensors.quantization import QuantizationConfig

from mlsys_lab.efficiency.formats import E2M1, INT4, INT8, NF4, UINT4, IntFormat
from mlsys_lab.efficiency.quantization import QuantizedLinear, Scheme, quantize_tensor
from mlsys_lab.efficiency.quantization.compressed_tensors import (
    Stored,
    pack_words,
    read_stored,
    restore,
    store,
    unpack_words,
)
from mlsys_lab.efficiency.quantization.recipes import BY_TOKEN
from mlsys_lab.errors import InputError

BITS = (2, 3, 4, 6, 8)
SCHEMES = [
    Scheme(IntFormat(bits, signed), strategy, 8 if strategy == "group" else None, scale_dtype=torch.float32)
    for bits in BITS
    for signed in (True, False)
    for strategy in ("channel", "group")
]


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("count", [1, 7, 32, 43])
def test_words_are_those_of_the_library(bits, count):
    codes = torch.randint(1 << bits, (5, count), dtype=torch.uint8, generator=torch.Generator().manual_seed(bits))
    signed = (codes.int() - (1 << bits - 1)).to(torch.int8)
    words = pack_words(codes, bits)
    assert torch.equal(words, pack_to_int32(signed, bits))
    assert torch.equal(unpack_words(words, bits, count), codes)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_the_library_reads_a_matrix_as_we_do(scheme):
    weight = torch.randn(40, 24, generator=torch.Generator().manual_seed(0))  # zero points of 2 bits fill 3 words
    ours = quantize_tensor(weight, scheme)
    stored = Stored(scheme)
    (group,) = QuantizationConfig.model_validate(stored.config([])).config_groups.values()
    theirs = PackedQuantizationCompressor.decompress(store(ours, stored), group)["weight"]
    assert torch.equal(theirs, ours.dequantize())
    again = QuantizedLinear.from_packed(restore(store(ours, stored), stored, 40, 24))
    assert torch.equal(again.packed, QuantizedLinear(ours).packed) and again.scheme == scheme
    assert torch.equal(again.weight(), ours.dequantize())


@pytest.mark.parametrize("stored", [*map(Stored, SCHEMES), Stored(Scheme(INT8), BY_TOKEN)], ids=str)
def test_a_configuration_is_read_as_it_was_written_by_us_and_by_the_library(stored):
    config = stored.config(["lm_head"])
    dumped = QuantizationConfig.model_validate(config).model_dump()
    for one in (config, dumped):
        read = read_stored(one, "folder")
        assert read.activations == stored.activations
        assert (read.weights.format, read.weights.strategy, read.weights.group_size) == (
            stored.weights.format,
            stored.weights.strategy,
            stored.weights.group_size,
        )


@pytest.mark.parametrize(
    ("scheme", "activations", "words"),
    [
        (Scheme(NF4, "group", 8), None, "weights in this format are not stored quantized: got CodeBook"),
        (Scheme(E2M1, "group", 8), None, "weights in this format are not stored quantized"),
        (Scheme(IntFormat(5)), None, "expected integers of 2, 3, 4, 6 or 8 bits"),
        (Scheme(INT4, "tensor"), None, "got a scale per tensor in torch.float16, expected one per channel or group"),
        (
            Scheme(INT8),
            Scheme(INT8, "tensor"),
            "activations in this format are not stored .* per tensor",
        ),
        (Scheme(INT4, "group", 8), BY_TOKEN, "got 4 bits per group, expected int8 per channel"),
        (Scheme(UINT4), BY_TOKEN, "weights of another format than their activations"),
    ],
)
def test_a_scheme_that_the_format_has_not_is_one_line(scheme, activations, words):
    with pytest.raises(InputError, match=words) as raised:
        Stored(scheme, activations)
    assert "\n" not in str(raised.value)


def changed(**fields):
    """A configuration with other entries, of its group's weights if the name begins with `weights_`."""
    config = Stored(Scheme(INT4, "group", 32)).config([])
    (group,) = config["config_groups"].values()
    for name, value in fields.items():
        where = group["weights"] if name.startswith("weights_") else group if name in group else config
        where[name.removeprefix("weights_")] = value
    return config


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"quant_method": "gptq", "bits": 4}, "folder: .* not loaded here: got gptq, expected compressed-tensors with"),
        ({"quant_method": "awq"}, "got awq, expected compressed-tensors with integers of 2 to 8 bits"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "got bitsandbytes, expected compressed-tensors"),
        ({"quant_method": "fp8"}, "got fp8, expected compressed-tensors"),
        ([4], "not loaded here: expected compressed-tensors"),
        (changed(format="nvfp4-pack-quantized"), "got nvfp4-pack-quantized, expected pack-quantized or int-quantized"),
        (changed(config_groups={"a": {}, "b": {}}), "several ways are not loaded here: got 2 config_groups"),
        (changed(config_groups=None), "got config_groups None, expected one"),
        (
            changed(config_groups={"a": 3}),
            "got None of None bits, a scale per None, expected int of 2, 3, 4",
        ),
        (changed(weights_type="float"), "got float of 4 bits, a scale per group, expected int"),
        (changed(weights_num_bits=5), "got int of 5 bits"),
        (changed(weights_strategy="block"), "a scale per block, expected .* a scale per channel or group"),
        (changed(weights_group_size="many"), "group_size"),
        (changed(kv_cache_scheme={"num_bits": 8}), "checkpoints with a kv_cache_scheme are not loaded here"),
        (changed(output_activations={"num_bits": 8}), "quantised activations of this kind are not loaded here"),
        (changed(format="int-quantized"), "got int-quantized, input_activations None"),
        (
            changed(input_activations={"num_bits": 8, "type": "int", "strategy": "tensor"}),
            "got int of 8 bits, a scale per tensor, expected int of 8 bits, a scale per token",
        ),
        (
            changed(input_activations={"num_bits": 8, "type": "int", "strategy": "token", "symmetric": False}),
            "activations with zero points are not computed here: expected symmetric ones",
        ),
    ],
)
def test_a_checkpoint_that_is_not_supported_is_one_line(config, words):
    with pytest.raises(InputError, match=words) as raised:
        read_stored(config, "folder")
    assert "\n" not in str(raised.value)
