"""Checks of task 7: FLOPs, bytes, seconds of a step. Oracle: weights as lab 05 lists them, and every pair of tokens."""

from __future__ import annotations

import numpy as np

from mlsys_checks.sandboxed.kv_cache import work as calls
from mlsys_checks.sandboxed.kv_cache.work import SIZES, fields_of
from mlsys_checks.sandboxed.spec import Arrays, Case, Check
from mlsys_checks.sandboxed.values import encode_text, write_number
from mlsys_checks.trusted.answers import agree
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.transformer_arithmetic.oracle import model_array, weights_of


def _draw_config(rng: np.random.Generator, tied: bool, times: int) -> np.ndarray:
    """Sizes of a model with shared heads, none of which equals another by chance; widths are `times` as large."""
    kv_heads, group, half = rng.integers(2, 5), rng.integers(2, 4), rng.integers(3, 9)
    layers = rng.integers(2, 6)
    width, hidden, words = (rng.integers(a * times, b * times) for a, b in ((20, 60), (61, 150), (151, 400)))
    return np.array([layers, width, kv_heads * group, kv_heads, 2 * half, hidden, words, 4096, tied])


def _draw_step(rng: np.random.Generator, case: Case) -> Arrays:
    p = case.params
    arrays = {
        "config": _draw_config(rng, p.get("tied", False), p.get("times", 1)),
        "parts": np.array(p["parts"]) + np.array([0, int(rng.integers(0, 9)) if p.get("past", True) else 0]),
        "window": np.array(p.get("window", 0)),
        "element_bytes": np.array(p.get("element_bytes", 2)),
    }
    return arrays | (_vary(arrays) if p.get("in_turn") else {})


def _vary(arrays: Arrays) -> Arrays:
    """Further calls, as `each_call` reads them: in each one number is at its least, or the head or window another."""
    (new, past), (*sizes, tied) = arrays["parts"].T.tolist(), arrays["config"].tolist()
    named = dict(zip(SIZES, sizes, strict=True))
    least = dict.fromkeys(SIZES[:-1], 1) | {"n_heads": named["n_kv_heads"], "head_dim": 2}
    configs = [[*(named | {name: size}).values(), tied] for name, size in least.items()] + [[*sizes, not tied]]
    steps = [[[1, before] for before in past], [[count, 0] for count in new], [[new[0], past[0]]]]
    varied = [("parts", step) for step in steps] + [("config", config) for config in configs]
    numbers = [("window", 1), ("window", 0), ("element_bytes", 1)]
    return {f"{name} of call {call}": np.array(value) for call, (name, value) in enumerate([*numbers, *varied], 2)}


def _work(arrays: Arrays) -> tuple[int, int]:
    """FLOPs and bytes, weight by weight and key by key."""
    fields = fields_of(arrays["config"])
    model = weights_of(model_array(**fields, position="rotary", norm="rms", activation="swiglu"))
    weights = {name: (weight.numel(), weight.ndim) for name, weight in model.named_parameters()}
    head = "embedding.weight" if fields["tied"] else "head.weight"
    window = int(arrays["window"]) or 10**9
    flops = numbers = 0
    for name, (size, axes) in weights.items():
        numbers += size if name != "embedding.weight" or fields["tied"] else 0
        if axes == 2 and name.startswith("blocks."):
            flops += sum(2 * size * new for new, _ in arrays["parts"].tolist())
    for new, past in arrays["parts"].tolist():
        seen = [range(max(0, query - window + 1), query + 1) for query in range(past, past + new)]
        flops += 2 * weights[head][0]
        flops += sum(4 * fields["n_layers"] * fields["n_heads"] * fields["head_dim"] * len(keys) for keys in seen)
        numbers += 2 * fields["n_layers"] * fields["n_kv_heads"] * fields["head_dim"] * len(set().union(*seen))
    return flops, numbers * int(arrays["element_bytes"])


def _expect_work(arrays: Arrays) -> Arrays:
    answers: Arrays = {}
    for call, given in calls.each_call(arrays):
        flops, moved = _work(given)
        answers |= {f"FLOPs{call}": np.array(flops), f"bytes{call}": np.array(moved)}
    return answers


def _draw_prediction(rng: np.random.Generator, case: Case) -> Arrays:
    """A step, and a machine on which what the case names takes longer."""
    arrays = _draw_step(rng, case)
    flops, moved = _work(arrays)
    seconds = float(rng.uniform(1e-4, 1e-2))
    slower, faster = seconds, seconds / float(rng.uniform(1.05, 1.5))
    compute_s, memory_s = (slower, faster) if case.params["bound"] == "compute" else (faster, slower)
    rates = {"flops_per_s": flops / compute_s, "bytes_per_s": moved / memory_s}
    arrays |= {name: np.array(float(f"{rate:.3g}")) for name, rate in rates.items()}
    if case.params.get("in_turn"):
        arrays |= {
            "flops_per_s of slower compute": arrays["flops_per_s"] / 8,
            "bytes_per_s of slower memory": arrays["bytes_per_s"] / 8,
        }
    return arrays


def _expect_prediction(arrays: Arrays) -> Arrays:
    answers: Arrays = {}
    for call, given in calls.each_call(arrays):
        flops, moved = _work(given)
        times_s = {"compute": flops / float(given["flops_per_s"]), "memory": moved / float(given["bytes_per_s"])}
        bound = max(times_s, key=times_s.__getitem__)
        answers |= {f"seconds{call}": np.array(times_s[bound]), f"bound{call}": encode_text(bound)}
    return answers


def _code_of_step(arrays: Arrays) -> str:
    """The calls of a case, each with the lines that it needs and the one before it had otherwise."""
    lines: list[str] = []
    held: dict[str, object] = {}
    for call, given in calls.each_call(arrays):
        fields = ", ".join(f"{name}={value}" for name, value in fields_of(given["config"]).items())
        steps = [tuple(part) for part in given["parts"].tolist()]
        for name, value in (("config", f'TransformerConfig("a model", {fields})'), ("parts", steps)):
            if held.get(name) != value:
                lines.append(f"{name} = {value}")
                held[name] = value
        tail = f"{int(given['window']) or None}, {given['element_bytes']}"
        if "flops_per_s" in given:
            machine = ", ".join(write_number(float(given[name])) for name in ("flops_per_s", "bytes_per_s"))
            asked = f"predict_step_s(config, parts, Machine({machine}), {tail})"
        else:
            asked = f"step_work(config, parts, {tail})"
        lines.append(asked + call.replace(" of", "  #"))
    return "\n".join(lines)


CHECKS = (
    Check(
        name="step_work",
        title="FLOPs and bytes of a step",
        points=6,
        cases=(
            Case("one sequence decodes", {"parts": [[1, 40]], "past": False}),
            Case("three decode", {"parts": [[1, 40], [1, 7], [1, 23]], "element_bytes": 1}),
            Case("a prompt", {"parts": [[12, 0]], "past": False}),
            Case("a chunk and drafts", {"parts": [[16, 30], [5, 9], [1, 50]], "element_bytes": 4}),
            Case("a head that is the embedding", {"parts": [[3, 20], [1, 5]], "tied": True}),
            Case("a window", {"parts": [[1, 40], [2, 3], [8, 9]], "window": 8}),
            Case(
                "each number at its least, one at a time", {"parts": [[7, 20], [3, 40]], "window": 16, "in_turn": True}
            ),
            Case("a very large model", {"parts": [[41, 30], [18, 9]], "times": 2**19}),
            Case("a chunk for a very large model", {"parts": [[37, 12]], "times": 2**19}),
            Case("a chunk that outgrows the window", {"parts": [[7, 3], [6, 0]], "window": 5, "past": False}),
            Case(
                "any",
                {"parts": [[30, 0], [1, 60], [9, 14], [4, 25]], "window": 21, "tied": True, "element_bytes": 8},
                hidden=True,
            ),
        ),
        inputs=_draw_step,
        run=calls.step_work,
        expect=_expect_work,
        compare=close,
        describe=_code_of_step,
        first_hint="FLOPs or bytes? Take the smallest part away: what should the step lose?",
        hint="Query i of a part stands at past + i, and sees one key more than that, or `window`. The cache's bytes: "
        "what the first query sees, and the further new tokens. The head is read and multiplied; norms are read.",
        uses=("TransformerConfig", "step_work"),
    ),
    Check(
        name="predict_step",
        title="Seconds of a step, and what binds",
        points=4,
        cases=(
            Case("memory binds", {"parts": [[1, 30], [1, 8]], "bound": "memory"}),
            Case("compute binds", {"parts": [[20, 16]], "bound": "compute"}),
            Case("long texts", {"parts": [[1, 2000]] * 40, "bound": "memory"}),
            Case("a window", {"parts": [[3, 40]], "window": 5, "bound": "memory", "element_bytes": 4}),
            Case("one token, and compute binds", {"parts": [[1, 30]], "bound": "compute", "element_bytes": 4}),
            Case(
                "one thing changed at a time",
                {"parts": [[5, 30], [2, 9]], "bound": "memory", "window": 12, "in_turn": True},
            ),
            Case(
                "wide numbers, a long window",
                {"parts": [[1, 70], [1, 9]], "bound": "memory", "window": 31, "element_bytes": 8},
                hidden=True,
            ),
            Case("many parts", {"parts": [[1, 20]] * 9, "bound": "compute", "tied": True}, hidden=True),
        ),
        inputs=_draw_prediction,
        run=calls.predict_step,
        expect=_expect_prediction,
        compare=agree,
        describe=_code_of_step,
        first_hint="Do the two overlap, or does one wait for the other?",
        hint="Each is an amount over a rate, with this window and these bytes an element. At best both go on at once.",
        uses=("TransformerConfig", "Machine", "step_work", "predict_step_s"),
    ),
)
