"""Generators and oracles of lab 13's last task: a language model to compress, judged on text from a secret seed."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import torch

from mlsys_checks.sandboxed.quantization import WEIGHT
from mlsys_checks.sandboxed.spec import Arrays, Case, Mismatch
from mlsys_checks.sandboxed.values import decode_value, encode_value
from mlsys_checks.trusted.compare import close
from mlsys_lab.configs import TransformerConfig
from mlsys_lab.efficiency.pretrained import CONFIG, load_grammar_model, sample_windows
from mlsys_lab.models.transformer import Transformer

Rng = np.random.Generator
TINY = {"n_layers": 1, "d_model": 8, "n_heads": 2, "d_ff": 12, "vocab_size": 11, "context": 16, "norm": "rms"}
SIZES = (*TINY, "tied")
CALIBRATION, HIDDEN = 128, 128
"""Windows that a submission sees, and those on which it is judged."""
ALLOWED, PREDICTED, LEAST = 0.6, 0.7, 0.014
"""Largest increase of the loss, as a fraction of that of 3 bits rounded to nearest; largest error of a prediction, as a
fraction of the increase, and in nats."""
GROUP = 32


def _state(arrays: Arrays) -> dict[str, torch.Tensor]:
    found = {name: x for name, x in arrays.items() if name.startswith(WEIGHT)}
    return {name.removeprefix(WEIGHT): torch.from_numpy(x) for name, x in found.items()}


def _layers_of(config: TransformerConfig) -> dict[str, tuple[int, int]]:
    """Shapes of the linear layers of the blocks, by name."""
    weights = Transformer(config).state_dict()
    return {
        name.removesuffix(".weight"): (int(weight.shape[0]), int(weight.shape[1]))
        for name, weight in weights.items()
        if name.startswith("blocks.") and weight.ndim == 2
    }


@torch.no_grad()
def _loss(config: TransformerConfig, weights: dict[str, torch.Tensor], windows: np.ndarray) -> float:
    """Mean surprise of the last T tokens of windows (N, T + 1), in float64."""
    model = Transformer(config)
    model.load_state_dict(weights)
    chances = model(torch.from_numpy(windows[:, :-1])).double().log_softmax(-1)
    return float(-chances.gather(-1, torch.from_numpy(windows[:, 1:, None])).mean())


def draw_sensitivity(rng: Rng, case: Case) -> Arrays:
    """Draw a tiny model, some of its layers, and candidates for each."""
    sizes = {**TINY, "n_layers": case.params["n_layers"]}
    config = TransformerConfig("a model", **sizes)
    shapes = {name: tuple(weight.shape) for name, weight in Transformer(config).state_dict().items()}
    arrays: Arrays = {}
    for name, shape in shapes.items():
        drawn = (
            rng.standard_normal(shape) * 2 / shape[-1] ** 0.5 if len(shape) > 1 else np.exp(rng.normal(0, 0.3, shape))
        )
        arrays[WEIGHT + name] = drawn.astype(np.float32)
    layers = _layers_of(config)
    names = rng.permutation([*layers])[: case.params["layers"]].tolist()
    counts = {name: int(rng.integers(1, 4)) for name in names}
    for name, i in [(name, i) for name, count in counts.items() for i in range(count)]:
        arrays[f"codes {i} of {name}"] = rng.integers(-127, 128, layers[name]).astype(np.int8)
        arrays[f"scale {i} of {name}"] = (0.02 * np.exp(rng.standard_normal((layers[name][0], 1)))).astype(np.float32)
    windows = rng.integers(0, sizes["vocab_size"], (case.params["windows"], 9))
    return {"case": encode_value({"config": sizes, "candidates": counts}), "windows": windows, **arrays}


def expect_sensitivity(arrays: Arrays) -> Arrays:
    """Compute the loss of the model with one layer replaced, for each candidate."""
    case, weights = decode_value(arrays["case"]), _state(arrays)
    config = TransformerConfig("a model", **case["config"])
    base, answers = _loss(config, weights, arrays["windows"]), Arrays()
    for name, count in case["candidates"].items():
        given = ((arrays[f"scale {i} of {name}"], arrays[f"codes {i} of {name}"]) for i in range(count))
        changed = [torch.from_numpy(scale * codes) for scale, codes in given]
        losses = [_loss(config, {**weights, f"{name}.weight": other}, arrays["windows"]) for other in changed]
        answers[name] = np.array(losses) - base
    return answers


def compare_increases(got: Arrays, expected: Arrays) -> Mismatch | None:
    """`close` to four digits: a loss in float32 has no more."""
    return close(got, expected, scale=1e5)


def render_sensitivity(arrays: Arrays) -> str:
    """Render the call on the model of the check."""
    case = decode_value(arrays["case"])
    lines = [f'model = Transformer(TransformerConfig("a model", **{case["config"]}))']
    lines += [
        f"state = {{name[{len(WEIGHT)}:]: torch.from_numpy(x) for name, x in given.items() if name[:7] == {WEIGHT!r}}}"
    ]
    lines += ["_ = model.load_state_dict(state)", "candidates = {}"]
    lines += [f"for name, count in {case['candidates']}.items():", "    candidates[name] = ["]
    lines += [
        "        QuantizedTensor(*(torch.from_numpy(given[f'{part} {i} of {name}']) for part in ('codes', 'scale')),"
    ]
    lines += ["                        None, Scheme(INT8)) for i in range(count)]"]
    return "\n".join([*lines, 'print(sensitivity(model, torch.from_numpy(given["windows"]), candidates))'])


def draw_allocate(rng: Rng, case: Case) -> Arrays:
    """Draw sizes and increases, some of which are equal or negative, and a budget between the least and the most."""
    layers, kind = case.params["layers"], case.params.get("kind")
    num_bytes, increases = [], []
    for _ in range(layers):
        count = int(rng.integers(2, 6))
        order = rng.permutation(count) if kind == "any order" else np.arange(count)
        sizes = np.sort(rng.integers(1, 60, count))
        rises = -np.sort(-rng.exponential(10.0 ** rng.uniform(-2, 0), count)) - 0.01
        num_bytes.append(sizes[order].tolist())
        increases.append(np.round(rises[order], 4).tolist())
    least, most = (sum(pick(sizes) for sizes in num_bytes) for pick in (min, max))
    budget = least if kind == "tight" else int(least + rng.uniform(0.2, 0.6) * (most - least))
    return {"case": encode_value({"num_bytes": num_bytes, "increases": increases, "budget": budget})}


def expect_allocate(arrays: Arrays) -> Arrays:
    """Return the least sum, by a table over all budgets from the last layer to the first."""
    case = decode_value(arrays["case"])
    best = np.zeros(case["budget"] + 1)  # by the bytes that are left
    for sizes, rises in zip(case["num_bytes"], case["increases"], strict=True):
        shifted = []
        for size, rise in zip(sizes, rises, strict=True):
            row = np.full(len(best), np.inf)
            row[size:] = best[: max(0, len(best) - size)] + rise
            shifted.append(row)
        best = np.min(shifted, axis=0)
    return {"least": best[-1], "case": arrays["case"]}


def compare_choices(got: Arrays, expected: Arrays) -> Mismatch | None:
    """Accept any choices within the budget whose sum is the least."""
    case, choices = decode_value(expected["case"]), got["choices"].tolist()
    counts = [len(sizes) for sizes in case["num_bytes"]]
    if len(choices) != len(counts) or any(not 0 <= i < n for i, n in zip(choices, counts, strict=False)):
        return Mismatch(
            "allocate returned something else", str(choices)[:90], f"an index for each of {len(counts)} layers"
        )
    used = sum(sizes[i] for sizes, i in zip(case["num_bytes"], choices, strict=True))
    if used > case["budget"]:
        return Mismatch("the choices do not fit", f"{used} bytes", f"at most {case['budget']}")
    total, least = sum(rises[i] for rises, i in zip(case["increases"], choices, strict=True)), float(expected["least"])
    if total > least + 1e-9:
        return Mismatch("the sum of increases is not the least", f"{total:.4f} with {choices}"[:90], f"{least:.4f}")
    return None


def render_allocate(arrays: Arrays) -> str:
    """Render the call."""
    case = decode_value(arrays["case"])
    return f"print(allocate({case['num_bytes']}, {case['increases']}, {case['budget']}))"


# --- A model within a budget ------------------------------------------------------------------------------------------


def draw_budget(rng: Rng, case: Case) -> Arrays:
    """Draw a budget, windows, and outliers: two channels behind a norm 8 times larger, their weights 8 times smaller.

    Which norm it is, and so which layers need bits, differs from seed to seed.
    """
    weights = {name: weight.numpy().copy() for name, weight in load_grammar_model().state_dict().items()}
    block, is_mlp = rng.integers(CONFIG.n_layers), rng.random() < 0.5
    channels = rng.choice(CONFIG.d_model, 2, replace=False)
    norm, readers = ("mlp_norm", ("mlp.gate", "mlp.up")) if is_mlp else ("attention_norm", _readers())
    weights[f"blocks.{block}.{norm}.weight"][channels] /= 8
    for reader in readers:
        weights[f"blocks.{block}.{reader}.weight"][:, channels] *= 8
    total = sum(rows * columns for rows, columns in _layers_of(CONFIG).values())
    budget = total * case.params["hundredths"] // 800
    config = {name: value for name, value in asdict(CONFIG).items() if name in SIZES}
    given = {"config": config, "budget": budget, "layers": [*_layers_of(CONFIG)]}
    seen, hidden = (int(seed) for seed in rng.integers(1000, 2**31, 2))
    arrays = {"case": encode_value(given), "windows": sample_windows(CALIBRATION, seed=seen).numpy()}
    arrays |= {WEIGHT + name: weight for name, weight in weights.items()}
    return arrays | {"_hidden": sample_windows(HIDDEN, seed=hidden).numpy()}


def _readers() -> tuple[str, ...]:
    return tuple(f"attention.{name}" for name in ("query", "key", "value"))


def expect_budget(arrays: Arrays) -> Arrays:
    """Return what the answer is judged by: the case itself."""
    return arrays


def compare_budget(got: Arrays, expected: Arrays) -> Mismatch | None:
    """Count the bytes, dequantize, and compare the loss on the hidden text with what is allowed and predicted."""
    case, weights, total_bits = decode_value(expected["case"]), _state(expected), 0
    compressed, rounded = dict(weights), dict(weights)
    for name, shape in _layers_of(CONFIG).items():
        parts = [got.get(f"{part} of {name}") for part in ("codes", "scale", "zero point")]
        bits = int(got[f"bits of {name}"])
        if (mismatch := _find_fault(name, shape, parts, bits)) is not None:
            return mismatch
        codes, scale, zero = parts
        assert codes is not None and scale is not None
        total_bits += bits * codes.size + 16 * scale.size + (0 if zero is None else 8 * zero.size)
        offset = 0.0 if zero is None else _spread(zero, shape)
        weight = (codes - offset) * _spread(scale, shape)
        compressed[f"{name}.weight"] = torch.from_numpy(weight.astype(np.float32))
        rounded[f"{name}.weight"] = _round_to_three_bits(weights[f"{name}.weight"])
    if total_bits > 8 * case["budget"]:
        what = "codes, scales and zero points take more than the budget"
        return Mismatch(what, f"{total_bits / 8:,.0f} bytes", f"at most {case['budget']:,}")
    base, increase, simple = (_loss(CONFIG, w, expected["_hidden"]) for w in (weights, compressed, rounded))
    increase, simple, predicted = increase - base, simple - base, float(got["predicted increase"])
    if not increase <= ALLOWED * simple:
        limit = f"at most {ALLOWED * simple:.4f}: {ALLOWED} of what round-to-nearest in 3 bits costs"
        return Mismatch("the loss on the hidden text rises too much", f"{increase:.4f} nats per token", limit)
    if not abs(predicted - increase) <= max(LEAST, PREDICTED * increase):
        return Mismatch("the predicted increase is wrong", f"{predicted:.4f}", f"about {increase:.4f} nats per token")
    return None


def _find_fault(name: str, shape: tuple[int, int], parts: list[np.ndarray | None], bits: int) -> Mismatch | None:
    """What is wrong with the form of a layer's codes, scales and zero points."""
    codes, scale, zero = parts
    assert codes is not None and scale is not None
    if codes.shape != shape or codes.dtype.kind not in "iu" or not 1 <= bits <= 8:
        got = f"{codes.dtype} {codes.shape} of {bits} bits"
        return Mismatch(f"codes of {name} have another form", got, f"integers {shape} of 1 to 8 bits", is_form=True)
    low, high = int(codes.min()), int(codes.max())
    if high - low >= 2**bits or low < -(2 ** (bits - 1)) or high >= 2**bits:
        return Mismatch(f"codes of {name} need more bits than their format has", f"{low} to {high}", f"{bits} bits")
    rows, groups = scale.shape if scale.ndim == 2 else (0, 0)
    if scale.shape != (1, 1) and (rows != shape[0] or not groups or shape[1] % groups):
        return Mismatch(f"scales of {name} have another form", str(scale.shape), f"({shape[0]}, G)", is_form=True)
    if zero is not None and zero.shape != scale.shape:
        return Mismatch(f"zero points of {name} have another form", str(zero.shape), str(scale.shape), is_form=True)
    with np.errstate(over="ignore"):
        if not (scale == scale.astype(np.float16)).all() or not np.isfinite(scale).all():
            return Mismatch(f"scales of {name} are not numbers of 16 bits", "more digits, or NaN", "fp16")
    if zero is not None and not (zero == np.clip(np.round(zero), 0, 2**bits - 1)).all():
        return Mismatch(f"zero points of {name} are no codes", str(zero.ravel()[:4]), f"0 to {2**bits - 1}")
    return None


def _spread(x: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Scales or zero points (O, G) or (1, 1), for each weight (O, I)."""
    rows = np.broadcast_to(x, (shape[0], x.shape[1])).astype(np.float64)
    return np.repeat(rows, shape[1] // x.shape[1], 1)


def _round_to_three_bits(weight: torch.Tensor) -> torch.Tensor:
    """Round to nearest in 3 bits and groups of 32, symmetric."""
    groups = weight.reshape(len(weight), -1, GROUP)
    scale = groups.abs().amax(-1, keepdim=True) / 3
    return torch.flatten((groups / scale).round() * scale, 1)


def render_budget(arrays: Arrays) -> str:
    """Render the call on the model of the check."""
    case = decode_value(arrays["case"])
    lines = [f'model = Transformer(TransformerConfig("a model", **{case["config"]}))']
    lines += [
        f"state = {{name[{len(WEIGHT)}:]: torch.from_numpy(x) for name, x in given.items() if name[:7] == {WEIGHT!r}}}"
    ]
    lines += ["_ = model.load_state_dict(state)"]
    lines += [f'result = compress(model, torch.from_numpy(given["windows"]), {case["budget"]})']
    return "\n".join([*lines, f'print(sum(one.num_bytes for one in result.layers.values()), "of", {case["budget"]})'])
