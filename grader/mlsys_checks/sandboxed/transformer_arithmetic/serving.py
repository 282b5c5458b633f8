"""Calls of task 6: the cache, the work of a decode step, and the machine that is cheapest."""

from __future__ import annotations

from functools import partial
from typing import Any

from mlsys_checks.sandboxed.inputs import unchanged
from mlsys_checks.sandboxed.repeated_calls import call_before
from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.transformer_arithmetic.given import call_with_given
from mlsys_checks.sandboxed.transformer_arithmetic.models import config_of, other_config
from mlsys_checks.sandboxed.values import describe_value, encode_text, number, pair, whole
from mlsys_lab.errors import InputError

BOUNDS = ("memory", "compute")
AS_FLOATS = 4
"""Memories that are asked about as floats too: three that are full and one that lacks a byte."""
FRACTION = 0.5
"""What the last of these memories lacks, in bytes."""


def memories(arrays: Arrays) -> list[int | float]:
    """The memories that are asked about: whole numbers of bytes, the first ones as floats too, the last a fraction."""
    whole_bytes = arrays["memory_bytes"].tolist()
    return [*whole_bytes, *map(float, whole_bytes[:AS_FLOATS]), whole_bytes[0] - FRACTION]


def write_call(memory_bytes: float) -> str:
    """A call of `largest_batch` for so much memory, as code: the name of its answer."""
    return f"largest_batch(config, tokens, {memory_bytes})"


def serving_memory(artifact: Any, arrays: Arrays) -> Arrays:
    """Bytes of the cache, and the largest batches in several memories."""
    config, other = config_of(artifact, arrays["model"]), other_config(artifact, arrays["model"])
    batch, tokens = int(arrays["batch"]), int(arrays["tokens"])
    call_before(artifact.kv_cache_bytes, (config, batch, tokens), (other, batch + 1, tokens + 1))
    cache = artifact.kv_cache_bytes(config, batch, tokens)
    found = {"kv_cache_bytes": whole("kv_cache_bytes", cache)}
    asked = memories(arrays)
    call_before(artifact.largest_batch, (config, tokens, asked[0]), (other, tokens + 1))
    for memory_bytes in asked:
        batch = call_with_given(partial(artifact.largest_batch, config, tokens, memory_bytes), artifact, arrays, config)
        found[write_call(memory_bytes)] = whole("largest_batch", batch)
    return found


def decode_work(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `decode_work`: FLOPs and bytes of one decode step."""
    config, other = config_of(artifact, arrays["model"]), other_config(artifact, arrays["model"])
    batch, tokens = int(arrays["batch"]), int(arrays["tokens"])
    call_before(artifact.decode_work, (config, batch, tokens), (other, batch + 1, tokens + 1))
    work = call_with_given(partial(artifact.decode_work, config, batch, tokens), artifact, arrays, config)
    flops, moved = pair("decode_work", work, "FLOPs", "bytes")
    return {"FLOPs": whole("FLOPs", flops), "bytes": whole("bytes", moved)}


def name_machine(i: int) -> str:
    """What machine number i of a case is called."""
    return f"machine {i}"


def _make_machines(artifact: Any, arrays: Arrays, *, speed: float = 1.0) -> list[Any]:
    """The machines of a case, or others of the same names, so much faster at memory and at computing."""
    rows = (arrays["machines"] * (1, speed, speed, 1)).tolist()
    return [artifact.Machine(name_machine(i), *row) for i, row in zip(arrays["names"].tolist(), rows, strict=True)]


def choose_machine(artifact: Any, arrays: Arrays) -> Arrays:
    """The choice among machines: which, how many at a time, how fast, what binds, at what price."""
    machines, slower = _make_machines(artifact, arrays), _make_machines(artifact, arrays, speed=0.5)
    config, other = config_of(artifact, arrays["model"]), other_config(artifact, arrays["model"])
    tokens = int(arrays["tokens"])

    def choose(machines: list[Any], config: Any, tokens: int) -> Any:
        return artifact.choose_machine(config, tokens, machines)

    with unchanged(machines=machines):
        call_before(choose, (machines, config, tokens), (slower, other, tokens + 1))
        call = partial(artifact.choose_machine, config, tokens, machines)
        choice = call_with_given(call, artifact, arrays, config)
    if choice is None:
        return {"choose_machine": encode_text(None)}
    if not isinstance(choice, artifact.Choice):
        raise InputError("choose_machine gives no Choice", got=describe_value(choice), expected="Choice or None")
    names = [machine.name for machine in machines]
    if choice.device not in names or choice.bound not in BOUNDS:
        expected = "a machine's name, and memory or compute"
        raise InputError("the Choice names something else", got=f"{choice.device}, {choice.bound}", expected=expected)
    return {
        "choose_machine": encode_text("a Choice"),
        "device": encode_text(choice.device),
        "batch": whole("batch", choice.batch),
        "step_s": number("step_s", choice.step_s),
        "bound": encode_text(choice.bound),
        "dollars_per_million": number("dollars_per_million", choice.dollars_per_million),
    }
