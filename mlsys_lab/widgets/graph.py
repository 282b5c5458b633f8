"""Data of the backward figure: the nodes of a scalar engine's graph."""

from __future__ import annotations

import math
from typing import Any

from mlsys_lab.errors import InputError

MAX_NODES = 60
"""Largest graph that is readable on one screen."""

_ORDERED = {"-", "/"}


def graph_data(root: Any, names: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """The graph behind `root`, parents before children, `root` last: `{id, label, op, parents, data, grad}` per node.

    `root` may come from any engine whose values have `data`, `grad`, and how they were computed: `edges`, pairs of
    (operand, slope), and `op`, as this course's have, or `_prev` (operands) and `_op`, as micrograd's have; an input's
    op is "". A `_prev` without order (a set) holds `x` once for `x * x`; such a parent is taken twice.
    `names` labels values: `{"x": x}`; `grad` is None before a backward pass.

    Raises `InputError` for another kind of object, for more than `MAX_NODES` nodes, and for values that are not finite.
    """
    labels = {id(value): name for name, value in (names or {}).items()}
    order = _sort_topologically(root)
    ids = {id(value): f"n{i}" for i, value in enumerate(order)}
    # A backward pass leaves 1 at the root; before it there is nothing to show or to compare.
    passed = bool(root.grad)
    nodes = []
    for value in order:
        op, operands = _operation(value)
        parents = [ids[id(operand)] for operand in operands]
        if isinstance(getattr(value, "_prev", None), set | frozenset):
            if len(parents) == 1 and op in {"+", "*", *_ORDERED}:
                parents *= 2
            elif len(parents) == 2 and op in _ORDERED:
                op = f"{op} (order not recorded)"
        nodes.append(
            {
                "id": ids[id(value)],
                "label": labels.get(id(value)) or getattr(value, "label", ""),
                "op": "neg" if op == "-" and len(parents) == 1 else op,
                "parents": parents,
                "data": _require_finite(value.data),
                "grad": _require_finite(value.grad) if passed else None,
            }
        )
    return nodes


def _operation(value: Any) -> tuple[str, list[Any]]:
    """The sign of the operation that computed a value, and the list of its operands, for any scalar engine."""
    if hasattr(value, "data") and hasattr(value, "grad"):
        if hasattr(value, "edges") and hasattr(value, "op"):
            return str(value.op), [operand for operand, _ in value.edges]
        if hasattr(value, "_prev") and hasattr(value, "_op"):
            return str(value._op), list(value._prev)
    raise InputError(
        "cannot draw this graph",
        got=f"a {type(value).__name__}",
        expected="a scalar value with data, grad, and edges and op (or _prev and _op)",
    )


def _sort_topologically(root: Any) -> list[Any]:
    """Every value that `root` depends on, each after its operands, found without recursion."""
    order: list[Any] = []
    seen: set[int] = set()
    stack = [(root, False)]
    while stack:
        value, parents_done = stack.pop()
        if parents_done:
            order.append(value)
        elif id(value) not in seen:
            seen.add(id(value))
            stack.append((value, True))
            stack.extend((operand, False) for operand in reversed(_operation(value)[1]))
            if len(seen) > MAX_NODES:
                raise InputError(
                    "this graph is too large to draw",
                    got=f"more than {MAX_NODES} nodes",
                    help="draw the graph of one neuron or one layer",
                )
    return order


def _require_finite(number: Any) -> float:
    if not math.isfinite(number):
        raise InputError("cannot draw a value that is not finite", got=number)
    return float(number)
