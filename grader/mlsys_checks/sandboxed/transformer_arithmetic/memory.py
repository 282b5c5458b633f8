"""Calls of task 4: bytes of states and activations, and the fewest devices."""

from __future__ import annotations

from functools import partial
from typing import Any

from mlsys_checks.sandboxed.repeated_calls import call_before, call_twice
from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.transformer_arithmetic.given import call_with_given, hand_answers
from mlsys_checks.sandboxed.transformer_arithmetic.models import RECOMPUTE, config_of, other_config, other_kind
from mlsys_checks.sandboxed.values import encode_text, whole, wholes

DEFAULTS = {"zero_stage": 3, "tensor": 1, "recompute": "none", "limit": 4096}
"""What `fewest_devices` takes where an argument is left out, as the call does where a case has just this."""
KINDS = ("weights", "gradients", "optimizer")


def state_bytes(artifact: Any, arrays: Arrays) -> Arrays:
    """Bytes of weights, gradients and optimiser states in each stage of ZeRO."""
    got = {}
    n_parameters, data, tensor = (int(arrays[name]) for name in ("n_parameters", "data", "tensor"))
    for stage in range(4):
        sizes = (n_parameters, stage, data, tensor)
        call_before(artifact.state_bytes, sizes, (n_parameters + 100, (stage + 1) % 4, data + 1, tensor + 1))
        held = call_twice("state_bytes", partial(artifact.state_bytes, *sizes))
        for kind, size in wholes("state_bytes", held, KINDS).items():
            got[f"{kind} in stage {stage}"] = size
    return got


def activation_bytes(artifact: Any, arrays: Arrays) -> Arrays:
    """Bytes of activations, without and with recomputation."""
    config, other = config_of(artifact, arrays["model"]), other_config(artifact, arrays["model"])
    batch, tokens, tensor = (int(arrays[name]) for name in ("batch", "tokens", "tensor"))
    got = {}
    for kind in RECOMPUTE:
        asked = (config, tokens, batch, kind, tensor)
        call_before(artifact.activation_bytes, asked, (other, 2 * tokens, batch + 1, other_kind(kind), 2 * tensor))
        got[f'recompute="{kind}"'] = whole(f"activation_bytes, {kind}", artifact.activation_bytes(*asked))
    return got


def write_call(memory_bytes: int) -> str:
    """A call of `fewest_devices` for so much memory, as code: the name of its answer."""
    return f"fewest_devices(config, tokens, {memory_bytes}, **plan)"


def fewest_devices(artifact: Any, arrays: Arrays) -> Arrays:
    """The fewest devices, or None, at each of the memories that are asked about."""
    config, other = config_of(artifact, arrays["model"]), other_config(artifact, arrays["model"])
    tokens, recompute, found = int(arrays["tokens"]), RECOMPUTE[int(arrays["recompute"])], {}
    stage, tensor, limit = (int(arrays[name]) for name in ("zero_stage", "tensor", "limit"))
    plan = {"zero_stage": stage, "tensor": tensor, "recompute": recompute, "limit": limit}
    told = {name: value for name, value in plan.items() if value != DEFAULTS.get(name)}
    memories = arrays["memory_bytes"].tolist()

    def planned(config: Any, tokens: int, memory_bytes: int, *plan_of: Any) -> Any:
        return artifact.fewest_devices(config, tokens, memory_bytes, **dict(zip(plan, plan_of, strict=True)))

    others = (other, 2 * tokens, 2 * memories[0], (stage + 1) % 4, 2 * tensor, other_kind(recompute), limit // 2)
    with hand_answers(artifact, arrays, config):
        call_before(planned, (config, tokens, memories[0], *plan.values()), others)
    for memory_bytes in memories:
        call = partial(artifact.fewest_devices, config, tokens, memory_bytes, **told)
        least = call_with_given(call, artifact, arrays, config)
        found[write_call(memory_bytes)] = encode_text(least if least is None else int(whole("fewest_devices", least)))
    return found
