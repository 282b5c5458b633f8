"""Random transformers as plain data, most of them possible: what tests feed to Python and JavaScript alike."""

from __future__ import annotations

import random
from dataclasses import asdict
from typing import Any

from mlsys_lab.configs import Experts, LatentAttention, RotaryScaling, TransformerConfig
from mlsys_lab.configs.presets import PRESETS
from mlsys_lab.errors import InputError


def random_config(rng: random.Random) -> dict[str, Any]:
    """A preset's sizes, or sizes drawn at random; in one of six, one number is put wrong."""
    config = asdict(rng.choice(list(PRESETS.values()))) if rng.random() < 0.3 else _drawn(rng)
    if rng.random() < 1 / 6:
        spoil(rng, config)
    return config


def _drawn(rng: random.Random) -> dict[str, Any]:
    groups, per_group, head_dim = rng.choice([1, 2, 3, 8]), rng.choice([1, 1, 4, 7]), rng.choice([2, 64, 80, 128])
    heads, norm = groups * per_group, rng.choice(["rms", "layer"])
    config: dict[str, Any] = {
        "name": "drawn",
        "n_layers": rng.randint(1, 130),
        "d_model": heads * head_dim if rng.random() < 0.7 else rng.randint(1, 20_000),
        "n_heads": heads,
        "d_ff": rng.randint(1, 60_000),
        "vocab_size": rng.choice([2, 997, 50_257, 256_000]),
        "context": rng.choice([1, 2_048, 131_072]),
        "n_kv_heads": rng.choice([groups, groups, 0]),
        "head_dim": head_dim,
        "position": rng.choice(["learned", "rotary", "alibi"]),
        "norm": norm,
        "activation": rng.choice(["swiglu", "geglu", "gelu", "gelu_tanh", "relu"]),
        **{name: rng.random() < 0.5 for name in ("qkv_bias", "out_bias", "mlp_bias", "qk_norm", "embedding_norm")},
        **{
            name: rng.random() < 0.3
            for name in ("parallel_blocks", "post_norms", "attention_sinks", "router_bias", "tied")
        },
        "norm_bias": norm == "layer" and rng.random() < 0.5,
        "rope_theta": 1e4,
        "norm_eps": 1e-5,
        "experts": None,
        "latent": None,
        "rope_scaling": None,
    }
    own = random.Random(config["d_ff"])
    config |= {name: own.random() < 0.8 for name in ("norm_weight", "pre_norms")}
    config["norm_bias"] &= config["norm_weight"]
    config["head_bias"] = not config["tied"] and own.random() < 0.5
    if rng.random() < 0.4:
        count = rng.randint(1, 256)
        config["experts"] = {
            "count": count,
            "active": rng.randint(1, min(count, 8)),
            "d_ff": rng.randint(1, 16_384),
            "shared": rng.choice([0, 0, 1, 2]),
            "dense_layers": rng.choice([0, 0, config["n_layers"] - 1]),
            "max_groups": rng.choice([0, 0, 1, 4]),
        }
    if rng.random() < 0.2:
        config |= {"position": "rotary", "qkv_bias": False, "qk_norm": False, "n_kv_heads": 0, "head_dim": 0}
        config["latent"] = {
            "q_rank": rng.choice([None, 1536]),
            "kv_rank": rng.choice([1, 512]),
            "nope_dim": rng.choice([1, 128]),
            "rope_dim": 64,
            "v_dim": rng.choice([64, 128]),
        }
    config["qk_norm_all_heads"] = config["qk_norm"] and own.random() < 0.5
    return config


def spoil(rng: random.Random, config: dict[str, Any]) -> None:
    """Put one number wrong, in a way that a form allows."""
    names = ["n_layers", "d_model", "n_heads", "d_ff", "vocab_size", "n_kv_heads", "head_dim"]
    config[rng.choice(names)] = rng.choice([0, -1, 5, 11])
    if config["experts"] and rng.random() < 0.5:
        config["experts"][rng.choice(["count", "active", "d_ff", "shared", "dense_layers", "max_groups"])] = rng.choice(
            [0, -3, 200]
        )


def try_config(given: dict[str, Any]) -> TransformerConfig | str:
    """The config of this data, or the line that refuses it."""
    try:
        experts = Experts(**given["experts"]) if given["experts"] else None
        latent = LatentAttention(**given["latent"]) if given["latent"] else None
        scaling = RotaryScaling(**given["rope_scaling"]) if given["rope_scaling"] else None
        return TransformerConfig(**{**given, "experts": experts, "latent": latent, "rope_scaling": scaling})
    except InputError as error:
        return str(error)
