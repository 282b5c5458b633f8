"""Task 5: the work of a training step, and its seconds at given rates. Oracle: products as torch runs them."""

from __future__ import annotations

import numpy as np

from mlsys_checks.sandboxed.spec import Arrays, Case, Check, Mismatch
from mlsys_checks.sandboxed.transformer_arithmetic import step as calls
from mlsys_checks.sandboxed.transformer_arithmetic.given import Answers
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.transformer_arithmetic.counts import GPT2_KIND, LLAMA_KIND, SMALL_KIND
from mlsys_checks.trusted.transformer_arithmetic.given import answer_parameters, answer_products, give
from mlsys_checks.trusted.transformer_arithmetic.oracle import (
    draw_model,
    draw_sequences,
    products_of,
    sizes_of,
    weights_of,
)
from mlsys_checks.trusted.transformer_arithmetic.words import describe_calls, wrap_entries


def _inputs(rng: np.random.Generator, case: Case) -> Arrays:
    return {"model": draw_model(rng, **case.params["kind"]), **draw_sequences(rng, case)}


def _rows(arrays: Arrays) -> np.ndarray:
    """All products of a step as torch runs them, a product and its transpose as one."""
    ran = products_of(arrays["model"], int(arrays["batch"]), int(arrays["tokens"]), backward=True)
    return calls.merge_shapes([list(row[1:]) for row in ran])


# --- step_products --------------------------------------------------------------------------------------------------


def _products_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    arrays = _inputs(rng, case)
    return arrays | give(answer_products(arrays["model"], (int(arrays["batch"]), int(arrays["tokens"]))))


def _products_expect(arrays: Arrays) -> Arrays:
    return {"products": _rows(arrays)}


def _products_compare(got: Arrays, expected: Arrays) -> Mismatch | None:
    """The first shape that occurs another number of times."""
    found, wanted = (_times(arrays.get("products")) for arrays in (got, expected))
    if found is None or wanted is None:
        return close(got, expected)
    for m, k, n in sorted(wanted.keys() | found.keys()):
        times, want = found.get((m, k, n), 0), wanted.get((m, k, n), 0)
        if times != want:
            what = "a product runs another number of times"
            return Mismatch(what, f"({m}, {k}) by ({k}, {n}), or transposed, {times} times", f"{want} times")
    return None


def _times(rows: np.ndarray | None) -> dict[tuple[int, int, int], int] | None:
    if rows is None or rows.ndim != 2 or rows.shape[1] != 4 or rows.dtype != np.int64:
        return None
    return {(m, k, n): times for times, m, k, n in rows.tolist()}


# --- elementwise_units ----------------------------------------------------------------------------------------------


def _units_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    arrays = _inputs(rng, case)
    return arrays | give(answer_parameters(arrays["model"]))


def _units_expect(arrays: Arrays) -> Arrays:
    """The lab's table, array by array."""
    s, batch, tokens = sizes_of(arrays["model"]), int(arrays["batch"]), int(arrays["tokens"])
    stream, heads = (batch, tokens, s.d_model), (batch, s.n_heads, tokens, s.head_dim)
    norm, scores = [stream] * 3, [(batch, s.n_heads, tokens, tokens)] * 5
    written: list[tuple[int, ...]] = [stream, stream, stream]
    for _ in range(s.n_layers):
        written += [*norm, *norm, stream, stream, *[heads] * 4, *scores, (batch, tokens, s.d_ff)]
    written += [*norm, *[(batch, tokens, s.vocab_size)] * 4]
    updated = sum(parameter.numel() for parameter in weights_of(arrays["model"]).parameters())
    return {"elementwise_units": np.array(updated + sum(np.empty(shape, np.int8).size for shape in written))}


# --- predict_step ---------------------------------------------------------------------------------------------------


def _predict_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    arrays = _inputs(rng, case)
    sizes = (int(arrays["batch"]), int(arrays["tokens"]))
    shapes = _rows(arrays)[:, 1:]
    ran = products_of(arrays["model"], *sizes, backward=True)  # more than one of a shape, in no order
    earlier: Answers = {
        "step_products": {sizes: [("a product", *row[1:]) for row in ran]},
        "elementwise_units": {sizes: int(_units_expect(arrays)["elementwise_units"])},
    }
    return arrays | {
        **give(earlier),
        "shapes": shapes,
        "rates": 1e6 * np.exp(rng.uniform(4, 10, len(shapes))).round(),
        "unit_s": np.array(float(f"{np.exp(rng.uniform(-24, -19)):.2g}")),
    }


def _predict_expect(arrays: Arrays) -> Arrays:
    times, m, k, n = _rows(arrays).T.astype(float)
    units, products_s = (
        float(_units_expect(arrays)["elementwise_units"]),
        (2 * times * m * k * n / arrays["rates"]).sum(),
    )
    return {
        calls.PRODUCTS_S: np.array(products_s),
        calls.STEP_S: np.array(products_s + units * float(arrays["unit_s"])),
    }


def _rates_code(arrays: Arrays) -> list[str]:
    """The rates as code; those of transposed shapes are the same."""
    rates = zip(arrays["shapes"].tolist(), arrays["rates"].tolist(), strict=True)
    listed = wrap_entries(f"({m}, {k}, {n}): {rate / 1e6:.0f}e6" for (m, k, n), rate in rates)
    return ["rates = {", *listed, "}", "rates |= {shape[::-1]: rate for shape, rate in rates.items()}"]


AS_WIDE = {"kind": SMALL_KIND | {"head_dim": 11}, "tokens": 11}
"""Scores are cubes: both products of their backward pass have one shape."""
ONE_TOKEN = {"kind": SMALL_KIND | {"n_layers": 1}, "batch": 1, "tokens": 1}

CHECKS = (
    Check(
        name="step_products",
        title="Every matrix product of a training step",
        points=6,
        cases=(
            Case("the small model", {"kind": SMALL_KIND}),
            Case(
                "a Llama with grouped heads, and sequences longer than its context",
                {"kind": {**LLAMA_KIND, "n_heads": 4, "n_kv_heads": 2, "context": 1}},
            ),
            Case("as many tokens as a head is wide", AS_WIDE),
            Case("one token", ONE_TOKEN),
            Case("a GPT-2", {"kind": GPT2_KIND}, hidden=True),
        ),
        inputs=_products_inputs,
        run=calls.step_products,
        describe=describe_calls("step_products(config, {batch}, {tokens})"),
        expect=_products_expect,
        compare=_products_compare,
        first_hint="Take one product Y = X·W: which two products does its backward pass run?",
        hint="Three for each of forward_products, as many times each: itself, and one for the gradient of each factor. "
        "A gradient has the shape of its factor: which length is then summed over? That is the middle number.",
        uses=("TransformerConfig", "forward_products", "step_products"),
    ),
    Check(
        name="elementwise_units",
        title="Elementwise work of the small model",
        points=3,
        cases=(
            Case("the small model", {"kind": SMALL_KIND}),
            Case("one token", ONE_TOKEN),
            Case("sequences longer than the context", {"kind": SMALL_KIND | {"context": 1}}),
            Case("many layers", {"kind": {**SMALL_KIND, "n_layers": 20}}, hidden=True),
        ),
        inputs=_units_inputs,
        run=calls.elementwise_units,
        describe=describe_calls("elementwise_units(config, {batch}, {tokens})"),
        expect=_units_expect,
        compare=close,
        first_hint="Go down the task's table with the failing model: which rows are there once, which in each layer?",
        hint="Write each row of the table as elements a token; what has heads is N·H or N·T wide, not D. Times B·T "
        "tokens. What is updated at the end does not depend on tokens.",
        uses=("TransformerConfig", "count_parameters", "elementwise_units"),
    ),
    Check(
        name="predict_step",
        title="Seconds of a step, predicted",
        points=5,
        cases=(
            Case("the small model", {"kind": SMALL_KIND}),
            Case("two layers", {"kind": {**SMALL_KIND, "n_layers": 2}}),
            Case("as many tokens as a head is wide", AS_WIDE),
            Case("one token", ONE_TOKEN),
            Case("many heads", {"kind": {**SMALL_KIND, "n_heads": 12, "n_kv_heads": 12}}, hidden=True),
        ),
        inputs=_predict_inputs,
        run=calls.predict_step,
        describe=describe_calls(
            "predict_training_step_s(config, {batch}, {tokens}, rates, {unit_s})", further=_rates_code
        ),
        expect=_predict_expect,
        compare=close,
        first_hint="Work one product out by hand: its FLOPs, its own rate, its seconds.",
        hint="Seconds of one kind of product are its FLOPs, 2·times·m·k·n, over the rate of its own shape. Add them "
        "up, and add the elementwise elements times unit_s.",
        uses=("TransformerConfig", "step_products", "elementwise_units", "predict_training_step_s"),
    ),
)
