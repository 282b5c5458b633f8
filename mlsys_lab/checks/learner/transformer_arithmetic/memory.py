"""Calls of task 4: bytes of states and activations, and the fewest devices."""

from __future__ import annotations

from functools import partial
from typing import Any

from mlsys_lab.checks.learner.spec import Arrays
from mlsys_lab.checks.learner.transformer_arithmetic.given import ask, ask_before, ask_twice
from mlsys_lab.checks.learner.transformer_arithmetic.models import RECOMPUTE, config_of, other_config
from mlsys_lab.checks.learner.values import encode_text, whole, wholes

DEFAULTS = {"zero_stage": 3, "tensor": 1, "recompute": "none"}
"""What `fewest_devices` takes where an argument is left out, as the call does where a case has just this."""
KINDS = ("weights", "gradients", "optimizer")


def state_bytes(artifact: Any, arrays: Arrays) -> Arrays:
    """Bytes of weights, gradients and optimiser states in each stage of ZeRO."""
    got = {}
    for stage in range(4):
        sizes = (int(arrays[name]) for name in ("data", "tensor"))
        held = ask_twice("state_bytes", partial(artifact.state_bytes, int(arrays["n_parameters"]), stage, *sizes))
        for kind, size in wholes("state_bytes", held, KINDS).items():
            got[f"{kind} in stage {stage}"] = size
    return got


def activation_bytes(artifact: Any, arrays: Arrays) -> Arrays:
    """Bytes of activations, without and with recomputation."""
    config, other = config_of(artifact, arrays["model"]), other_config(artifact, arrays["model"])
    batch, tokens, tensor = (int(arrays[name]) for name in ("batch", "tokens", "tensor"))
    ask_before(
        partial(artifact.activation_bytes, config, tensor, 1, "none", tensor),
        *(partial(artifact.activation_bytes, other, tokens, batch, kind, tensor) for kind in RECOMPUTE),
    )
    return {
        f'recompute="{recompute}"': whole(f"activation_bytes, {recompute}", held)
        for recompute in RECOMPUTE
        for held in [artifact.activation_bytes(config, tokens, batch, recompute, tensor)]
    }


def write_call(memory_bytes: int) -> str:
    """A call of `fewest_devices` for so much memory, as code: the name of its answer."""
    return f"fewest_devices(config, tokens, {memory_bytes}, **plan)"


def fewest_devices(artifact: Any, arrays: Arrays) -> Arrays:
    """The fewest devices, or None, at each of the memories that are asked about."""
    config, found = config_of(artifact, arrays["model"]), {}
    recompute = RECOMPUTE[int(arrays["recompute"])]
    plan = {name: int(arrays[name]) for name in ("zero_stage", "tensor", "limit")} | {"recompute": recompute}
    told = {name: value for name, value in plan.items() if value != DEFAULTS.get(name)}
    for memory_bytes in arrays["memory_bytes"].tolist():
        call = partial(artifact.fewest_devices, config, int(arrays["tokens"]), memory_bytes, **told)
        least = ask(call, artifact, arrays, config)
        found[write_call(memory_bytes)] = encode_text(least if least is None else int(whole("fewest_devices", least)))
    return found
