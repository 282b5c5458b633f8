"""Published parameter counts: exact ones are met exactly, rounded ones to their last digit."""

import dataclasses
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from mlsys_lab.configs import PRESETS, TransformerConfig, preset, presets
from mlsys_lab.configs.presets import PUBLISHED_ACTIVE, WINDOWS, preset_omissions
from mlsys_lab.errors import InputError
from mlsys_lab.flops import parameters
from tests.leaves import numbers

CONFIGURATIONS = yaml.safe_load(Path(__file__).with_name("configurations.yml").read_text(encoding="utf-8"))

# Numbers of elements in the released safetensors files, as Hugging Face shows them; a tied head counts once.
RELEASED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "llama3.1-8b": 8_030_261_248,
    "llama3.1-70b": 70_553_706_496,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "bloom-176b": 176_247_271_424,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v2-lite": 15_706_484_224,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "phi3-mini": 3_821_079_552,
    "phi3-medium": 13_960_238_080,
    "gemma2-2b": 2_614_341_888,
    "gemma2-9b": 9_241_705_984,
    "gemma2-27b": 27_227_128_320,
    "gemma3-1b": 999_885_952,
    "gemma3-4b": 4_300_079_472,
    "gemma3-12b": 12_187_325_040,
    "gemma3-27b": 27_432_406_640,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "llama4-scout": 108_641_793_536,
    "llama4-maverick": 401_583_781_376,
    "deepseek-v3": 684_489_830_400,
}


def reads_pictures(d_model: int) -> int:
    """SigLIP So400m for 896 pixels beside Gemma 3: 27 layers of width 1152, patches of 14, a matrix to the decoder."""
    D, F, L, patches = 1152, 4304, 27, (896 // 14) ** 2
    layer = 4 * (D * D + D) + 2 * D * F + F + D + 2 * 2 * D
    return L * layer + 3 * 14 * 14 * D + D + patches * D + 2 * D + D * d_model + D


def reads_pictures_in_tiles() -> int:
    """Llama 4's tower for tiles of 336 pixels: 34 layers of width 1408, patches of 14, three matrices behind."""
    D, F, L, patches = 1408, 5632, 34, (336 // 14) ** 2
    layer = 4 * (D * D + D) + 2 * D * F + F + D + 2 * 2 * D
    ends = 3 * 14 * 14 * D + D + (patches + 1) * D + 2 * 2 * D
    return L * layer + ends + F * 4096 + 4096 * 4096 + 4096 * 5120


def predicts_a_second_token() -> int:
    """DeepSeek-V3's module: two norms, a matrix from two vectors to one, a layer, a norm, copies of embedding and head.

    Scales and the bias that balances experts are in fp32, apart.
    """
    D, V, F, E = 7168, 129_280, 2048, 256
    attention = 1536 * (D + 128 * 192) + D * (512 + 64) + 512 * 128 * 256 + 128 * 128 * D
    layer = attention + 1536 + 512 + 2 * D + E * D + (E + 1) * 3 * D * F
    return 2 * D + 2 * D * D + layer + D + 2 * V * D


BESIDE = {f"gemma3-{size}": reads_pictures(D) for size, D in (("4b", 2560), ("12b", 3840), ("27b", 5376))}
BESIDE |= dict.fromkeys(("llama4-scout", "llama4-maverick"), reads_pictures_in_tiles())
BESIDE["deepseek-v3"] = predicts_a_second_token()
"""What a release holds beside the decoder, worked out here."""

# (figure as printed, half of its last digit), in 10⁹.
PRINTED = {
    # Brown et al. 2020, table 2.1. "350M" is 356M to the million: printed to the nearest 50.
    "gpt3-125m": (0.125, 0.0005),
    "gpt3-350m": (0.350, 0.025),
    "gpt3-760m": (0.760, 0.005),
    "gpt3-1.3b": (1.3, 0.05),
    "gpt3-2.7b": (2.7, 0.05),
    "gpt3-6.7b": (6.7, 0.05),
    "gpt3-13b": (13.0, 0.5),
    "gpt3-175b": (175.0, 0.5),
    # Chowdhery et al. 2022, table 1.
    "palm-8b": (8.63, 0.005),
    "palm-62b": (62.50, 0.005),
    "palm-540b": (540.35, 0.01),  # 540.356: cut, not rounded
}


def sizes(config: TransformerConfig) -> dict[str, float]:
    """Every number of a configuration that says something of the model, by its path."""
    found = {where.removeprefix("."): value for where, value in numbers(config)}
    unused = set() if config.position == "rotary" else {"rope_theta", "partial_rotary_factor"}
    if config.rope_scaling and config.rope_scaling.kind == "linear":
        unused |= {f"rope_scaling.{name}" for name in ("low_freq_factor", "high_freq_factor", "original_context")}
    return {path: value for path, value in found.items() if path not in unused}


def with_size(config: TransformerConfig, path: str, value: float) -> TransformerConfig:
    """A copy with one size changed, not validated: what is not possible would be refused before it is noticed."""
    name, _, inner = path.partition(".")
    changed = object.__new__(type(config))
    for field in dataclasses.fields(config):
        object.__setattr__(changed, field.name, getattr(config, field.name))
    object.__setattr__(changed, name, with_size(getattr(config, name), inner, value) if inner else value)
    return changed


def is_as_published(name: str, config: TransformerConfig) -> bool:
    """Whether its number of parameters and the sizes that this does not show are those of the source."""
    total, said = parameters(config).total, CONFIGURATIONS[name]
    if name in RELEASED and total + BESIDE.get(name, 0) != RELEASED[name]:
        return False
    if name in PRINTED and abs(total / 1e9 - PRINTED[name][0]) > PRINTED[name][1]:
        return False
    usual = {"n_kv_heads": said["n_heads"]} | ({"partial_rotary_factor": 1} if config.position == "rotary" else {})
    return (usual | said).items() <= sizes(config).items()


@pytest.mark.parametrize("name", PRESETS)
def test_no_size_of_a_preset_can_be_wrong(name):
    config = preset(name)
    assert is_as_published(name, config)
    for path, value in sizes(config).items():
        for off in (value * 0.9, value * 1.1):
            wrong = with_size(config, path, max(1, round(off) + (off > value)) if isinstance(value, int) else off)
            assert wrong == config or not is_as_published(name, wrong), path


def test_every_preset_and_every_printed_figure_names_its_source():
    tables = tomllib.loads((Path(presets.__file__).with_name("presets.toml")).read_text(encoding="utf-8"))
    assert all(re.search(r"\b20\d\d\b", family["source"]) for family in tables["families"])
    assert all(row.source.startswith(("arXiv:", "https://")) for row in PUBLISHED_ACTIVE.values())
    assert PUBLISHED_ACTIVE.keys() <= {name for name, config in PRESETS.items() if config.experts}


def test_every_preset_has_a_published_count():
    assert RELEASED.keys() | PRINTED.keys() == CONFIGURATIONS.keys() == PRESETS.keys()
    assert all(name == config.name for name, config in PRESETS.items())


@pytest.mark.parametrize("name", RELEASED)
def test_released_counts_are_met_exactly(name):
    assert parameters(preset(name)).total + BESIDE.get(name, 0) == RELEASED[name]


@pytest.mark.parametrize("name", PRINTED)
def test_printed_counts_are_met_to_their_last_digit(name):
    printed, half = PRINTED[name]
    assert abs(parameters(preset(name)).total / 1e9 - printed) <= half


PRINTED_ACTIVE = {
    "mixtral-8x7b": (12.9, 0.05),  # https://mistral.ai/news/mixtral-of-experts
    "mixtral-8x22b": (39, 0.5),  # https://mistral.ai/news/mixtral-8x22b
    "qwen3-30b-a3b": (3.3, 0.06),  # arXiv:2505.09388, section 2; 3.35, cut
    "qwen3-235b-a22b": (22, 0.5),
    "llama4-scout": (17, 0.5),  # https://ai.meta.com/blog/llama-4-multimodal-intelligence/
    "llama4-maverick": (17, 0.5),
    "deepseek-v3": (37, 0.5),  # arXiv:2412.19437, abstract
    "deepseek-v2": (21, 0.5),  # arXiv:2405.04434, abstract
    "gpt-oss-20b": (3.61, 0.005),  # arXiv:2508.10925, table 1
    "gpt-oss-120b": (5.13, 0.005),
}


@pytest.mark.parametrize("name", PUBLISHED_ACTIVE)
def test_active_parameters_are_the_publisher_s_by_its_convention(name):
    printed, half = PRINTED_ACTIVE[name]
    count = parameters(preset(name))
    billions, convention, _ = PUBLISHED_ACTIVE[name]
    assert billions == printed and PRINTED_ACTIVE.keys() == PUBLISHED_ACTIVE.keys()
    own = {"all parameters": count.active, "without the embedding": count.active - count.embedding}[convention]
    assert abs(own / 1e9 - printed) <= half


def test_active_parameters_of_deepseek_v3():
    """README_WEIGHTS.md beside the weights: 36.6B, with the head and without the embedding; the paper rounds to 37B."""
    count = parameters(preset("deepseek-v3"))
    assert (count.active - count.embedding) / 1e9 == pytest.approx(36.6, abs=0.05)


@pytest.mark.parametrize(
    ("name", "printed", "tolerance"),
    [  # model cards of Qwen2.5; from 14B on they are up to 1 % less than the released matrices hold
        ("qwen2.5-0.5b", 0.36, 0.005),
        ("qwen2.5-1.5b", 1.31, 0.005),
        ("qwen2.5-3b", 2.77, 0.005),
        ("qwen2.5-7b", 6.53, 0.005),
        ("qwen2.5-14b", 13.1, 0.131),
        ("qwen2.5-32b", 31.0, 0.31),
        ("qwen2.5-72b", 70.0, 0.70),
    ],
)
def test_parameters_without_embeddings(name, printed, tolerance):
    assert abs(parameters(preset(name)).non_embedding / 1e9 - printed) <= tolerance


@pytest.mark.parametrize("name", ["LLaMA 2 70B", "llama-2-70b", "Llama2_70B"])
def test_names_are_found_as_people_write_them(name):
    assert preset(name).name == "llama2-70b"


def test_a_model_without_attention_is_refused_in_a_line():
    for name in ("mamba-2.8b", "Nemotron-H 8B", "Qwen3-Next-80B-A3B", "LFM2-1.2B"):
        with pytest.raises(InputError, match=f"layers without keys and values are not counted here: got '{name}'"):
            preset(name)


def test_windows_are_told_where_a_preset_has_them():
    assert preset_omissions("Gemma 3 4B") == ("attention reaches back 1024 tokens only in 29 of 34 layers",)
    assert preset_omissions("mistral-7b") == ("attention reaches back 4096 tokens only",)
    assert preset_omissions("llama3-8b") == ()
    assert WINDOWS.keys() <= PRESETS.keys()
    assert all(tokens < preset(name).context for name, (tokens, _) in WINDOWS.items())


def test_an_unknown_name_comes_with_near_ones():
    with pytest.raises(InputError, match=r"no such preset: got 'lama3-8b'.* did you mean 'llama3-8b'"):
        preset("lama3-8b")
    with pytest.raises(InputError, match="did you mean 'mixtral-8x7b' or 'mixtral-8x22b'"):
        preset("Mixtral")
    with pytest.raises(InputError) as caught:
        preset("")
    assert "help" not in str(caught.value) and "\n" not in str(caught.value)
