"""Every figure in a table of `mlsys_lab.flops` or `mlsys_lab.configs`, typed here from its source, not the package."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest

from mlsys_lab import configs, flops
from mlsys_lab.configs.presets import PRESETS, preset
from mlsys_lab.flops import dit
from tests.leaves import numbers

CONSTANTS = {
    "bounds": {
        "NETWORK_BYTES_PER_S": 400e9 / 8,  # NVIDIA DGX H100: a ConnectX-7 of 400 Gb/s a GPU
        # DGX and HGX boards; "TPU Pod size" of docs.cloud.google.com/tpu/docs/v4, v5e, v5p, v6e.
        "NODE_DEVICES": {"gpu": 8, "cpu": 1, "TPU v4": 4096, "TPU v5e": 256, "TPU v5p": 8960, "TPU v6e": 256},
    },
    "dit": {"FREQUENCIES": 256},  # github.com/facebookresearch/DiT, models.py: frequency_embedding_size
    "memory": {
        "BYTES": {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "fp4": 0.5, "int4": 0.5},
        "ZERO_STAGES": (0, 1, 2, 3),
        "RECIPES": {
            "mixed16": {"weights": 2, "gradients": 2, "master": 4, "moments": 8},
            "mixed18": {"weights": 2, "gradients": 4, "master": 4, "moments": 8},
            "mixed20": {"weights": 2, "gradients": 6, "master": 4, "moments": 8},
            "fp32": {"weights": 4, "gradients": 4, "master": 0, "moments": 8},
            "adam8bit": {"weights": 2, "gradients": 2, "master": 4, "moments": 2},
            "bf16": {"weights": 2, "gradients": 2, "master": 0, "moments": 4},
            "fp8": {"weights": 1, "gradients": 4, "master": 4, "moments": 4},  # arXiv:2412.19437, §3.3
        },
    },
    "number_formats": {  # IEEE 754; OCP's specifications of 8-bit floating point and of microscaling
        "FLOAT_FORMATS": {
            "fp32": {"exponent_bits": 8, "mantissa_bits": 23},
            "bf16": {"exponent_bits": 8, "mantissa_bits": 7},
            "fp16": {"exponent_bits": 5, "mantissa_bits": 10},
            "fp8 e5m2": {"exponent_bits": 5, "mantissa_bits": 2},
            "fp8 e4m3": {"exponent_bits": 4, "mantissa_bits": 3},
            "fp6 e3m2": {"exponent_bits": 3, "mantissa_bits": 2},
            "fp6 e2m3": {"exponent_bits": 2, "mantissa_bits": 3},
            "fp4 e2m1": {"exponent_bits": 2, "mantissa_bits": 1},
        }
    },
    "unet": {
        # github.com/openai/guided-diffusion, README, flags of the model for 256 pixels; a mean and a variance come out.
        "ADM": {
            "size": 256,
            "channels": 3,
            "width": 256,
            "multipliers": (1, 1, 2, 2, 4, 4),
            "blocks": 2,
            "attention_sizes": (32, 16, 8),
            "head_dim": 64,
            "classes": 1000,
            "out_channels": 6,
        }
    },
}

WINDOWS = """
mistral-7b       4096  32 of 32  sliding_window, in every layer
phi3-mini        2047  32 of 32  sliding_window of the versions for 4,096 tokens, in every layer
phi3-medium      2047  40 of 40
gemma2-2b        4096  13 of 26  sliding_window, in every second layer
gemma2-9b        4096  21 of 42
gemma2-27b       4096  23 of 46
gemma3-1b         512  22 of 26  sliding_window, in all but every sixth layer
gemma3-4b        1024  29 of 34
gemma3-12b       1024  40 of 48
gemma3-27b       1024  52 of 62
gpt-oss-20b       128  12 of 24  sliding_window, "sliding_attention" in every second place of layer_types
gpt-oss-120b      128  18 of 36
llama4-scout     8192  36 of 48  attention_chunk_size, in all but every fourth layer, which has no positions
llama4-maverick  8192  36 of 48
"""
"""Tokens and layers with a window, of how many layers: the released config.json."""

ELSEWHERE = {
    "architectures": {"DEFAULTS"},  # tests/models/test_loading.py, by `transformers` itself
    "presets": {"PRESETS", "_TABLES", "WINDOWS", "PUBLISHED_ACTIVE"},  # test_presets.py, and WINDOWS above
    "published_runs": {"PUBLISHED_RUNS"},
}
SETTINGS = {
    "defaults": {"SEQUENCE_TOKENS", "PROMPT", "TTFT_S", "SEQUENCES", "SERVING_MEMORY", "TRAINING_EFFICIENCY"}
    | {"SERVING_EFFICIENCY"},
    "einsum": {"MOST_OPERANDS"},
    "fitting": {"MOST_CHANGES"},
    "offload": {"WORKING_LAYERS"},
    "planner": {"LEAST_CONTEXT_TOKENS", "MOST_MICRO_BATCH", "INTERLEAVES"},
}
"""What is a choice of ours and no figure of anybody: the modules' own tests say what it does."""


MODULES = {
    module.name: importlib.import_module(f"{package.__name__}.{module.name}")
    for package in (configs, flops)
    for module in pkgutil.iter_modules(package.__path__)
}


def constants() -> dict[str, set[str]]:
    """Names in capitals that a module of the packages defines and that hold numbers, by module."""
    found: dict[str, set[str]] = {}
    for name, module in MODULES.items():
        source = inspect.getsource(module)
        names = {constant for constant in vars(module) if constant.isupper() and f"\n{constant}" in source}
        if held := {constant for constant in names if dict(numbers(getattr(module, constant)))}:
            found[name] = held
    return found


def test_every_constant_is_here() -> None:
    typed = {module: set(names) for module, names in CONSTANTS.items()}
    for apart in (ELSEWHERE, SETTINGS):
        for module, names in apart.items():
            typed[module] = typed.get(module, set()) | names
    assert constants() == typed


@pytest.mark.parametrize("place", [(module, name) for module, names in CONSTANTS.items() for name in names])
def test_every_number_is_the_printed_one(place: tuple[str, str]) -> None:
    module, name = place
    held = getattr(MODULES[module], name)
    assert dict(numbers(held)) == dict(numbers(CONSTANTS[module][name]))


def test_every_window_is_that_of_the_published_configuration() -> None:
    rows = [line.split() for line in WINDOWS.strip().splitlines()]
    held = MODULES["presets"].WINDOWS
    assert {name: tuple(window) for name, window in held.items()} == {
        name: (int(tokens), int(layers)) for name, tokens, layers, *_ in rows
    }
    assert all(preset(name).n_layers == int(whole) for name, _, _, _, whole, *_ in rows)
    assert held.keys() <= PRESETS.keys()


@pytest.mark.parametrize(
    ("name", "layers", "width", "heads"),
    [("S", 12, 384, 6), ("B", 12, 768, 12), ("L", 24, 1024, 16), ("XL", 28, 1152, 16)],
)
def test_sizes_of_dit(name: str, layers: int, width: int, heads: int) -> None:
    """Table 1 of arXiv:2212.09748; latents of four channels, of which eight come out, for 1,000 classes."""
    for patch in (2, 4, 8):
        config = dit.preset(f"{name}/{patch}")
        assert (config.n_layers, config.d_model, config.n_heads, config.patch) == (layers, width, heads, patch)
        assert (config.size, config.channels, config.out_channels, config.classes) == (32, 4, 8, 1000)
    assert dit.preset(f"{name}/2", 64).size == 64
