"""Run the learner's code for lab 13's checks: formats, scales, layers, and a model to compress.

Sizes and schemes arrive as JSON in the array `case`. A function is called with right predecessors: `lend` replaces
those that it builds on. What is lent gives scales of its own (`wide_scale`) or codes of another dtype
(`signed_codes`), so it fails the check of its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from mlsys_checks.sandboxed.inputs import unchanged
from mlsys_checks.sandboxed.lending import lend
from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.values import array, decode_value, describe_value, number, pair, whole
from mlsys_lab.errors import InputError

WIDER = 1.25
"""How much wider than needed the lent scales are."""
WEIGHT = "weight "
"""Prefix of a model's weights among the arrays."""
PARTS = ("codes", "scale", "zero point")


def tensors(arrays: Arrays, *names: str) -> list[torch.Tensor]:
    return [torch.from_numpy(arrays[name].copy()) for name in names]


def make_scheme(artifact: Any, case: Mapping[str, Any]) -> Any:
    """The learner's `Scheme` of a case."""
    integers = artifact.IntFormat(case["bits"], case["signed"])
    return artifact.Scheme(integers, case["strategy"], case["group_size"])


def zero_point_of(arrays: Arrays) -> torch.Tensor | None:
    return torch.from_numpy(arrays["zero_point"].copy()) if "zero_point" in arrays else None


def wide_scale(x: torch.Tensor, scheme: Any, method: str = "max") -> tuple[torch.Tensor, torch.Tensor | None]:
    """A scale and zero point of the right form for each block."""
    scale = (scheme.split(x).abs().amax(-1) * WIDER / scheme.format.largest).half().float()
    scale[scale == 0] = 1.0
    return scale, None if scheme.format.signed else torch.full_like(scale, scheme.format.largest // 3)


def signed_codes(x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None, scheme: Any) -> torch.Tensor:
    """Codes in int16."""
    codes = (scheme.split(x) / scale[..., None]).round() + (0 if zero_point is None else zero_point[..., None])
    return torch.clamp(codes, scheme.format.smallest, scheme.format.largest).reshape(x.shape).short()


def scale_and_zero(name: str, got: Any) -> Arrays:
    """Scales, and zero points unless they are None."""
    scale, zero_point = pair(name, got, "scale", "zero_point")
    answers = {"scale": array("scale", scale)}
    return answers if zero_point is None else {**answers, "zero point": array("zero_point", zero_point)}


def quantized(name: str, got: Any) -> Arrays:
    """Codes, scales and zero points of a `QuantizedTensor`."""
    if not all(hasattr(got, part) for part in ("codes", "scale", "zero_point", "scheme")):
        raise InputError(f"{name} is no QuantizedTensor", got=describe_value(got), expected="a QuantizedTensor")
    return {"codes": array("codes", got.codes)} | scale_and_zero(name, (got.scale, got.zero_point))


# --- Tasks 1 to 3 -----------------------------------------------------------------------------------------------------


def decode(artifact: Any, arrays: Arrays) -> Arrays:
    (codes,) = tensors(arrays, "codes")
    with unchanged(codes=codes):
        numbers = array("numbers", artifact.decode(codes, artifact.FloatFormat(*decode_value(arrays["case"]))))
    is_nan = np.isnan(numbers)
    return {"is NaN": is_nan, "numbers": np.where(is_nan, numbers.dtype.type(0), numbers)}


def encode(artifact: Any, arrays: Arrays) -> Arrays:
    (x,) = tensors(arrays, "x")
    with unchanged(x=x):
        return {"codes": array("codes", artifact.encode(x, artifact.FloatFormat(*decode_value(arrays["case"]))))}


def bits_per_weight(artifact: Any, arrays: Arrays) -> Arrays:
    calls = decode_value(arrays["case"])
    found = [make_scheme(artifact, call).bits_per_weight(tuple(call["shape"])) for call in calls]
    return {f"bits per weight of call {i}": number("bits_per_weight", bits) for i, bits in enumerate(found)}


def max_scale(artifact: Any, arrays: Arrays) -> Arrays:
    (x,) = tensors(arrays, "x")
    with unchanged(x=x):
        return scale_and_zero("max_scale", artifact.max_scale(x, make_scheme(artifact, decode_value(arrays["case"]))))


def round_to_codes(artifact: Any, arrays: Arrays) -> Arrays:
    x, scale = tensors(arrays, "x", "scale")
    scheme = make_scheme(artifact, decode_value(arrays["case"]))
    with unchanged(x=x, scale=scale):
        return {"codes": array("codes", artifact.round_to_codes(x, scale, zero_point_of(arrays), scheme))}


def predict_error(artifact: Any, arrays: Arrays) -> Arrays:
    integers = artifact.IntFormat(decode_value(arrays["case"])["bits"])
    (x,) = tensors(arrays, "x")
    return {"error": number("predict_error", artifact.predict_error(x, float(arrays["clip"]), integers))}


def mse_scale(artifact: Any, arrays: Arrays) -> Arrays:
    (x,), case = tensors(arrays, "x"), decode_value(arrays["case"])
    with lend(artifact, max_scale=wide_scale, round_to_codes=signed_codes), unchanged(x=x):
        found = artifact.mse_scale(x, make_scheme(artifact, case), case["fractions"])
    return scale_and_zero("mse_scale", found)


# --- Tasks 4 to 6 -----------------------------------------------------------------------------------------------------


def hessian(artifact: Any, arrays: Arrays) -> Arrays:
    (inputs,) = tensors(arrays, "inputs")
    with unchanged(inputs=inputs):
        return {"hessian": array("hessian", artifact.hessian(inputs))}


def gptq(artifact: Any, arrays: Arrays) -> Arrays:
    (weight, hessian), case = tensors(arrays, "weight", "hessian"), decode_value(arrays["case"])
    lent = {"choose_scale": wide_scale, "max_scale": wide_scale, "round_to_codes": signed_codes}
    with lend(artifact, **lent), unchanged(weight=weight, hessian=hessian):
        found = artifact.gptq(weight, hessian, make_scheme(artifact, case), **case["options"])
    return quantized("gptq", found)


def smooth_scale(artifact: Any, arrays: Arrays) -> Arrays:
    largest = tensors(arrays, "activation_max", "weight_max")
    options = {"alpha": float(arrays["alpha"])} if "alpha" in arrays else {}
    return {"scale": array("smooth_scale", artifact.smooth_scale(*largest, **options))}


def fold_scale(artifact: Any, arrays: Arrays) -> Arrays:
    norm_weight, scale = tensors(arrays, "norm_weight", "scale")
    weights = tensors(arrays, *(name for name in arrays if name.startswith(WEIGHT)))
    with unchanged(norm_weight=norm_weight, weights=weights[0], scale=scale):
        folded, given = pair("fold_scale", artifact.fold_scale(norm_weight, weights, scale), "norm_weight", "weights")
    if not isinstance(given, list | tuple):
        raise InputError("fold_scale returned no list", got=describe_value(given), expected="a list of weights")
    return {"norm weight": array("norm_weight", folded)} | {f"{WEIGHT}{i}": array("w", w) for i, w in enumerate(given)}


def int8_linear(artifact: Any, arrays: Arrays) -> Arrays:
    x, codes, scale = tensors(arrays, "x", "codes", "scale")
    scheme = artifact.Scheme(artifact.IntFormat(8), "channel" if len(scale) == len(codes) else "tensor")
    weight = artifact.QuantizedTensor(codes, scale, None, scheme)
    lent = {"choose_scale": wide_scale, "max_scale": wide_scale, "round_to_codes": signed_codes}
    with lend(artifact, **lent), unchanged(x=x, codes=codes):
        return {"product": array("int8_linear", artifact.int8_linear(x, weight))}


def two_four_mask(artifact: Any, arrays: Arrays) -> Arrays:
    return {"mask": array("mask", artifact.two_four_mask(*tensors(arrays, "scores")))}


def refit(artifact: Any, arrays: Arrays) -> Arrays:
    weight, mask, hessian = tensors(arrays, "weight", "mask", "hessian")
    options = {"damping": float(arrays["damping"])} if "damping" in arrays else {}
    with unchanged(weight=weight, mask=mask, hessian=hessian):
        return {"weights": array("refit", artifact.refit(weight, mask, hessian, **options))}


def price(artifact: Any, arrays: Arrays) -> Arrays:
    answers: Arrays = {}
    for i, call in enumerate(decode_value(arrays["case"])):
        shape, sparse = tuple(call["shape"]), {"is_sparse": call["is_sparse"]}
        machine = artifact.Machine(*call["machine"])
        time_s = artifact.least_time(call["tokens"], shape, call["bits"], machine, **sparse)
        answers[f"bytes of call {i}"] = whole("bytes", artifact.linear_bytes(shape, call["bits"], **sparse))
        answers[f"seconds of call {i}"] = number("seconds", time_s)
    return answers


# --- Task 7 -----------------------------------------------------------------------------------------------------------


def make_model(artifact: Any, arrays: Arrays) -> Any:
    """The model of a case, with its weights."""
    config = artifact.TransformerConfig("a model", **decode_value(arrays["case"])["config"])
    model = artifact.Transformer(config)
    names = [name for name in arrays if name.startswith(WEIGHT)]
    weights = zip(names, tensors(arrays, *names), strict=True)
    model.load_state_dict({name.removeprefix(WEIGHT): weight for name, weight in weights})
    return model.eval().requires_grad_(False)


def sensitivity(artifact: Any, arrays: Arrays) -> Arrays:
    model, (windows,), case = make_model(artifact, arrays), tensors(arrays, "windows"), decode_value(arrays["case"])
    scheme = artifact.Scheme(artifact.IntFormat(8))
    candidates = {}
    for name, count in case["candidates"].items():
        given = [tensors(arrays, f"codes {i} of {name}", f"scale {i} of {name}") for i in range(count)]
        candidates[name] = [artifact.QuantizedTensor(codes, scale, None, scheme) for codes, scale in given]
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    found = artifact.sensitivity(model, windows, candidates)
    if any(not torch.equal(weight, before[name]) for name, weight in model.state_dict().items()):
        raise InputError("sensitivity changed the model", expected="the weights that it had before")
    if not isinstance(found, Mapping) or set(found) != set(candidates):
        got = ", ".join(map(str, found)) if isinstance(found, Mapping) else describe_value(found)
        raise InputError("sensitivity returned something else", got=got, expected=", ".join(candidates))
    return {name: array(name, found[name]).astype(np.float64) for name in candidates}


def allocate(artifact: Any, arrays: Arrays) -> Arrays:
    case = decode_value(arrays["case"])
    found = artifact.allocate(case["num_bytes"], case["increases"], case["budget"])
    if not isinstance(found, list | tuple):
        raise InputError("allocate returned no list", got=describe_value(found), expected="a list of indices")
    return {"choices": np.array([whole("a choice", choice) for choice in found], np.int64)}


def compress(artifact: Any, arrays: Arrays) -> Arrays:
    model, (windows,), case = make_model(artifact, arrays), tensors(arrays, "windows"), decode_value(arrays["case"])
    layers, increase = pair("compress", artifact.compress(model, windows, case["budget"]), "layers", "increase")
    if not isinstance(layers, Mapping) or set(layers) != set(case["layers"]):
        got = ", ".join(map(str, layers)) if isinstance(layers, Mapping) else describe_value(layers)
        raise InputError("compress returned other layers", got=got, expected=", ".join(case["layers"]))
    answers = {"predicted increase": number("increase", increase)}
    for name, layer in layers.items():
        found = quantized(f"layer {name}", layer)
        answers |= {f"{part} of {name}": found[part] for part in PARTS if part in found}
        answers[f"bits of {name}"] = whole("bits of the format", layer.scheme.format.bits)
    return answers
