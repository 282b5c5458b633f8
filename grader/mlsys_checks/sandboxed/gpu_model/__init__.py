"""Run the learner's code for lab 02's checks: calls of functions, and a timing loop on a made-up clock.

A case of calls arrives as JSON in the array `case`. `objects` are what arguments refer to by name: numbers, lists,
or [class of the learner's notebook, fields]. `calls` lists (function, arguments, keyword arguments); an argument
"*name" or "**name" is an object to be unpacked. `given` lists the right answers of an earlier task's function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from mlsys_checks.sandboxed.inputs import unchanged
from mlsys_checks.sandboxed.lending import lend
from mlsys_checks.sandboxed.spec import Arrays, Query
from mlsys_checks.sandboxed.values import (
    column,
    count,
    decode_value,
    describe_value,
    number,
    parts,
    whole,
    wholes,
    word,
    write_number,
)
from mlsys_lab.errors import InputError

RESOURCES = ("blocks", "warps", "registers", "shared memory")
LIMITS = ("memory", "compute")
REGIMES = ("compute", "memory", "overhead", "unexplained")

# --- calls of functions -----------------------------------------------------------------------------------------------


def calls_of(case: dict[str, Any]) -> Iterator[tuple[str, str, list[Any], dict[str, Any]]]:
    """Yield each call of a case as code, and its function, arguments and keyword arguments."""
    for name, args, kwargs in case["calls"]:
        shown = [arg if isinstance(arg, str) else write_number(arg) for arg in args]
        shown += [f"{key}={write_number(value)}" for key, value in kwargs.items()]
        yield f"{name}({', '.join(shown)})", name, args, kwargs


def run_calls(artifact: Any, arrays: Arrays) -> Arrays:
    """Make the calls of a case; return what came back."""
    case, got = decode_value(arrays["case"]), Arrays()
    objects = {name: _make(artifact, value) for name, value in case["objects"].items()}
    for code, name, args, kwargs in calls_of(case):
        placed, named = bind(args, kwargs, objects)
        lists = {key: value for key, value in objects.items() if isinstance(value, list | np.ndarray)}
        with unchanged(**lists), _right_bounds(artifact, case["given"]):
            try:
                value = getattr(artifact, name)(*placed, **named)
            except Exception as error:
                error.add_note(f"an answer to {code}")
                raise
        got |= READERS[name](code, value)
    return got


def bind(args: list[Any], kwargs: dict[str, Any], objects: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Replace names of objects among the arguments by the objects, and unpack those with stars."""
    placed, named = list[Any](), dict(kwargs)
    for arg in args:
        if not isinstance(arg, str):
            placed.append(arg)
        elif arg.startswith("**"):
            named |= objects[arg[2:]]
        elif arg.startswith("*"):
            placed += objects[arg[1:]]
        else:
            placed.append(objects[arg])
    return tuple(placed), named


def _make(artifact: Any, value: Any) -> Any:
    """An object of a case: a record of the learner's notebook, an array of floats, or what it is."""
    if isinstance(value, list) and value and isinstance(value[0], str):
        kind, fields = value
        return np.array(fields, float) if kind == "array" else getattr(artifact, kind)(**fields)
    return list(value) if isinstance(value, list) else value


def _right_bounds(artifact: Any, given: list[Any]) -> Any:
    """Lend right answers of `bound`, so that a mistake in Task 1 costs Task 3 nothing."""
    own, answers = getattr(artifact, "bound", None), {tuple(asked): fields for asked, fields in given}

    def answer(
        flops: float, size_bytes: float, *, peak_flops_per_s: float, bandwidth_bytes_per_s: float, **more: Any
    ) -> Any:
        asked = (flops, size_bytes, peak_flops_per_s, bandwidth_bytes_per_s)
        if asked in answers:
            return artifact.Bound(**answers[asked])
        return own(  # type: ignore[misc]
            flops,
            size_bytes,
            peak_flops_per_s=peak_flops_per_s,
            bandwidth_bytes_per_s=bandwidth_bytes_per_s,
            **more,
        )

    return lend(artifact, **({"bound": answer} if given else {}))


def _read_work(code: str, got: Any) -> Arrays:
    flops, size_bytes = parts(code, got, "FLOPs", "bytes")
    return {
        f"FLOPs of {code}": count(f"FLOPs of {code}", flops),
        f"bytes of {code}": count(f"bytes of {code}", size_bytes),
    }


def _read_fit(code: str, got: Any) -> Arrays:
    names = ("overhead_s", "bandwidth_bytes_per_s")
    return {f"{name} of {code}": number(name, one) for name, one in zip(names, parts(code, got, *names), strict=True)}


def _read_regime(code: str, got: Any) -> Arrays:
    limit, explained = parts(code, got, "limit", "fraction")
    return {
        f"fraction of {code}": number("the fraction", explained),
        f"limit of {code}": word(f"the limit of {code}", limit, REGIMES),
    }


def _read_record(kind: str, code: str, got: Any, **fields: Callable[[str, Any], np.ndarray]) -> Arrays:
    names = [*fields, *(["by"] if kind == "Occupancy" else [])]
    if not all(hasattr(got, name) for name in names):
        expected = f"{kind}({', '.join(f'{name}=…' for name in names)})"
        raise InputError(f"{code} returned no {kind}", got=describe_value(got), expected=expected)
    return {f"{code}.{name}": read(f"{code}.{name}", getattr(got, name)) for name, read in fields.items()}


def _read_bound(code: str, got: Any) -> Arrays:
    numbers = dict.fromkeys(("intensity", "ridge", "time_s", "flops_per_s", "fraction"), number)
    return _read_record("Bound", code, got, **numbers, limit=partial(word, known=LIMITS))


def _read_occupancy(code: str, got: Any) -> Arrays:
    found = _read_record("Occupancy", code, got, blocks=whole, warps=whole, occupancy=number)
    by = wholes(f"{code}.by", got.by, RESOURCES)
    return {f"{code}.by[{name!r}]": blocks for name, blocks in by.items()} | found


READERS: Mapping[str, Callable[[str, Any], Arrays]] = {
    **dict.fromkeys(("softmax_work", "layer_norm_work", "matmul_work", "decode_attention_work"), _read_work),
    **dict.fromkeys(("sectors_touched", "bank_passes", "warps_needed"), lambda code, got: {code: whole(code, got)}),
    **dict.fromkeys(("predict_s", "bandwidth_fraction"), lambda code, got: {code: number(code, got)}),
    "bound": _read_bound,
    "fit_overhead_and_bandwidth": _read_fit,
    "regime": _read_regime,
    "occupancy": _read_occupancy,
}
"""By function, how a value that it returned becomes arrays; `InputError` if it has the wrong form."""


# --- a timing loop ----------------------------------------------------------------------------------------------------


def run_measure(artifact: Any, query: Query, arrays: Arrays) -> Arrays:
    """Run the learner's timing loop on a machine that the judge holds: each reading of its clock is a question."""
    readings = 0

    def clock() -> float:
        nonlocal readings
        readings += 1
        return query("clock", 0)

    def call(*args: Any) -> None:
        if len(args) != 1 or type(args[0]) is not int:
            got = repr(args)[:80]
            expected = "call(*args) with args = make_args()"
            raise InputError("`call` was called with other arguments than `make_args` made", got=got, expected=expected)
        query("call", args[0])

    def make_args() -> tuple[int]:
        return (int(query("make", 0)),)

    samples, warmup = int(arrays["samples"]), int(arrays["warmup"])
    code = measure_call(samples, warmup)
    timing = artifact.measure(call, samples=samples, warmup=warmup, make_args=make_args, clock=clock)
    if not hasattr(timing, "samples_s"):
        raise InputError(f"{code} returned no Timing", got=describe_value(timing), expected="Timing(samples_s)")
    if not readings:
        raise InputError("`clock` is never called", got="no reading, or those of another clock", expected="clock()")
    return {
        f"samples_s of {code}": column(f"samples_s of {code}", list(timing.samples_s)),
        f"p50_s of {code}": number(f"p50_s of {code}", timing.p50_s),
    }


def measure_call(samples: int, warmup: int) -> str:
    """A call of `measure` as code."""
    return f"measure(call, samples={samples}, warmup={warmup}, make_args=make_args, clock=clock)"
