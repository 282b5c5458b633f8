"""Tasks 1 and 2: an elementwise kernel and softmax. Oracle: the definitions in float64, by NumPy and SciPy."""

from __future__ import annotations

from functools import partial

import numpy as np
from scipy.special import expit
from scipy.special import softmax as softmax_of

from mlsys_checks.sandboxed.spec import Arrays, Case, Check
from mlsys_checks.sandboxed.triton import rows as calls
from mlsys_checks.sandboxed.triton.launches import PROGRAMS, blocks, power_of_two
from mlsys_checks.trusted.traced import agree, allow_at_most
from mlsys_checks.trusted.triton import snippets, speed
from mlsys_checks.trusted.triton.kinds import draw_kind, result_dtype

LEAST = {"mean": -2e38, "spread": 0.0}
"""Numbers of which a finite one that stands for -inf is seldom below, and whose products with log2(e) are finite."""
SMALL_OTHERS = {"mean": -64.0, "spread": 0.05, "first": 14.0}
"""Exponentials below 1e-6 of the largest one, of which 300 are more than the tolerance."""

# --- silu_mul -------------------------------------------------------------------------------------------------------


def _silu_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    p = {"dtype": np.float32, "mean": 0.0, "spread": 3.0, "up": 3.0, "block": 16, "first": 0.0, **case.params}
    gate, up = rng.normal(p["mean"], p["spread"], p["size"]), rng.normal(scale=p["up"], size=p["size"])
    gate[0] += p["first"]
    given = {"gate": gate.astype(p["dtype"]), "up": up.astype(p["dtype"]), "BLOCK": np.array(p["block"])}
    return given | draw_kind(case)


def _silu_expect(arrays: Arrays) -> Arrays:
    gate, up = (arrays[name].astype(np.float64) for name in ("gate", "up"))
    size, itemsize, block = gate.size, arrays["gate"].itemsize, int(arrays["BLOCK"])
    y = (gate * expit(gate) * up).astype(result_dtype(arrays, arrays["gate"].dtype))
    most = allow_at_most(
        "silu_mul_kernel",
        reads={"gate_ptr": size * itemsize, "up_ptr": size * itemsize},
        writes={"y_ptr": y.nbytes},
        busiest=min(size, block) * (2 * itemsize + y.itemsize),
        widest=block,
        programs=blocks(size, block),
    )
    return {"y": y, PROGRAMS: np.arange(size) // block, **most}


# --- softmax --------------------------------------------------------------------------------------------------------


def _softmax_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    size = (case.params["rows"], case.params["columns"])
    x = rng.normal(loc=case.params.get("mean", 0.0), scale=case.params.get("spread", 2.0), size=size)
    x[:, :1] += case.params.get("first", 0.0)
    x[:, case.params.get("shut", [])] = -np.inf
    return {"x": x.astype(case.params.get("dtype", np.float32)), **draw_kind(case)}


def _softmax_expect(arrays: Arrays, counted: bool) -> Arrays:
    x = arrays["x"]
    (rows, columns), y = x.shape, softmax_of(x.astype(np.float64), axis=1).astype(result_dtype(arrays, x.dtype))
    most = allow_at_most(
        "softmax_kernel",
        reads={"x_ptr": x.nbytes},
        writes={"y_ptr": y.nbytes},
        busiest=columns * (x.itemsize + y.itemsize),
        widest=power_of_two(columns),
        programs=rows,
    )
    return {"y": y, **most} if counted else {"y": y}


CHECKS = (
    Check(
        name="silu_mul",
        title="An elementwise kernel with a mask",
        points=5,
        cases=(
            Case("two full blocks", {"size": 32}),
            Case("a last block that is not full", {"size": 37}),
            Case("one element, nearly zero", {"size": 1, "mean": 7e-4, "spread": 1e-4}),
            Case(
                "half precision, with gates that nearly shut",
                {"size": 51, "dtype": np.float16, "mean": -17.0, "spread": 1.0, "up": 3000.0},
            ),
            Case(
                "gates far from zero, half precision in and float32 out",
                {"size": 40, "spread": 100.0, "block": 32, "dtype": np.float16, "wide": True},
            ),
            Case("gates far below zero", {"size": 19, "mean": -50.0, "spread": 2.0}),
            Case("a gate as far below zero as can be", {"size": 3, "first": -1e30}),
            Case("another length", {"size": 53, "block": 8}, hidden=True),
        ),
        inputs=_silu_inputs,
        run=calls.silu_mul,
        expect=_silu_expect,
        compare=agree,
        snippet=snippets.SILU_MUL,
        first_hint="Which addresses has the last program, and which of them lie beyond the array?",
        hint="A program's addresses are a block that begins at its number times BLOCK. Those that are less than `size` "
        "are inside; both loads and the store need that mask. tl.sigmoid wants float32.",
        uses=("silu_mul_kernel",),
        traced=True,
    ),
    Check(
        name="softmax",
        title="Softmax of rows of any length",
        points=8,
        cases=(
            Case("a row that fills its block", {"rows": 2, "columns": 8}),
            Case("rows that do not", {"rows": 3, "columns": 13}),
            Case("large numbers", {"rows": 2, "columns": 11, "mean": 120.0, "spread": 30.0}),
            Case("all of them far below zero, two infinitely", {"rows": 2, "columns": 6, "mean": -1e5, "shut": [0, 4]}),
            Case("all of them the same, hardly above the least float32", {"rows": 2, "columns": 3, **LEAST}),
            Case("half precision in, float32 out", {"rows": 2, "columns": 21, "dtype": np.float16, "wide": True}),
            Case("one element", {"rows": 1, "columns": 1}),
            Case("a large number and 300 small ones", {"rows": 2, "columns": 301, **SMALL_OTHERS}),
            Case("longer rows", {"rows": 2, "columns": 301, "mean": -50.0}, hidden=True),
        ),
        inputs=_softmax_inputs,
        run=calls.softmax,
        expect=partial(_softmax_expect, counted=False),
        compare=agree,
        snippet=snippets.SOFTMAX,
        first_hint="What stands in the lanes beyond the row's end, and what do they do to the maximum and to the sum?",
        hint="What is loaded beyond the end should be no maximum, and its exp should be 0. Subtract the maximum before "
        "exp, divide by the row's sum, store under the same mask.",
        uses=("softmax_kernel",),
        traced=True,
    ),
    Check(
        name="softmax_traffic",
        title="Softmax reads and writes each number once",
        points=4,
        cases=(
            Case("rows of 29", {"rows": 4, "columns": 29}),
            Case("rows of 64, half precision", {"rows": 3, "columns": 64, "dtype": np.float16}),
            Case("rows of 47", {"rows": 5, "columns": 47}, hidden=True),
        ),
        inputs=_softmax_inputs,
        run=calls.softmax,
        expect=partial(_softmax_expect, counted=True),
        compare=agree,
        snippet=snippets.SOFTMAX,
        first_hint="How often does the text load the row, and who else loads it?",
        hint="One tl.load, kept in a variable, serves maximum, sum and quotients: nothing has to be stored in between. "
        "Each program has one row, that of its own number.",
        uses=("softmax_kernel",),
        performance=speed.SOFTMAX,
        traced=True,
    ),
)
