"""Calls of tasks 1 and 2: a number that remembers its operands, and the walk back."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from mlsys_checks.sandboxed.autograd.engine import BrokenError, fail, refuse_ring
from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.storage import storage_only
from mlsys_checks.sandboxed.values import describe_value, number
from mlsys_lab.errors import InputError

ARITHMETIC: dict[str, Callable[[Any, Any, float], Any]] = {
    "x * y": lambda x, y, p: x * y,
    "x * x": lambda x, y, p: x * x,
    "3 * x": lambda x, y, p: 3 * x,
    "x ** p": lambda x, y, p: x**p,
}

ACCUMULATED = "calls of accumulate for x * y"
FINITE = "exp of 1000 is a number"
INVERSE = "0 to the power of −1 is a number"


def _shares(name: str, result: Any, operand: Any, gs: np.ndarray) -> np.ndarray:
    """What the edges of `result` pass on to `operand` when each of the gradients `gs` arrives, (n,)."""
    vjps = [vjp for parent, vjp in result.edges if parent is operand]
    return np.array([number(name, sum((vjp(g) for vjp in vjps), 0.0)) for g in gs.tolist()])


def _refuse_lost_edge(name: str, result: Any, operand: Any) -> None:
    """Raise `InputError` where no edge of `result` leads to an operand that it was made from."""
    if not any(parent is operand for parent, _ in result.edges):
        expected = "an edge for each operand, also where its derivative is 0"
        raise InputError(f"{name} keeps no edge to x", got=f"{len(result.edges)} edges to others", expected=expected)


@storage_only
def arithmetic(artifact: Any, arrays: Arrays) -> Arrays:
    """Products and powers, and what each passes on to its operands."""
    p, gs, got = float(arrays["p"]), arrays["g"], {}
    for name, f in ARITHMETIC.items():
        x, y = artifact.Value(float(arrays["x"])), artifact.Value(float(arrays["y"]))
        result = f(x, y, p)
        if not isinstance(result, artifact.Value):
            raise InputError(f"{name} gives no Value", got=describe_value(result), expected="Value")
        _refuse_lost_edge(name, result, x)
        got[name] = number(name, result.data)
        for share, operand in ((f"share of x in {name}", x), (f"share of y in {name}", y)):
            got[share] = _shares(share, result, operand, gs)
        refuse_ring(name, partial(f, x, y, p))
    return got | {INVERSE: np.array(_is_finite(INVERSE, lambda: artifact.Value(0.0) ** -1))}


@storage_only
def functions(artifact: Any, arrays: Arrays) -> Arrays:
    """Results of exp, tanh and relu, and what each passes on to its operand."""
    got = {}
    for name in ("exp", "tanh", "relu"):
        # exp of +1000 is no number that a float holds: feed it the negative half only.
        at = -abs(float(arrays["x"])) if name == "exp" else float(arrays["x"])
        x = artifact.Value(at)
        result = getattr(x, name)()
        if not isinstance(result, artifact.Value):
            raise InputError(f"{name} gives no Value", got=describe_value(result), expected="Value")
        _refuse_lost_edge(name, result, x)
        got[name], share = number(name, result.data), f"share of x in {name}"
        got[share] = _shares(share, result, x, arrays["g"])
        refuse_ring(name, getattr(x, name))
    return got | {FINITE: np.array(_is_finite(FINITE, lambda: artifact.Value(1000.0).exp()))}


def _is_finite(name: str, make: Callable[[], Any]) -> bool:
    """Whether `make` gives a node of a finite number where there is none: no error of Python's, and not infinity."""
    try:
        result = make()
    except (ArithmeticError, ValueError):
        return False
    return math.isfinite(number(name, result.data))


@storage_only
def order(artifact: Any, arrays: Arrays) -> Arrays:
    """The numbers of the nodes in the order that the learner's search gives; −1 for a node that is none of them."""
    nodes: list[Any] = []
    for i, j in arrays["operands"]:
        nodes.append(artifact.Value(1.0) if i < 0 else nodes[i] + nodes[j])
    names = {id(node): i for i, node in enumerate(nodes)}
    found = artifact.topological_order(nodes[-1])
    if not isinstance(found, list | tuple):
        raise InputError("topological_order gives no list", got=describe_value(found), expected="list of nodes")
    return {"order": np.array([names.get(id(node), -1) for node in found], dtype=np.int64)}


def combine(x: Any, y: Any, total: Callable[[list[Any]], Any]) -> tuple[Any, Any, Any, Any]:
    """A product that is used three times, and an input that is reached by a short way and a long one.

    The last result is the sum of six numbers as `total` makes it.
    """
    product = x * y
    long_way = ((product + 1.0) * 0.5).tanh()
    first = long_way * product + x * x + product
    return product, first, first * 0.5 + y * x, total([x, x, x, product, first, y])


@storage_only
def reuse(artifact: Any, arrays: Arrays) -> Arrays:
    """Gradients after one or several backward passes, and how often one node was given its own.

    A pass that ended in an error may have gone before.
    """
    x, y = artifact.Value(float(arrays["x"])), artifact.Value(float(arrays["y"]))
    product, *results = combine(x, y, partial(_add_up, artifact))
    given, kind = [0], type(product)
    plain = kind.accumulate
    if arrays["fails"]:
        _fail_on_the_way(artifact, x, y, results[0])
        for node in (x, y, product, results[0]):
            node.grad = 0.0

    def accumulate(node: Any, grad: Any) -> None:
        given[0] += node is product
        plain(node, grad)

    kind.accumulate = accumulate  # of the class: with __slots__ a node takes no attribute of its own
    try:
        for which in arrays["calls"]:
            artifact.backward(results[which], float(arrays["seed"]))
    finally:
        kind.accumulate = plain
    grads = {"x.grad": x.grad, "y.grad": y.grad, "(x * y).grad": product.grad, "first.grad": results[0].grad}
    return {name: number(name, grad) for name, grad in grads.items()} | {ACCUMULATED: np.array(given[0])}


def _add_up(artifact: Any, operands: list[Any]) -> Any:
    """The sum of numbers as one node, with an edge for each."""
    return artifact.Value(sum(one.data for one in operands), tuple((one, lambda g: g) for one in operands))


def _fail_on_the_way(artifact: Any, x: Any, y: Any, first: Any) -> None:
    """A backward pass that ends in an error, at a moment when gradients travel to x, y or both."""
    stuck = artifact.Value(0.0, ((y, fail),))
    root = artifact.Value(0.0, tuple((operand, lambda g: g) for operand in (first, x, stuck)))
    with suppress(BrokenError):
        artifact.backward(root, 1.0)


@storage_only
def deep(artifact: Any, arrays: Arrays) -> Arrays:
    """Value and gradient of a long chain of products with doublings behind it."""
    x = artifact.Value(float(arrays["x"]))
    result = x
    for factor in arrays["factors"].tolist():
        result = result * factor
    for _ in range(int(arrays["doublings"])):
        result = result + result
    result.backward()
    return {"result": number("result", result.data), "x.grad": number("x.grad", x.grad)}
