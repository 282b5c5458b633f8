"""Tasks 1 and 2: a number that remembers its operands, and the walk back. Oracles: torch in float64, and algebra."""

from __future__ import annotations

import math

import numpy as np
import torch

from mlsys_checks.sandboxed.autograd import scalar as calls
from mlsys_checks.sandboxed.spec import Arrays, Case, Check, Mismatch
from mlsys_checks.trusted.autograd import snippets
from mlsys_checks.trusted.autograd.oracle import answer, gradients, leaf
from mlsys_checks.trusted.compare import close

# --- value_arithmetic -----------------------------------------------------------------------------------------------


def _arriving(rng: np.random.Generator) -> np.ndarray:
    """Two gradients that arrive at a node, one above zero and one below, (2,)."""
    return rng.uniform(0.5, 2.0, 2) * [1.0, -1.0]


def _slopes(result: torch.Tensor, of: tuple[torch.Tensor, ...]) -> list[np.ndarray]:
    """The derivatives of a single number."""
    return [answer(slope, float) for slope in gradients(result, of, np.ones(()))]


def _arithmetic_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    low, high = case.params["x"]
    sign = rng.choice([-1.0, 1.0])
    return {
        "x": rng.uniform(low, high, ()),
        "y": sign * rng.uniform(0.5, 2.0, ()),
        "p": np.array(float(rng.choice(case.params["p"]))),
        "g": _arriving(rng),
    }


def _arithmetic_expect(arrays: Arrays) -> Arrays:
    expected = {}
    for name, f in calls.ARITHMETIC.items():
        x, y = leaf(arrays["x"]), leaf(arrays["y"])
        result = f(x, y, float(arrays["p"]))
        slope_x, slope_y = _slopes(result, (x, y))
        expected[name] = answer(result, float)
        expected[f"share of x in {name}"] = arrays["g"] * slope_x
        expected[f"share of y in {name}"] = arrays["g"] * slope_y
    return expected | {calls.INVERSE: np.array(False)}


# --- value_functions ------------------------------------------------------------------------------------------------


def _functions_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    low, high = case.params["x"]
    return {"x": np.array(low) if low == high else rng.uniform(low, high, ()), "g": _arriving(rng)}


def _functions_expect(arrays: Arrays) -> Arrays:
    expected = {}
    for name in ("exp", "tanh", "relu"):
        x = leaf(-np.abs(arrays["x"]) if name == "exp" else arrays["x"])
        result = getattr(torch, name)(x)
        (slope,) = _slopes(result, (x,))
        expected[name], expected[f"share of x in {name}"] = answer(result, float), arrays["g"] * slope
    return expected | {calls.FINITE: np.array(False)}


# --- topological_order ----------------------------------------------------------------------------------------------


def _order_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    """operands (n, 2): node i is the sum of two earlier nodes, or an input where it says −1. The last is the root."""
    if "operands" in case.params:
        return {"operands": np.array(case.params["operands"], dtype=np.int64)}
    n = case.params["n"]
    operands = np.full((n, 2), -1, dtype=np.int64)
    for i in range(3, n):
        operands[i] = rng.integers(0, i, 2)
    return {"operands": operands}


def _order_expect(arrays: Arrays) -> Arrays:
    return {"operands": arrays["operands"]}


def _order_compare(got: Arrays, expected: Arrays) -> Mismatch | None:
    """Many orders are right: hold the properties."""
    operands, order = expected["operands"], [int(i) for i in got["order"]]
    wanted, stack = set(), [len(operands) - 1]
    while stack:
        if (node := stack.pop()) >= 0 and node not in wanted:
            wanted.add(node)
            stack.extend(int(i) for i in operands[node])
    if len(set(order)) < len(order):
        return Mismatch("a node comes more than once", f"{len(order)} entries", f"{len(wanted)} nodes, each once")
    if set(order) != wanted:
        return Mismatch("not the nodes that the root depends on", f"{len(order)} nodes", f"{len(wanted)} nodes")
    if order[-1] != len(operands) - 1:
        return Mismatch("the root is not last", f"at position {order.index(len(operands) - 1)}", "the last position")
    place = {node: position for position, node in enumerate(order)}
    for node in order:
        for operand in operands[node]:
            if operand >= 0 and place[int(operand)] > place[node]:
                return Mismatch("a node comes before one of its operands", "result before operand", "operand first")
    return None


# --- backward_reuse -------------------------------------------------------------------------------------------------


def _reuse_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    return {
        "x": rng.uniform(-1.5, 1.5, ()),
        "y": rng.uniform(-1.5, 1.5, ()),
        "seed": np.array(case.params.get("seed", 1.0)),
        "calls": np.array(case.params["calls"], dtype=np.int64),
        "fails": np.array(case.params.get("fails", False)),
    }


def _reuse_expect(arrays: Arrays) -> Arrays:
    x, y = leaf(arrays["x"]), leaf(arrays["y"])
    product, *results = calls.combine(x, y, sum)
    total = sum(results[which] for which in arrays["calls"])
    shares = gradients(total, (x, y, product, results[0]), arrays["seed"])
    names = ("x.grad", "y.grad", "(x * y).grad", "first.grad")
    expected = {name: answer(share, float) for name, share in zip(names, shares, strict=True)}
    return expected | {calls.ACCUMULATED: np.array(len(arrays["calls"]))}


# --- backward_deep --------------------------------------------------------------------------------------------------


def _deep_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    factors = rng.uniform(0.999, 1.001, case.params["depth"])
    return {"x": rng.uniform(0.5, 1.5, ()), "factors": factors, "doublings": np.array(case.params["doublings"])}


def _deep_expect(arrays: Arrays) -> Arrays:
    slope = np.prod(arrays["factors"]) * 2.0 ** int(arrays["doublings"])
    return {"result": np.asarray(arrays["x"] * slope), "x.grad": np.asarray(slope)}


FIBONACCI = ((-1, -1), (-1, -1), *((i, i + 1) for i in range(60)))
"""Two inputs and sixty sums, each of the two before it: about as many ways lead back as the golden ratio has at 60."""

CHECKS = (
    Check(
        name="value_arithmetic",
        title="Products and powers, forward and back",
        points=5,
        cases=(
            Case("positive numbers", {"x": (0.5, 2.0), "p": (-1, 0.5, 3)}),
            Case("a negative base, whole powers", {"x": (-2.0, -0.5), "p": (2, 3)}),
            Case("zero, squared", {"x": (0.0, 0.0), "p": (2,)}),
            Case("zero to the power of zero", {"x": (0.0, 0.0), "p": (0,)}),
            Case("zero to the power of one", {"x": (0.0, 0.0), "p": (1,)}),
            Case("fractional powers", {"x": (0.1, 4.0), "p": (1.5, -0.5, 0.25)}, hidden=True),
            Case("first power", {"x": (-2.0, 2.0), "p": (1,)}, hidden=True),
            Case(
                "a power that underflows, and a slope that does not", {"x": (1e-220, 1e-217), "p": (1.5,)}, hidden=True
            ),
        ),
        inputs=_arithmetic_inputs,
        run=calls.arithmetic,
        snippet=snippets.ARITHMETIC,
        expect=_arithmetic_expect,
        compare=close,
        first_hint="Look at one edge at a time: which number does the slope at this operand depend on?",
        hint="Each edge is a pair (operand, vjp), one for each use; vjp(g) returns g times the slope: b for a in a "
        "· b, p · a^(p−1) in a^p. The slope of a^0 is 0, also at a = 0; its edge stays.",
        uses=("Value",),
    ),
    Check(
        name="value_functions",
        title="exp, tanh and relu, forward and back",
        points=5,
        cases=(
            Case("positive", {"x": (0.2, 2.0)}),
            Case("negative", {"x": (-2.0, -0.2)}),
            Case("exactly zero", {"x": (0.0, 0.0)}),
            Case("where tanh is nearly flat", {"x": (6.5, 7.5)}),
            Case("far out, where tanh is flat", {"x": (900.0, 1000.0)}),
            Case("minus infinity", {"x": (-math.inf, -math.inf)}),
            Case("where cosh is finite and its square is not", {"x": (400.0, 650.0)}),
            Case("far out on the other side", {"x": (-1000.0, -900.0)}, hidden=True),
            Case("among the largest numbers", {"x": (1e308, 1.7e308)}, hidden=True),
            Case("infinity", {"x": (math.inf, math.inf)}, hidden=True),
        ),
        inputs=_functions_inputs,
        run=calls.functions,
        snippet=snippets.FUNCTIONS,
        expect=_functions_expect,
        compare=close,
        first_hint="Hold each slope against the derivative on paper, also at 0 and far out.",
        hint="math.tanh and math.exp do not overflow where the answer is finite. Slopes: e^a, 1 − tanh²(a), and 1 "
        "for a > 0, else 0; relu by max, since −∞ · 0 is NaN. Edges are a tuple of pairs, with one operand too: "
        "((self, vjp),).",
        uses=("Value",),
    ),
    Check(
        name="topological_order",
        title="Operands before results, each node once",
        points=7,
        cases=(
            Case("an input alone", {"operands": ((-1, -1),)}),
            Case("x + x", {"operands": ((-1, -1), (0, 0))}),
            Case("a diamond", {"operands": ((-1, -1), (0, 0), (0, 1), (1, 2), (0, 3))}),
            Case("a node that the root does not need", {"operands": ((-1, -1), (0, 0), (0, 1), (1, 1))}),
            Case("a random graph of 40 nodes", {"n": 40}),
            Case("sixty sums, each of the two before it", {"operands": FIBONACCI}),
            Case("a random graph of 300 nodes", {"n": 300}, hidden=True),
        ),
        inputs=_order_inputs,
        run=calls.order,
        snippet=snippets.ORDER,
        expect=_order_expect,
        compare=_order_compare,
        first_hint="Which nodes must be in the list before this one may be, and how do you know that they are?",
        hint="A node may be listed only when all of its operands are. With a stack: push the node again, marked, "
        "beneath its operands, and list it when the mark comes up. Remember what you have seen in a set.",
        uses=("Value", "topological_order"),
    ),
    Check(
        name="backward_reuse",
        title="Gradients add up where a value is used again",
        points=7,
        cases=(
            Case("one backward pass", {"calls": (0,)}),
            Case("the same backward pass twice", {"calls": (0, 0)}),
            Case("two results of one graph", {"calls": (0, 1)}),
            Case("seed 2.5", {"calls": (0,), "seed": 2.5}),
            Case("seed 0", {"calls": (0,), "seed": 0.0}),
            Case("after a pass that ended in an error", {"calls": (0,), "fails": True}),
            Case("three passes, one from a node of six edges", {"calls": (1, 2, 1)}, hidden=True),
        ),
        inputs=_reuse_inputs,
        run=calls.reuse,
        snippet=snippets.REUSE,
        expect=_reuse_expect,
        compare=close,
        first_hint="Draw the graph of x · x: how many shares reach x, and when may x pass its gradient on?",
        hint="Add shares, do not overwrite them; pass a node's gradient on only when all of it has arrived; and "
        "keep what travels in a dictionary of this call, so that a second pass does not pass the first one's "
        "gradients on again. What arrives at the root is the seed. `accumulate` is called once for each node, with "
        "the whole gradient, also where that is 0.",
        uses=("Value", "topological_order", "backward"),
    ),
    Check(
        name="backward_deep",
        title="A chain of 10,000 operations, and sixty doublings",
        points=4,
        cases=(
            Case("a chain of 10,000", {"depth": 10_000, "doublings": 0}),
            Case("sixty doublings", {"depth": 1, "doublings": 60}),
            Case("a chain of 3,000, then forty doublings", {"depth": 3_000, "doublings": 40}, hidden=True),
            Case("a chain of 50,000", {"depth": 50_000, "doublings": 0}, hidden=True),
        ),
        inputs=_deep_inputs,
        run=calls.deep,
        snippet=snippets.DEEP,
        expect=_deep_expect,
        compare=close,
        first_hint="What grows with the depth of the graph in your search, and how often does it come to the same "
        "node?",
        hint="Python's own stack holds about a thousand calls: use a list as your stack. And visit a node once, "
        "not once for each way that leads to it: sixty doublings have 2^60 ways.",
        uses=("Value", "topological_order", "backward"),
    ),
)
