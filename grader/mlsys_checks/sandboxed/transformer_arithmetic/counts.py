"""Calls of tasks 2 and 3: parameters, matrix products, FLOPs."""

from __future__ import annotations

from functools import partial
from typing import Any

from mlsys_checks.sandboxed.repeated_calls import call_before, call_twice
from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.transformer_arithmetic.given import call_with_given
from mlsys_checks.sandboxed.transformer_arithmetic.models import config_of, other_config, product_rows, rows_as_text
from mlsys_checks.sandboxed.values import count, number, wholes

FEW_SEQUENCES = 9
"""What training is asked about before: code that answers for itself may go through sequences one by one."""
PARTS = ("embedding", "position", "attention", "mlp", "norm", "head")


def parameters(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `parameter_table`: how many parameters each part has."""
    config, other = config_of(artifact, arrays["model"]), other_config(artifact, arrays["model"])
    call_before(artifact.parameter_table, (config,), (other,))
    table = call_twice("parameter_table", partial(artifact.parameter_table, config))
    return wholes("parameter_table", table, PARTS)


def forward_products(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `forward_products`: the products of each name, as text."""
    config, other = config_of(artifact, arrays["model"]), other_config(artifact, arrays["model"])
    batch, tokens = int(arrays["batch"]), int(arrays["tokens"])
    call_before(artifact.forward_products, (config, batch, tokens), (other, batch + 1, tokens + 1))
    listed = call_twice("forward_products", partial(artifact.forward_products, config, batch, tokens))
    return {name: rows_as_text(rows) for name, rows in product_rows("forward_products", listed).items()}


def training_flops(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `training_flops`: FLOPs of a training run."""
    config, other = config_of(artifact, arrays["model"]), other_config(artifact, arrays["model"])
    tokens = int(arrays["tokens"])
    few = min(tokens, FEW_SEQUENCES * config.context)
    call_before(artifact.training_flops, (config, few), (other, few + config.context))
    flops = call_with_given(partial(artifact.training_flops, config, tokens), artifact, arrays, config)
    return {"training_flops": count("training_flops", flops)}


def attention_share(artifact: Any, arrays: Arrays) -> Arrays:
    """Attention's share at a length, and the length at which it is one half."""
    config, other = config_of(artifact, arrays["model"]), other_config(artifact, arrays["model"])
    tokens = int(arrays["tokens"])
    call_before(artifact.attention_share, (config, tokens), (other, tokens + 1))
    call_before(artifact.attention_crossover, (config,), (other,))
    share = call_with_given(partial(artifact.attention_share, config, tokens), artifact, arrays, config)
    crossover = call_with_given(partial(artifact.attention_crossover, config), artifact, arrays, config)
    return {
        "attention_share": number("attention_share", share),
        "attention_crossover": number("attention_crossover", crossover),
    }
