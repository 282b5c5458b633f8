"""Generators of lab 13's cases, oracles in float64, comparisons, and public cases rendered as code.

`draw_…` returns the inputs of a case, `expect_…` the right answers or what they are judged by, `render_…` the case as
code to paste.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np

from mlsys_checks.sandboxed.quantization import WEIGHT, WIDER
from mlsys_checks.sandboxed.spec import Arrays, Case, Mismatch
from mlsys_checks.sandboxed.values import decode_value, encode_value
from mlsys_checks.trusted.compare import close

Rng = np.random.Generator
FORMATS = ((2, 1, "none"), (4, 3, "nan"))
STRATEGIES = ("tensor", "channel", "group")
HALF = 1.2e-3
"""Relative difference of two scales that were rounded to fp16 in different ways."""


def _as_case(**case: Any) -> Arrays:
    return {"case": encode_value(case)}


def _draw_some(rng: Rng, p: Any, name: str, count: int) -> int:
    return int(p[name] if name in p else rng.integers(count))


# --- Task 1: floats of few bits ---------------------------------------------------------------------------------------


def _draw_format(rng: Rng, p: Any) -> tuple[int, int, str]:
    if "format" in p:
        return FORMATS[p["format"]]
    exponent_bits = int(rng.integers(2, 6))
    return exponent_bits, int(rng.integers(1, min(4, 8 - exponent_bits))), str(rng.choice(["none", "nan"]))


def _magnitudes(exponent_bits: int, mantissa_bits: int, specials: str) -> list[Fraction]:
    """Numbers of the codes without a sign, in order of the codes, from the definition."""
    fields = product(range(2**exponent_bits), range(2**mantissa_bits))
    bias, one = 2 ** (exponent_bits - 1) - 1, 2**mantissa_bits
    numbers = [(Fraction(m, one) + (e > 0)) * Fraction(2) ** (max(e, 1) - bias) for e, m in fields]
    return numbers[:-1] if specials == "nan" else numbers


def draw_decode(rng: Rng, case: Case) -> Arrays:
    """Draw all codes of a format, in any order."""
    exponent_bits, mantissa_bits, specials = _draw_format(rng, case.params)
    codes = rng.permutation(2 ** (1 + exponent_bits + mantissa_bits)).astype(np.uint8)
    return {"case": encode_value([exponent_bits, mantissa_bits, specials]), "codes": codes.reshape(2, -1)}


def expect_decode(arrays: Arrays) -> Arrays:
    """Look numbers up in the list of all."""
    format_ = decode_value(arrays["case"])
    numbers = [*map(float, _magnitudes(*format_)), *[np.nan] * (format_[2] == "nan")]
    found = np.array([*numbers, *(-x for x in numbers)], np.float32)[arrays["codes"]]
    return {"is NaN": np.isnan(found), "numbers": np.nan_to_num(found, nan=0.0)}


def draw_encode(rng: Rng, case: Case) -> Arrays:
    """Draw numbers of a format, points in the middle of two, their neighbours in float32, and numbers out of range."""
    format_ = _draw_format(rng, case.params)
    numbers = np.array([*map(float, _magnitudes(*format_))])
    middles = ((numbers[1:] + numbers[:-1]) / 2).astype(np.float32)
    beyond = numbers[-1] * np.array([1.01, 1.06, 1.5, 9, 1e6, np.inf])
    near = [np.nextafter(middles, np.float32(x)) for x in (0, np.inf)]
    anywhere = np.exp(rng.uniform(np.log(numbers[1] / 8), np.log(numbers[-1]), 40))
    points = {"points": numbers, "ties": middles, "beyond": beyond, "small": numbers[1] * rng.uniform(0, 2.2, 12)}
    drawn = points.get(case.params.get("kind", ""), np.concatenate([*points.values(), *near, anywhere, [1e-38, 0]]))
    x = np.concatenate([drawn, -drawn]).astype(np.float32)
    return {"case": encode_value(format_), "x": rng.permutation(x).reshape(2, -1)}


def expect_encode(arrays: Arrays) -> Arrays:
    """Find the nearest number in the list of all; in the middle of two, that of the even code."""
    format_, x = decode_value(arrays["case"]), arrays["x"].astype(np.float64)
    numbers = np.array([*map(float, _magnitudes(*format_))])
    size = np.minimum(np.abs(x), numbers[-1])
    lower = np.searchsorted(numbers, size, side="right") - 1
    upper = np.minimum(lower + 1, len(numbers) - 1)
    down, up = size - numbers[lower], numbers[upper] - size
    codes = np.where((down < up) | ((down == up) & (lower % 2 == 0)), lower, upper)
    return {"codes": (codes + np.signbit(x) * 2 ** (format_[0] + format_[1])).astype(np.uint8)}


def compare_codes(got: Arrays, expected: Arrays) -> Mismatch | None:
    """`close`, with the codes in bits."""
    mismatch = close(got, expected)
    if mismatch is None or mismatch.is_form or got.keys() != expected.keys():
        return mismatch
    at = tuple(np.argwhere(got["codes"] != expected["codes"])[0].tolist())
    shown = (f"{int(codes['codes'][at]):#b} at {list(at)}" for codes in (got, expected))
    return Mismatch(f"`codes` is wrong in {int((got['codes'] != expected['codes']).sum())} entries", *shown)


def render_float(call: str) -> Callable[[Arrays], str]:
    """Return a check's `describe` for a call with `format`."""

    def render(arrays: Arrays) -> str:
        exponent_bits, mantissa_bits, specials = decode_value(arrays["case"])
        (name,) = arrays.keys() - {"case"}
        lines = [f'format = FloatFormat({exponent_bits}, {mantissa_bits}, "{specials}")']
        return "\n".join([*lines, f'{name} = torch.from_numpy(given["{name}"])', f"print({name}, {call})"])

    return render


# --- Task 2 and 3: scales ---------------------------------------------------------------------------------------------


def _draw_scheme(rng: Rng, p: Any, columns: int) -> dict[str, Any]:
    strategy = STRATEGIES[_draw_some(rng, p, "strategy", 3)]
    sizes = [size for size in range(1, columns + 1) if columns % size == 0]
    size = int(rng.choice(sizes)) if strategy == "group" else None
    bits = p["bits"] if "bits" in p else int(rng.integers(2, 9))
    return {"bits": bits, "signed": not _draw_some(rng, p, "unsigned", 2), "strategy": strategy, "group_size": size}


def _blocks(x: np.ndarray, scheme: Any) -> np.ndarray:
    """x (O, I) as (O, G, I/G) or (1, 1, O·I)."""
    size = x.size if scheme["strategy"] == "tensor" else scheme["group_size"] or x.shape[1]
    blocks: np.ndarray = x.reshape(x.shape[0] if scheme["strategy"] != "tensor" else 1, -1, size)
    return blocks


def _range_of(scheme: Any) -> tuple[int, int]:
    largest = int(2 ** (scheme["bits"] - scheme["signed"])) - 1
    return (-largest if scheme["signed"] else 0), largest


def _draw_numbers(rng: Rng, p: Any, shape: tuple[int, int]) -> np.ndarray:
    x = rng.standard_normal(shape) * 10.0 ** rng.uniform(-2, 1)
    kind = p.get("kind")
    if kind == "one side":
        x = np.abs(x) * rng.choice([-1, 1], (len(x), 1)) + 0.0
    if kind == "zeros":
        x[rng.random(shape) < 0.4] = 0.0
        x[0] = 0.0
        x[-1] *= 1e-9
    if kind == "tail":
        x /= rng.random(shape) + 0.01
    return np.asarray(x, np.float32)


def draw_bits(rng: Rng, case: Case) -> Arrays:
    """Draw schemes of all kinds, each with a shape."""
    calls = []
    for strategy, unsigned in product(range(3), range(2)):
        columns = int(rng.integers(1, case.params["columns"])) * 4
        scheme = _draw_scheme(rng, {"strategy": strategy, "unsigned": unsigned}, columns)
        calls.append({**scheme, "shape": [int(rng.integers(1, 99)), columns]})
    return {"case": encode_value(calls)}


def expect_bits(arrays: Arrays) -> Arrays:
    """Count all bits of a matrix, and divide."""
    answers: Arrays = {}
    for i, call in enumerate(decode_value(arrays["case"])):
        rows, columns = call["shape"]
        groups = {"tensor": 1, "channel": rows, "group": rows * columns // (call["group_size"] or 1)}[call["strategy"]]
        bits = call["bits"] * rows * columns + groups * (16 if call["signed"] else 24)
        answers[f"bits per weight of call {i}"] = np.array(bits / (rows * columns))
    return answers


def _scheme_code(case: Any) -> str:
    return f'Scheme(IntFormat({case["bits"]}, {case["signed"]}), "{case["strategy"]}", {case["group_size"]})'


def render_bits(arrays: Arrays) -> str:
    """Render the calls."""
    calls = decode_value(arrays["case"])
    return "\n".join(f"print({_scheme_code(one)}.bits_per_weight({tuple(one['shape'])}))" for one in calls)


def draw_scales(rng: Rng, case: Case) -> Arrays:
    """Draw a matrix and a scheme."""
    p = case.params
    shape = (p["rows"], p["groups"] * int(rng.integers(1, 7)))
    return _as_case(**_draw_scheme(rng, p, shape[1])) | {"x": _draw_numbers(rng, p, shape)}


def expect_scales(arrays: Arrays) -> Arrays:
    """Return the exact scale before it is rounded, and the lowest number of the range."""
    scheme, x = decode_value(arrays["case"]), arrays["x"].astype(np.float64)
    blocks, (_, largest) = _blocks(x, scheme), _range_of(scheme)
    low, high = np.minimum(blocks.min(-1), 0), np.maximum(blocks.max(-1), 0)
    span = np.abs(blocks).max(-1) if scheme["signed"] else high - low
    expected = {"scale": (span / largest).astype(np.float16).astype(np.float32)}
    expected["scale"][expected["scale"] == 0] = 1
    return expected if scheme["signed"] else expected | {"low": low, "largest": np.array(largest)}


def compare_scales(got: Arrays, expected: Arrays) -> Mismatch | None:
    """Compare scales up to the last bit of fp16, and zero points with what follows from the scales that came back."""
    wants_zero = "low" in expected
    if wants_zero != ("zero point" in got):
        missing = ("None", "an unsigned format has zero points") if wants_zero else ("a tensor", "None if symmetric")
        return Mismatch("zero_point is wrong for this format", *missing, is_form=True)
    if (mismatch := _compare_scale(got["scale"], expected["scale"])) is not None or not wants_zero:
        return mismatch
    zero = got["zero point"]
    if zero.shape != got["scale"].shape or zero.dtype != np.float32:
        want = f"float32 {got['scale'].shape}"
        return Mismatch("`zero_point` has another form", f"{zero.dtype} {zero.shape}", want, is_form=True)
    exact = np.clip(-expected["low"] / got["scale"], 0, expected["largest"])
    wrong = ~(np.abs(zero - exact) <= 0.5 + 1e-3) | (zero != np.round(zero)) | (zero > expected["largest"])
    if wrong.any():
        at = tuple(np.argwhere(wrong)[0].tolist())
        shown = str(zero[at]), f"{exact[at]:.4g}, rounded to an integer from 0 to {expected['largest']}"
        return Mismatch(f"`zero_point` is wrong at {list(at)}", *shown)
    return None


def _compare_scale(got: np.ndarray, want: np.ndarray) -> Mismatch | None:
    if got.shape != want.shape or got.dtype != want.dtype:
        shown = (f"{x.dtype} {x.shape}" for x in (got, want))
        return Mismatch("`scale` has another form", *shown, is_form=True)
    wrong = ~(np.abs(got - want) <= HALF * want + 1e-7)
    if wrong.any():
        at = tuple(np.argwhere(wrong)[0].tolist())
        return Mismatch(f"`scale` is wrong at {list(at)}", str(got[at]), str(want[at]))
    with np.errstate(over="ignore"):
        if (got != got.astype(np.float16)).any():
            return Mismatch("`scale` is not rounded to 16 bits", "more digits than fp16 has", "x.half().float()")
    return None


def draw_rounding(rng: Rng, case: Case) -> Arrays:
    """Draw a matrix, and scales that clip some numbers; `ties`: powers of two, and numbers in the middle of codes."""
    arrays = draw_scales(rng, case)
    scheme = decode_value(arrays["case"])
    blocks, (_, largest) = _blocks(arrays["x"], scheme), _range_of(scheme)
    scale = np.abs(blocks).max(-1) / largest * rng.uniform(0.4, 1.3, blocks.shape[:2]) + 1e-3
    if case.params.get("kind") == "ties":
        scale = 2.0 ** np.floor(np.log2(scale))
        steps = rng.integers(-2 * largest - 3, 2 * largest + 4, blocks.shape) / 2
        arrays["x"] = (steps * scale[..., None]).reshape(arrays["x"].shape).astype(np.float32)
    arrays["scale"] = scale.astype(np.float16).astype(np.float32)
    if not scheme["signed"]:
        arrays["zero_point"] = rng.integers(0, largest + 1, scale.shape).astype(np.float32)
    return arrays


def expect_rounding(arrays: Arrays) -> Arrays:
    """Return the exact quotient of each number and its scale, and the zero points."""
    scheme = decode_value(arrays["case"])
    steps = _blocks(arrays["x"].astype(np.float64), scheme) / arrays["scale"][..., None]
    zero = np.broadcast_to(arrays.get("zero_point", np.zeros(arrays["scale"].shape))[..., None], steps.shape)
    shape = arrays["x"].shape
    limits = np.array(_range_of(scheme))
    return {"steps": steps.reshape(shape), "zero": zero.reshape(shape), "limits": limits}


def compare_rounding(got: Arrays, expected: Arrays) -> Mismatch | None:
    """Accept the nearest code; ties to even where a quotient is exactly in the middle, either code within rounding."""
    steps, zero, (low, high) = expected["steps"], expected["zero"], expected["limits"]
    form = np.dtype("int8" if low < 0 else "uint8"), steps.shape
    if (codes := got["codes"]).shape != form[1] or codes.dtype != form[0]:
        return Mismatch(
            "`codes` has another form", f"{codes.dtype} {codes.shape}", f"{form[0]} {form[1]}", is_form=True
        )
    distance = np.abs(steps - np.floor(steps) - 0.5)
    slack = np.where((distance == 0) & (low < 0), 0, 1e-6 * (1 + np.abs(steps)))
    allowed = [np.clip(np.round(steps + sign * slack) + zero, low, high) for sign in (-1, 1)]
    if (wrong := (codes != allowed[0]) & (codes != allowed[1])).any():
        at = tuple(np.argwhere(wrong)[0].tolist())
        point = f", plus the zero point {zero[at]:g}" if low == 0 else ""
        want = f"{allowed[0][at]:g} (x / scale is {steps[at]:.6g}{point}, codes are {low} to {high})"
        return Mismatch(f"`codes` is wrong in {int(wrong.sum())} entries, first at {list(at)}", str(codes[at]), want)
    return None


def render_scheme(call: str, note: str = "") -> Callable[[Arrays], str]:
    """Return a check's `describe` for a call with `scheme`, all arrays, and {numbers} of the case."""

    def render(arrays: Arrays) -> str:
        case = decode_value(arrays["case"])
        lines = [f"# in the check, {note}"] * bool(note) + [f"scheme = {_scheme_code(case)}"]
        lines += [f'{name} = torch.from_numpy(given["{name}"])' for name in arrays if name != "case"]
        lines += ["zero_point = None"] * ("zero_point" not in arrays and "zero_point" in call)
        return "\n".join([*lines, f"print({call.format(**case)})"])

    return render


def render_call(name: str, option: str = "") -> Callable[[Arrays], str]:
    """Return a check's `describe` for a call with all arrays, and with an option that some cases have."""

    def render(arrays: Arrays) -> str:
        given = [f'torch.from_numpy(given["{one}"])' for one in arrays if one != option]
        given += [f"{option}={arrays[option].item()!r}"] if option in arrays else []
        return f"{name}({', '.join(given)})"

    return render


def draw_noise(rng: Rng, case: Case) -> Arrays:
    """Draw numbers in float64, and a range that clips all, some or none of them."""
    x = rng.standard_normal((case.params["count"],)) * rng.uniform(0.5, 3)
    clip = {0: rng.uniform(0.3, 1.2) * np.abs(x).max(), 1: 0.5 * np.abs(x).min(), 2: 1.5 * np.abs(x).max()}
    bits = int(rng.integers(2, 9))
    return _as_case(bits=bits) | {"x": x, "clip": np.array(clip[case.params.get("clip", 0)])}


def expect_noise(arrays: Arrays) -> Arrays:
    """Integrate the squared error over a step by Simpson's rule, which is exact for a parabola."""
    clip, step = float(arrays["clip"]), float(arrays["clip"]) / (2 ** (decode_value(arrays["case"])["bits"] - 1) - 1)
    rounding = (4 * 0.0 + 2 * (step / 2) ** 2) / 6
    errors = [(abs(x) - clip) ** 2 if abs(x) > clip else rounding for x in arrays["x"].tolist()]
    return {"error": np.array(sum(errors) / len(errors))}


def render_noise(arrays: Arrays) -> str:
    """Render the call."""
    bits, x = decode_value(arrays["case"])["bits"], 'torch.from_numpy(given["x"])'
    return f"print(predict_error({x}, {arrays['clip'].item()!r}, IntFormat({bits})))"


def draw_clip(rng: Rng, case: Case) -> Arrays:
    """Draw a matrix with a tail, and fractions in any order."""
    arrays = draw_scales(rng, case)
    fractions = rng.permutation([1.0, *rng.uniform(0.1, 1.0, int(rng.integers(6, 13)))]).tolist()
    return {"x": arrays["x"], "case": encode_value({**decode_value(arrays["case"]), "fractions": fractions})}


def _wide_scale(blocks: np.ndarray, largest: int) -> np.ndarray:
    """The lent scale, in the same steps of float32."""
    scale = (np.abs(blocks).max(-1) * np.float32(WIDER) / np.float32(largest)).astype(np.float16).astype(np.float32)
    return np.where(scale == 0, np.float32(1), scale)


def expect_clip(arrays: Arrays) -> Arrays:
    """Return the scale of every fraction, and the squared error of each group with it."""
    case = decode_value(arrays["case"])
    blocks, (low, high) = _blocks(arrays["x"], case), _range_of(case)
    widest, zero = _wide_scale(blocks, high), 0 if case["signed"] else high // 3
    scales = [(np.float64(f) * widest).astype(np.float16).astype(np.float64) for f in case["fractions"]]
    errors = []
    for scale in scales:
        scale[scale == 0] = np.finfo(np.float16).max  # too small for fp16: of no use
        codes = np.clip(np.round(blocks.astype(np.float64) / scale[..., None]) + zero, low, high) - zero
        errors.append(np.square(codes * scale[..., None] - blocks).sum(-1))
    return {"scales": np.stack(scales), "errors": np.stack(errors), "zero": np.array(zero)}


def compare_clip(got: Arrays, expected: Arrays) -> Mismatch | None:
    """Accept, for each group, any of the candidates whose error is the least."""
    scales, errors, zero = expected["scales"], expected["errors"], expected["zero"]
    if got["scale"].shape != scales.shape[1:]:
        return Mismatch("`scale` has another shape", str(got["scale"].shape), str(scales.shape[1:]), is_form=True)
    if (got.get("zero point", np.zeros(1)) != zero).any():
        return Mismatch("`zero_point` is not that of max_scale", str(got.get("zero point")), str(zero))
    with np.errstate(over="ignore"):
        stored = got["scale"].astype(np.float16)
    if (got["scale"] != stored).any():
        at = tuple(np.argwhere(got["scale"] != stored)[0].tolist())
        return Mismatch(
            f"`scale` of the group {list(at)} is not rounded to fp16", f"{got['scale'][at]:.9g}", f"{stored[at]:.9g}"
        )
    apart = np.abs(got["scale"] - scales)
    chosen = errors <= errors.min(0) * (1 + 1e-4) + 1e-12
    if (fits := (apart <= HALF * scales + 1e-7) & chosen).any(0).all():
        return None
    at = tuple(np.argwhere(~fits.any(0))[0].tolist())
    best = int(errors[(slice(None), *at)].argmin())
    want = f"{scales[(best, *at)]:.6g}, whose error is {errors[(best, *at)]:.4g}"
    nearest = int(apart[(slice(None), *at)].argmin())
    found = f"{got['scale'][at]:.6g}, whose error is about {errors[(nearest, *at)]:.4g}"
    return Mismatch(f"`scale` of the group {list(at)} is not the best of the fractions", found, want)


# --- Task 4: GPTQ -----------------------------------------------------------------------------------------------------


def _draw_inputs(rng: Rng, tokens: int, columns: int) -> np.ndarray:
    """Correlated inputs of unequal size (n, I)."""
    mixed = rng.standard_normal((tokens, columns)) @ rng.standard_normal((columns, columns)) / columns**0.5
    return np.asarray(
        (mixed + 0.2 * rng.standard_normal((tokens, columns))) * np.exp(0.7 * rng.standard_normal(columns))
    )


def draw_hessian(rng: Rng, case: Case) -> Arrays:
    """Draw inputs in float32."""
    return {"inputs": _draw_inputs(rng, case.params["tokens"], case.params["columns"]).astype(np.float32)}


def expect_hessian(arrays: Arrays) -> Arrays:
    """Sum the products of all pairs of inputs, token by token."""
    x = arrays["inputs"].astype(np.float64)
    return {"hessian": sum((np.outer(token, token) for token in x), np.zeros((x.shape[1],) * 2))}


def draw_gptq(rng: Rng, case: Case) -> Arrays:
    """Draw a weight and a Hessian, which is singular if there are fewer tokens than columns."""
    p = case.params
    columns = p["groups"] * int(rng.integers(2, 7))
    x = _draw_inputs(rng, p.get("tokens", 5 * columns), columns)
    scheme = _draw_scheme(rng, {"strategy": 1 + int(rng.integers(2)), **p}, columns)
    if scheme["strategy"] == "group":
        scheme["group_size"] = columns // p["groups"]
    options = {"damping": float(rng.uniform(0.03, 0.3))} if p.get("damped") else {}
    weight = rng.standard_normal((p["rows"], columns)).astype(np.float32)
    return _as_case(**scheme, options=options) | {"weight": weight, "hessian": x.T @ x}


def _damp(hessian: np.ndarray, damping: float) -> np.ndarray:
    return np.asarray(hessian + damping * hessian.diagonal().mean() * np.eye(len(hessian)))


def expect_gptq(arrays: Arrays) -> Arrays:
    """Round column by column; after each, take its row and column out of the inverse (OBS, equations 2 and 3)."""
    case, w = decode_value(arrays["case"]), arrays["weight"].astype(np.float64)
    damped = _damp(arrays["hessian"], case["options"].get("damping", 0.01))
    inverse, (low, high) = np.linalg.inv(damped), _range_of(case)
    size, zero = case["group_size"] or w.shape[1], 0 if case["signed"] else high // 3
    codes, scales = np.zeros(w.shape), []
    for j in range(w.shape[1]):
        if j % size == 0:
            scales.append(_wide_scale(w[:, j : j + size].astype(np.float32), high))
        codes[:, j] = np.clip(np.round(w[:, j] / scales[-1]) + zero, low, high)
        error = w[:, j] - (codes[:, j] - zero) * scales[-1]
        w[:, j + 1 :] -= np.outer(error, inverse[j, j + 1 :] / inverse[j, j])
        inverse = inverse - np.outer(inverse[:, j], inverse[j]) / inverse[j, j]
    answers = {"codes": codes, "scale": np.stack(scales, 1), "zero": np.array(zero)}
    return answers | {
        "weight": arrays["weight"].astype(np.float64),
        "hessian": damped,
        "signed": np.array(case["signed"]),
    }


def compare_gptq(got: Arrays, expected: Arrays) -> Mismatch | None:
    """Compare scales, codes but a few that a tie may turn, and the error of the outputs."""
    shapes = {"codes": expected["codes"].shape, "scale": expected["scale"].shape}
    shapes |= {} if expected["signed"] else {"zero point": expected["scale"].shape}
    found = {name: x.shape for name, x in got.items()}
    if found != shapes:
        return Mismatch("gptq returned other shapes", str(found), str(shapes), is_form=True)
    if (got.get("zero point", expected["zero"]) != expected["zero"]).any():
        return Mismatch("zero points are not those of choose_scale", str(got["zero point"]), str(expected["zero"]))
    errors = []
    for x in (got, expected):
        size = x["codes"].shape[1] // x["scale"].shape[1]
        weight = (x["codes"].astype(np.float64) - expected["zero"]) * np.repeat(x["scale"].astype(np.float64), size, 1)
        error = weight - expected["weight"]
        errors.append(float(np.sum(error @ expected["hessian"] * error)))
    if not errors[0] <= 1.02 * errors[1]:
        return Mismatch("the error of the outputs is too large", f"{errors[0]:.4g}", f"{errors[1]:.4g}")
    other = np.abs(got["scale"] - expected["scale"]) > HALF * expected["scale"] + 1e-7
    if other.mean() > 0.03:
        at = tuple(np.argwhere(other)[0].tolist())
        what = f"the scale at {list(at)} is not that of the columns when the group was reached"
        return Mismatch(what, str(got["scale"][at]), str(expected["scale"][at]))
    wrong = (got["codes"] != expected["codes"]).any(0)
    if (got["codes"] != expected["codes"]).mean() > 0.03:
        column = int(wrong.argmax())
        shown = (str(x["codes"][:6, column].astype(int).tolist()) for x in (got, expected))
        return Mismatch(f"codes are wrong in {wrong.sum()} of {len(wrong)} columns, first in column {column}", *shown)
    return None


# --- Tasks 5 and 6 ----------------------------------------------------------------------------------------------------


def draw_smooth(rng: Rng, case: Case) -> Arrays:
    """Draw largest magnitudes over several orders, some of them zero."""
    count = case.params["columns"]
    arrays = {name: np.exp(rng.normal(0, 2, count)).astype(np.float32) for name in ("activation_max", "weight_max")}
    for x in arrays.values():
        x[rng.random(count) < 0.2 * case.params.get("zeros", 0)] = 0
    return arrays | ({"alpha": np.array(rng.uniform(0.1, 0.9))} if case.params.get("alpha") else {})


def expect_smooth(arrays: Arrays) -> Arrays:
    """Compute scales by logarithms."""
    a, w = (arrays[name].astype(np.float64) for name in ("activation_max", "weight_max"))
    alpha, live = float(arrays.get("alpha", 0.5)), (a > 0) & (w > 0)
    logs = alpha * np.log(np.where(live, a, 1)) - (1 - alpha) * np.log(np.where(live, w, 1))
    return {"scale": np.exp(np.where(live, logs, 0)).astype(np.float32)}


def draw_fold(rng: Rng, case: Case) -> Arrays:
    """Draw a norm weight, several weights, of which one may be square, and scales."""
    columns = case.params["columns"]
    shapes = [(int(rng.integers(1, 6)), columns) for _ in range(case.params["weights"])] + [(columns, columns)]
    drawn = {f"{WEIGHT}{i}": rng.standard_normal(shape).astype(np.float32) for i, shape in enumerate(shapes)}
    scale = np.exp(rng.standard_normal(columns)).astype(np.float32)
    return {"norm_weight": rng.standard_normal(columns).astype(np.float32), "scale": scale, **drawn}


def expect_fold(arrays: Arrays) -> Arrays:
    """Scale by diagonal matrices."""
    scale = np.diag(arrays["scale"].astype(np.float64))
    folded = {name: (x @ scale).astype(np.float32) for name, x in arrays.items() if name.startswith(WEIGHT)}
    return {"norm weight": np.linalg.solve(scale, arrays["norm_weight"]).astype(np.float32), **folded}


def render_fold(arrays: Arrays) -> str:
    """Render the call."""
    weights = ", ".join(f'torch.from_numpy(given["{name}"])' for name in arrays if name.startswith(WEIGHT))
    norm, scale = (f'torch.from_numpy(given["{name}"])' for name in ("norm_weight", "scale"))
    return f"fold_scale({norm}, [{weights}], {scale})"


def draw_product(rng: Rng, case: Case) -> Arrays:
    """Draw activations, codes and scales of a weight; with `one sign`, sums far beyond 16 bits."""
    p = case.params
    x = rng.standard_normal((p["tokens"], p["columns"])) * np.exp(rng.standard_normal((p["tokens"], 1)))
    codes = rng.integers(-127, 128, (p["rows"], p["columns"]))
    if p.get("one_sign"):
        x, codes = np.abs(x), np.abs(codes)
    scale = np.exp(rng.normal(-4, 1, (1 if p.get("whole") else p["rows"], 1)))
    return {"x": x.astype(np.float32), "codes": codes.astype(np.int8), "scale": scale.astype(np.float32)}


def expect_product(arrays: Arrays) -> Arrays:
    """Sum integers of Python, with the lent scale for each token."""
    x = arrays["x"]
    scale = _wide_scale(x[:, None], 127)  # (n, 1)
    tokens = np.round(x / scale).astype(np.int64)
    sums = np.array([[sum(map(int.__mul__, t, w)) for w in arrays["codes"].tolist()] for t in tokens.tolist()])
    return {"product": (scale.astype(np.float64) * sums * arrays["scale"].T).astype(np.float32)}


def render_product(arrays: Arrays) -> str:
    """Render the call, with the learner's own scales."""
    strategy = "channel" if len(arrays["scale"]) == len(arrays["codes"]) else "tensor"
    lines = ["# in the check, the scales of tokens are those of another choose_scale"]
    lines += [f'{name} = torch.from_numpy(given["{name}"])' for name in arrays]
    lines += [
        f'weight = QuantizedTensor(codes, scale, None, Scheme(INT8, "{strategy}"))',
        "print(int8_linear(x, weight))",
    ]
    return "\n".join(lines)


def draw_mask(rng: Rng, case: Case) -> Arrays:
    """Draw scores, in some cases few different ones."""
    p = case.params
    scores = rng.standard_normal((p["rows"], 4 * p["fours"]))
    return {"scores": (np.round(scores) if p.get("ties") else np.abs(scores)).astype(np.float32)}


def expect_mask(arrays: Arrays) -> Arrays:
    """Return the scores, by which a mask is judged."""
    return arrays


def compare_mask(got: Arrays, expected: Arrays) -> Mismatch | None:
    """Accept any mask of two in four in which no score that stays is below one that goes."""
    mask, scores = got["mask"], expected["scores"]
    if mask.shape != scores.shape or mask.dtype != np.bool_:
        shown = f"{mask.dtype} {mask.shape}", f"bool {scores.shape}"
        return Mismatch("`mask` has another form", *shown, is_form=True)
    fours, kept = scores.reshape(-1, 4), mask.reshape(-1, 4)
    least, most = np.where(kept, fours, np.inf).min(1), np.where(kept, -np.inf, fours).max(1)
    if (wrong := (kept.sum(1) != 2) | (least < most)).any():
        at = int(wrong.argmax())
        row, column = divmod(4 * at, scores.shape[1])
        want = f"the two largest of {fours[at].tolist()}"
        return Mismatch(f"the mask of row {row} from column {column} on is wrong", str(kept[at].tolist()), want)
    return None


def draw_refit(rng: Rng, case: Case) -> Arrays:
    """Draw a weight, a Hessian and a mask; `extremes`: a row that stays and one that goes."""
    p = case.params
    x = _draw_inputs(rng, p.get("tokens", 3 * p["columns"]), p["columns"])
    mask = rng.random((p["rows"], p["columns"])) < 0.5
    if p.get("extremes"):
        mask[0], mask[-1] = True, False
    weight = rng.standard_normal(mask.shape).astype(np.float32 if p.get("single") else np.float64)
    damping = {"damping": np.array(rng.choice([0.003, 0.1, 0.5]))} if p.get("damped") else {}
    return {"weight": weight, "mask": mask, "hessian": x.T @ x, **damping}


def expect_refit(arrays: Arrays) -> Arrays:
    """Fit the outputs of each row by least squares, on inputs whose Hessian is the damped one."""
    root = np.linalg.cholesky(_damp(arrays["hessian"], float(arrays.get("damping", 0.01)))).T
    fitted = np.zeros(arrays["weight"].shape)
    for row, kept in enumerate(arrays["mask"]):
        if kept.any():
            outputs = root @ arrays["weight"][row].astype(np.float64)
            fitted[row, kept] = np.linalg.lstsq(root[:, kept], outputs, rcond=None)[0]
    return {"weights": fitted.astype(arrays["weight"].dtype)}


def compare_refit(got: Arrays, expected: Arrays) -> Mismatch | None:
    """`close` to seven digits: a damping that was computed in float32 passes."""
    return close(got, expected, scale=100 if expected["weights"].dtype == np.float64 else 1)


def draw_price(rng: Rng, case: Case) -> Arrays:
    """Draw layers, dense and sparse, on machines on which arithmetic or memory takes longer."""
    calls: list[dict[str, Any]] = []
    for i in range(case.params["calls"]):
        shape = [4 * int(rng.integers(1, 15)), 4 * int(rng.integers(1, 40))]  # whole bytes
        tokens, bits = int(rng.integers(1, 50)), int(rng.choice([4, 8, 16]))
        numbers, flops = 2 * tokens * sum(shape), 2 * tokens * shape[0] * shape[1]
        peak = flops / (numbers + shape[0] * shape[1]) * 10.0 ** rng.uniform(-0.7, 0.7)
        rate = 10.0 ** rng.uniform(-2, 2)
        call = {
            "shape": shape,
            "tokens": tokens,
            "bits": bits,
            "machine": [float(f"{x:.3g}") for x in (peak * rate, rate)],
        }
        calls += [{**call, "is_sparse": False}, {**call, "is_sparse": True}, {**call, "machine": [1e-3, 2.0 + i]}]
        calls[-1]["is_sparse"] = bool(i % 2)
    return {"case": encode_value(calls)}


def expect_price(arrays: Arrays) -> Arrays:
    """Count the bits of each four, and take the longer of both times, in fractions."""
    answers: Arrays = {}
    for i, call in enumerate(decode_value(arrays["case"])):
        (rows, columns), sparse, n = call["shape"], call["is_sparse"], call["tokens"]
        four_bits = 2 * call["bits"] + 4 if sparse else 4 * call["bits"]
        size = rows * (columns // 4) * four_bits // 8
        peak, rate = map(Fraction, call["machine"])
        arithmetic = Fraction(2 * n * rows * columns) / (2 * peak if sparse else peak)
        answers[f"bytes of call {i}"] = np.array(size)
        answers[f"seconds of call {i}"] = np.array(float(max(arithmetic, (size + 2 * n * (rows + columns)) / rate)))
    return answers


def render_price(arrays: Arrays) -> str:
    """Render the calls."""
    lines = []
    for i, call in enumerate(decode_value(arrays["case"])):
        shape, tail = tuple(call["shape"]), f"is_sparse={call['is_sparse']})"
        lines.append(f"# call {i}")
        lines.append(f"print(linear_bytes({shape}, {call['bits']}, {tail})")
        lines.append(
            f"print(least_time({call['tokens']}, {shape}, {call['bits']}, Machine(*{call['machine']}), {tail})"
        )
    return "\n".join(lines)
