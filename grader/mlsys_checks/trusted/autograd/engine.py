"""Tasks 1 to 6: generators of operations and graphs. Oracles: torch in double precision, and linear algebra.

`draw_…` returns the inputs of a case, `expect_…` what the oracle makes of them, `render_…` the case as code to paste.
An operation is an expression of operands in Python, which means the same to the learner's engine and to torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from mlsys_checks.sandboxed import autograd as calls
from mlsys_checks.sandboxed.spec import Arrays, Case, Mismatch
from mlsys_checks.sandboxed.values import decode_value, encode_value
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.snippet import write_input

Rng = np.random.Generator
Shape = tuple[int, ...]


def leaf(values: np.ndarray) -> torch.Tensor:
    """A double-precision tensor that torch differentiates."""
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def gradients(result: torch.Tensor, of: Sequence[torch.Tensor], g: np.ndarray) -> tuple[torch.Tensor, ...]:
    """Torch's gradients of `result` for the array `g`; zeros where no gradient flows."""
    # Asking for the derivative of Σ g · result spares the import of sympy, 0.3 s.
    total = (result * torch.from_numpy(np.asarray(g)).to(result.dtype)).sum()
    return torch.autograd.grad(total, of, retain_graph=True, allow_unused=True, materialize_grads=True)


def answer(tensor: torch.Tensor, dtype: np.dtype | type) -> np.ndarray:
    """A result of torch in the dtype that the learner's has to have."""
    return np.asarray(tensor.detach().numpy()).astype(dtype)


def _evaluate(code: str, operands: dict[str, torch.Tensor], arrays: Arrays) -> torch.Tensor:
    names: dict[str, Any] = {"torch": torch, "cross_entropy": torch.nn.functional.cross_entropy}
    names |= {name: torch.from_numpy(arrays[name]) for name in ("rows", "targets") if name in arrays}
    result: torch.Tensor = eval(code, names | operands)
    return result


def expect_operation(arrays: Arrays) -> Arrays:
    """The result of an expression, and what its edges give each operand for g and for 2 g."""
    case = decode_value(arrays["case"])
    operands = {name: leaf(arrays[name]) for name in case["operands"]}
    code, dtype = case["code"], arrays[case["operands"][0]].dtype
    result = _evaluate(code, operands, arrays)
    grads = gradients(result, tuple(operands.values()), arrays["g"])
    expected = {code: answer(result, dtype)}
    for times, again in ((1, ""), (2, f", {calls.AGAIN}")):
        for name, grad in zip(operands, grads, strict=True):
            expected[f"gradient of {name} in {code}{again}"] = answer(times * grad, dtype)
    return expected


def compare_operation(got: Arrays, expected: Arrays) -> Mismatch | None:
    """Compare; half precision gets four times the tolerance, because chains of roundings were seen to use 0.6 of it."""
    half = any(values.dtype == np.float16 for values in expected.values())
    return close(got, expected, scale=4.0 if half else 1.0)


def _operation(
    rng: Rng,
    kind: str,
    code: str,
    operands: Arrays,
    extra: Arrays | None = None,
    *,
    transposed: bool = False,
    signs: bool = True,
) -> Arrays:
    """Inputs of an operation, with a gradient of the result's shape drawn, all of it above 0 unless it has `signs`."""
    inputs = operands | (extra or {})
    with torch.no_grad():
        shape = tuple(_evaluate(code, {name: leaf(values) for name, values in operands.items()}, inputs).shape)
    case = {"kind": kind, "code": code, "operands": list(operands), "transposed": transposed}
    g = draw_positive(rng, shape, next(iter(operands.values())).dtype)
    g = g * np.asarray(rng.choice([-1, 1], shape)).astype(g.dtype) if signs else g
    return inputs | {"case": encode_value(case), "g": np.asarray(g)}


def draw_positive(rng: Rng, shape: Shape, dtype: Any) -> np.ndarray:
    """Numbers from 0.5 to 2, whose sums do not cancel."""
    return np.asarray(np.round(rng.uniform(0.5, 2.0, shape), 2), dtype)


def draw_value(rng: Rng, case: Case) -> Arrays:
    """Draw operands of an expression of Values: a from `low` to `high` with either sign, or only `positive`."""
    low, high = case.params.get("range", (0.5, 2.0))
    a = low if low == high else rng.uniform(low, high) * (1 if case.params.get("positive") else rng.choice([-1, 1]))
    exponents = case.params.get("exponents", (1,))
    code = case.params["code"].format(p=exponents[rng.integers(len(exponents))])
    numbers = {"a": a} | ({"b": rng.uniform(-2.0, 2.0)} if "b" in code else {})
    operands = {name: np.array(float(f"{value:.3g}")) for name, value in numbers.items()}
    return _operation(rng, "Value", code, operands)


def draw_shape(rng: Rng, axes: int, size: int) -> Shape:
    """A shape with `axes` axes of 1 to `size` elements, or 0 in one axis of twenty."""
    return tuple(0 if rng.random() < 1 / 20 else int(rng.integers(1, size + 1)) for _ in range(axes))


def draw_part(rng: Rng, shape: Shape) -> Shape:
    """A shape that broadcasts to `shape`: without some of the axes in front, some others 1."""
    return tuple(1 if rng.random() < 0.3 else size for size in shape[rng.integers(0, len(shape) + 1) :])


EXTREMES = {
    "a.exp()": (70.0, -70.0, -math.inf),
    "a.log()": (1e-32, 2e38),
    "a.tanh()": (4000.0, -4000.0, -math.inf, math.inf),
    "a.relu()": (2e38, -2e38, -math.inf, math.inf),
}
"""Numbers far out, for which the functions have a result in single precision."""
UNARY = tuple(EXTREMES)


def draw_elementwise(rng: Rng, case: Case) -> Arrays:
    """Draw operands of `a * b`, `a * a` or a function; all elements are near one of the numbers `extreme`, if given."""
    p = case.params
    code = p.get("code") or str(rng.choice(["a * b", "a * b", "a * a", *UNARY]))
    whole = draw_shape(rng, p.get("axes", 2), 4)
    shapes = p.get("shapes") or (draw_part(rng, whole), draw_part(rng, whole))
    dtype = p.get("dtype", "float32")
    a, b = (np.asarray(rng.standard_normal(shape)).round(2) for shape in shapes)
    a = np.abs(a) + 0.1 if "log" in code or dtype == "float16" else np.where(np.abs(a) < 0.05, 0.5, a)
    if p.get("zeros"):
        a.flat[::3] = 0.0
    if p.get("extreme"):
        a = rng.choice(p["extreme"]) * rng.uniform(0.99, 1.0, a.shape)
    operands = {"a": np.array(a, dtype)} | ({"b": np.array(b, dtype)} if "b" in code else {})
    return _operation(rng, "Tensor", code, operands, transposed=bool(p.get("transposed")))


def draw_matmul(rng: Rng, case: Case) -> Arrays:
    """Draw two matrices, or batches of them that broadcast."""
    p = case.params
    m, k, n = (p.get(name, 3) for name in "mkn")
    batch = draw_shape(rng, p.get("batch axes", 0), 3)
    a, b = p.get("shapes") or ((*draw_part(rng, batch), m, k), (*draw_part(rng, batch), k, n))
    operands = {name: rng.standard_normal(shape).round(2) for name, shape in (("a", a), ("b", b))}
    operands = {name: values.astype(p.get("dtype", "float32")) for name, values in operands.items()}
    return _operation(rng, "Tensor", "a @ b", operands, transposed=bool(p.get("transposed")))


def draw_sum(rng: Rng, case: Case) -> Arrays:
    """Draw a sum over an axis, over several or over all, or a reshape."""
    p = case.params
    shape: Shape = p.get("shape") or tuple(max(size, 1) for size in draw_shape(rng, p["axes"], 4))
    chosen = rng.permutation(len(shape))[: rng.integers(1, len(shape) + 1)] if shape else ()
    axes = tuple(int(i) - len(shape) * int(rng.integers(0, 2)) for i in chosen)
    some = [None, *([axes, axes, axes[0], axes[0]] if shape else [])]
    sums = [f"a.sum(axis={some[rng.integers(len(some))]}, keepdims={bool(rng.integers(0, 2))})"]
    shapes = [(-1,), (*shape[::-1],) or (1,), (*shape[-1:], -1), (1, *shape)]
    reshapes = [f"a.reshape({', '.join(map(str, shapes[rng.integers(4)]))})"]
    code = p.get("code") or rng.choice([*sums, *sums, *reshapes])
    dtype = p.get("dtype") or rng.choice(["float32", "float64"])
    operands = {"a": draw_positive(rng, shape, dtype)}
    return _operation(rng, "Tensor", str(code), operands, transposed=bool(p.get("transposed")))


INDICES = (
    *("a[2]", "a[1:4]", "a[:, -1]", "a[rows]", "a[rows, 0]", "a[torch.arange(5) % 2 == 0]"),
    *("a[torch.arange(len(rows)) % 5, rows % 3]", "a[{rows}]", "a[None, {rows}, -1]", "a[:, None, rows % 3]"),
)
"""What elements of a (5, n) tensor are picked by; {rows} stands for a list."""


def draw_index(rng: Rng, case: Case) -> Arrays:
    """Draw an index of a (5, n) tensor; with few `rows` to choose from, most are picked more than once."""
    p = case.params
    rows = rng.integers(-p.get("from", 5), p.get("from", 5), p["count"])
    code = str(p.get("code") or rng.choice(INDICES)).format(rows=rows.tolist()[:6])  # part of an answer's name
    a = rng.standard_normal((5, 3)).round(2).astype(p.get("dtype") or rng.choice(["float32", "float64"]))
    extra = {"rows": rows} if "rows" in code else {}
    return _operation(rng, "Tensor", code, {"a": a}, extra, transposed=bool(p.get("transposed")), signs=False)


def draw_loss(rng: Rng, case: Case) -> Arrays:
    """Draw logits of a `size`, moved by `shift`; with `ruled out`, half of the other classes have −∞."""
    p = case.params
    batch, classes = p.get("batch", 4), p.get("classes", 5)
    logits = rng.standard_normal((batch, classes)).round(2) * p.get("size", 1.0) + p.get("shift", 0.0)
    targets = rng.integers(0, classes, batch)
    if p.get("certain"):
        logits[np.arange(batch), targets] = 0.0
    if p.get("ruled out"):
        logits[(rng.random(logits.shape) < 0.5) & (np.arange(classes) != targets[:, None])] = -np.inf
    operands = {"logits": logits.astype(p.get("dtype", "float32"))}
    code, transposed = "cross_entropy(logits, targets)", bool(p.get("transposed"))
    return _operation(rng, "Tensor", code, operands, {"targets": targets}, transposed=transposed)


def render_operation(arrays: Arrays) -> str:
    """Code that computes an expression and applies the vjps of its edges, twice."""
    case = decode_value(arrays["case"])
    value = case["kind"] == "Value"
    turned = ".mT.contiguous().mT" if case["transposed"] else ""

    def write(name: str) -> str:
        array = arrays[name]
        number = write_input(name, array)
        if array.ndim or value:
            return number + (turned if array.ndim > 1 else "")
        return f"torch.tensor({number}, dtype=torch.{array.dtype})"

    options = "" if value else ", requires_grad=True"
    lines = [f"{name} = {case['kind']}({write(name)}{options})" for name in case["operands"]]
    lines += [f"{name} = {write_input(name, arrays[name])}" for name in ("rows", "targets") if name in arrays]
    lines += [f"result = {case['code']}", f"g = {write('g')}", "print(result.data)"]
    return "\n".join([*lines, "for h in (g, 2 * g):\n    print([vjp(h) for operand, vjp in result.edges])"])


def draw_unbroadcast(rng: Rng, case: Case) -> Arrays:
    """Draw the shape of a gradient, and one that broadcasts to it."""
    whole = case.params.get("from") or draw_shape(rng, case.params["axes"], 5)
    shape = case.params["to"] if "to" in case.params else draw_part(rng, whole)
    dtype = case.params.get("dtype", "float32")
    return {"grad": draw_positive(rng, whole, dtype), "shape": np.array(shape, dtype=np.int64)}


def expect_unbroadcast(arrays: Arrays) -> Arrays:
    """Add each entry of the gradient to the element that it was read from."""
    grad, shape = arrays["grad"], tuple(arrays["shape"].tolist())
    size = math.prod(shape)
    source = np.broadcast_to(np.arange(size).reshape(shape), grad.shape)
    total = np.bincount(source.reshape(-1), weights=grad.reshape(-1).astype(float), minlength=size)
    return {"the result": total.reshape(shape).astype(grad.dtype)}


def draw_graph(rng: Rng, case: Case) -> Arrays:
    """Draw a graph: node i > 0 has 1 to 3 edges to earlier nodes, half of them of slope 1; the last node is the root.

    `edges`: these and no others. `roots`: how many backward passes run, from the last node and from others. `array`:
    gradients are arrays.
    """
    p, n = case.params, case.params["nodes"]
    edges = [list(edge) for edge in p.get("edges", ())]
    if "edges" not in p:
        edges = [[i, int(rng.integers(0, i))] for i in range(1, n) for _ in range(rng.integers(1, 4))]
    slopes = np.where(rng.random(len(edges)) < 0.5, 1.0, rng.uniform(0.5, 1.5, len(edges)) * rng.choice([-1, 1]))
    roots = [n - 1, *rng.integers(n // 2, n, p.get("roots", 1) - 1)]
    return {
        "nodes": np.array(n),
        "edges": np.array(edges, dtype=np.int64).reshape(-1, 2),
        "slopes": slopes,
        "roots": np.array(roots, dtype=np.int64),
        "grad": np.asarray(rng.uniform(0.5, 2.0, (3,) if p.get("array") else ())) * p.get("grad", 1.0),
    }


def _flow(arrays: Arrays, slopes: np.ndarray) -> np.ndarray:
    """Sum over all paths from a root to each node of the product of slopes, for each root: (roots, nodes)."""
    n = int(arrays["nodes"])
    matrix = np.eye(n)
    np.add.at(matrix, tuple(arrays["edges"].T), -slopes)
    return np.linalg.solve(matrix.T, np.eye(n)[arrays["roots"]].T).T


def expect_reuse(arrays: Arrays) -> Arrays:
    """Gradients by the sum over paths; a node accumulates once in each pass whose root depends on it."""
    flow = _flow(arrays, arrays["slopes"]).sum(axis=0)
    reached = _flow(arrays, np.ones(len(arrays["slopes"]))) > 0.5
    grads = flow.reshape(-1, *[1] * arrays["grad"].ndim) * arrays["grad"]
    return {"gradients of the nodes": grads, calls.ACCUMULATED: reached.sum(axis=0)}


def expect_order(arrays: Arrays) -> Arrays:
    """The graph, by which `compare_order` judges."""
    return {"nodes": arrays["nodes"], "edges": arrays["edges"]}


def compare_order(got: Arrays, expected: Arrays) -> Mismatch | None:
    """Many orders are right: each needed node once, operands before results, the root last."""
    root, order = int(expected["nodes"]) - 1, got["order"].tolist()
    needed, stack = set[int](), [root]
    while stack:
        if (node := stack.pop()) not in needed:
            needed.add(node)
            stack += expected["edges"][expected["edges"][:, 0] == node, 1].tolist()
    if len(set(order)) < len(order):
        wanted = f"{len(needed)} nodes, once each"
        return Mismatch("a node is in the list more than once", f"{len(order)} entries", wanted)
    if set(order) != needed:
        found, wanted = f"{len(order)} nodes", f"{len(needed)} nodes, the root among them"
        return Mismatch("the list does not hold the nodes that the root depends on", found, wanted)
    at = {node: position for position, node in enumerate(order)}
    for node, operand in expected["edges"].tolist():
        if node in at and at[operand] > at[node]:
            found = f"node {node} at position {at[node]}, its operand {operand} at {at[operand]}"
            return Mismatch("a node comes before one of its operands", found, "operands first")
    return None


GRAPH = """\
nodes = [Value(math.inf) for _ in range(nodes)]  # `data` does not matter
for (i, operand), slope in zip(edges.tolist(), slopes.tolist()):
    nodes[i].edges += ((nodes[operand], lambda g, slope=slope: g if slope == 1 else g * slope),)
"""
ORDER = GRAPH + "for _ in range(2):\n    print([nodes.index(node) for node in topological_order(nodes[-1])])"


def render_reuse(arrays: Arrays) -> str:
    """Code that builds a graph and runs its backward passes."""
    names = ("nodes", "edges", "slopes", "roots", "grad")
    lines = [f"{name} = {write_input(name, arrays[name])}" for name in names]
    last = "for root in roots.tolist():\n    backward(nodes[root], grad)\nprint([node.grad for node in nodes])"
    return "\n".join([*lines, GRAPH + last])


def draw_deep(rng: Rng, case: Case) -> Arrays:
    """Draw the slopes of a chain, and how many doublings follow."""
    slopes = rng.uniform(0.999, 1.001, case.params["depth"])
    return {"slopes": slopes, "doublings": np.array(case.params["doublings"])}


def expect_deep(arrays: Arrays) -> Arrays:
    """The product of all slopes, doubled."""
    return {"gradient of the first node": np.asarray(np.prod(arrays["slopes"]) * 2.0 ** int(arrays["doublings"]))}


DEEP = """\
first = last = Value(0.0)
for slope in slopes.tolist():
    last = Value(0.0, ((last, lambda g, slope=slope: g * slope),))
for _ in range(doublings):
    last = last + last
backward(last, 1.0)
first.grad"""
