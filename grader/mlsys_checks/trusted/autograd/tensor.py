"""Tasks 3 and 4: arrays. Every gradient starts from a given array, so that no task leans on a later one."""

from __future__ import annotations

import numpy as np

from mlsys_checks.sandboxed.autograd import tensor as calls
from mlsys_checks.sandboxed.autograd.engine import AGAIN
from mlsys_checks.sandboxed.spec import Arrays, Case, Check, Mismatch
from mlsys_checks.trusted.autograd import snippets
from mlsys_checks.trusted.autograd.oracle import answer, gradients, leaf
from mlsys_checks.trusted.compare import close

F16, F32, F64 = "float16", "float32", "float64"


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Standard normal numbers, none of them near zero, where relu has its kink."""
    values = rng.standard_normal(shape)
    return np.asarray(np.where(np.abs(values) < 0.05, 0.5, values)).astype(dtype)


def draw_with_zeros(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Standard normal numbers, every third of them exactly 0."""
    values = draw(rng, shape, dtype)
    values.flat[::3] = 0.0
    return values


def draw_positive(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Numbers whose sums do not cancel: a right sum in any order then agrees to within the tolerance, always."""
    return rng.uniform(0.5, 2.0, shape).astype(dtype)


DRAWS = {"normal": (draw, draw), "zeros": (draw_with_zeros, draw), "positive": (draw_positive, draw_positive)}
"""How the operands x and y of a case are drawn."""


# --- unbroadcast ----------------------------------------------------------------------------------------------------


def _unbroadcast_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    shape = np.array(case.params["to"], dtype=np.int64)
    return {"grad": draw_positive(rng, case.params["from"], case.params.get("dtype", F32)), "shape": shape}


def _unbroadcast_expect(arrays: Arrays) -> Arrays:
    """Which entry of `shape` does each position read? Add there."""
    grad, shape = arrays["grad"], tuple(arrays["shape"].tolist())
    size = int(np.prod(shape))
    reads = np.broadcast_to(np.arange(size).reshape(shape), grad.shape)
    total = np.bincount(reads.reshape(-1), weights=grad.reshape(-1).astype(float), minlength=size)
    return {"result": total.reshape(shape).astype(grad.dtype)}


# --- tensor_elementwise ---------------------------------------------------------------------------------------------


def _elementwise_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    dtype = case.params.get("dtype", F32)
    x, y = case.params["x"], case.params["y"]
    draw_x, draw_y = DRAWS[case.params.get("draw", "normal")]
    return {
        "x": draw_x(rng, x, dtype),
        "y": draw_y(rng, y, dtype),
        "g1": draw(rng, x, dtype),
        "g2": draw(rng, np.broadcast_shapes(x, y), dtype),
        "transposed": np.array(case.params.get("transposed", False)),
    }


def _elementwise_expect(arrays: Arrays) -> Arrays:
    expected, dtype = {}, arrays["x"].dtype
    for name, f in calls.expressions(dtype).items():
        x, y = leaf(arrays["x"]), leaf(arrays["y"])
        result = f(x, y)
        grad_x, grad_y = gradients(result, (x, y), arrays["g2" if "y" in name else "g1"])
        expected[name], expected[f"x.grad of {name}"] = answer(result, dtype), answer(grad_x, dtype)
        expected[f"x.grad of {name} {AGAIN}"] = answer(3 * grad_x, dtype)
        if "y" in name:
            expected[f"y.grad of {name}"] = answer(grad_y, dtype)
    return expected | {calls.NO_LOG: np.array(True)}


def _elementwise_compare(got: Arrays, expected: Arrays) -> Mismatch | None:
    """In half precision the dtype is what counts: chains of roundings were seen to use 0.6 of the usual tolerance."""
    half = expected["x * y"].dtype == np.float16
    return close(got, expected, scale=4.0 if half else 1.0)


# --- tensor_matmul --------------------------------------------------------------------------------------------------


def _matmul_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    dtype = case.params.get("dtype", F32)
    x, y = case.params["x"], case.params["y"]
    batch = np.broadcast_shapes(x[:-2], y[:-2])
    return {
        "x": draw(rng, x, dtype),
        "y": draw(rng, y, dtype),
        "g": draw(rng, (*batch, x[-2], y[-1]), dtype),
        "transposed": np.array(case.params.get("transposed", False)),
    }


def _matmul_expect(arrays: Arrays) -> Arrays:
    x, y, dtype = leaf(arrays["x"]), leaf(arrays["y"]), arrays["x"].dtype
    result = x @ y
    grad_x, grad_y = gradients(result, (x, y), arrays["g"])
    expected = {"x @ y": answer(result, dtype), "x.grad": answer(grad_x, dtype), "y.grad": answer(grad_y, dtype)}
    expected |= {f"{name}.grad {AGAIN}": answer(3 * grad, dtype) for name, grad in (("x", grad_x), ("y", grad_y))}
    return expected | {calls.FLOPS: np.array(2 * 2 * result.numel() * x.shape[-1])}


def _matmul_compare(got: Arrays, expected: Arrays) -> Mismatch | None:
    """Values first; torch runs no product at all for who computes with something else."""
    flops, most = int(got.pop(calls.FLOPS)), int(expected.pop(calls.FLOPS))
    if (mismatch := close(got, expected)) is None and flops > most:
        asked = f"at most {most:,}: one product for each operand"
        return Mismatch("the backward pass computes more products than it needs", f"{flops:,} FLOPs", asked)
    return mismatch


CHECKS = (
    Check(
        name="unbroadcast",
        title="The backward pass through broadcasting",
        points=6,
        cases=(
            Case("nothing was broadcast", {"from": (3, 4), "to": (3, 4)}),
            Case("a bias", {"from": (64, 10), "to": (10,)}),
            Case("an axis that was stretched", {"from": (5, 7), "to": (5, 1)}),
            Case("both", {"from": (2, 3, 4), "to": (3, 1)}),
            Case("two axes that were stretched", {"from": (4, 5, 6), "to": (1, 5, 1)}),
            Case("a single number", {"from": (2, 1, 3, 2, 5), "to": (), "dtype": F64}),
            Case("one in front as long as one that stays", {"from": (3, 3, 4), "to": (3, 1)}),
            Case("axes of size 1 that stay", {"from": (1, 3, 1), "to": (1, 1)}, hidden=True),
            Case("an empty array", {"from": (2, 0), "to": (1,)}, hidden=True),
            Case("pairs, in front and stretched", {"from": (2, 2, 3), "to": (1, 3)}, hidden=True),
            Case("alike in front", {"from": (2, 2, 3), "to": (2, 3)}, hidden=True),
            Case("one in front, two stretched", {"from": (2, 3, 4, 5), "to": (1, 4, 1)}, hidden=True),
            Case("six axes", {"from": (2, 3, 4, 5, 2, 3), "to": (3, 1, 5, 2, 1), "dtype": F64}, hidden=True),
        ),
        inputs=_unbroadcast_inputs,
        run=calls.unbroadcast,
        snippet="unbroadcast(grad, tuple(shape.tolist()))",
        expect=_unbroadcast_expect,
        compare=close,
        first_hint="Write both shapes below each other, aligned at the right: which axes did broadcasting add, "
        "which did it stretch?",
        hint="First sum away the axes in front until both have as many; then, where the shape says 1, sum that "
        "axis and keep it. Mind that torch's sum(dim=()) sums everything.",
        uses=("unbroadcast",),
    ),
    Check(
        name="tensor_elementwise",
        title="Elementwise operations with broadcasting",
        points=7,
        cases=(
            Case("equal shapes", {"x": (3, 4), "y": (3, 4)}),
            Case("broadcasting", {"x": (3, 1), "y": (2, 3, 4)}),
            Case("double precision", {"x": (2, 5), "y": (5,), "dtype": F64}),
            Case("zeros among them", {"x": (4, 3), "y": (3,), "draw": "zeros"}),
            Case("each stretched along an axis of the other", {"x": (4, 1, 3), "y": (1, 5, 1)}),
            Case("equal shapes, from a transpose", {"x": (3, 5), "y": (3, 5), "transposed": True}),
            Case("single numbers", {"x": (), "y": (), "draw": "positive"}, hidden=True),
            Case("an empty batch", {"x": (0, 3), "y": (3,)}, hidden=True),
            Case("half precision", {"x": (3, 4), "y": (4,), "draw": "positive", "dtype": F16}, hidden=True),
        ),
        inputs=_elementwise_inputs,
        run=calls.elementwise,
        snippet=snippets.ELEMENTWISE,
        expect=_elementwise_expect,
        compare=_elementwise_compare,
        first_hint="Which of the expressions is wrong alone? Compare the shape of each gradient with that of its "
        "operand.",
        hint="Return node(result, name, (operand, vjp), …). A gradient has the shape of its operand: unbroadcast "
        "it. relu by clamp, since −∞ · 0 is NaN. If only the sums `(x + y) + y * y` are wrong, or those with "
        "`x.permute`, `backward` adds in place (+=) to an array that another "
        "operand holds as well.",
        uses=("Tensor", "backward", "mul", "exp", "log", "tanh", "relu"),
    ),
    Check(
        name="tensor_matmul",
        title="Matrix products, batched ones too",
        points=7,
        cases=(
            Case("two matrices", {"x": (5, 7), "y": (7, 3)}),
            Case("a batch meets one weight", {"x": (4, 5, 7), "y": (7, 3)}),
            Case("square, double precision", {"x": (4, 4), "y": (4, 4), "dtype": F64}),
            Case("two axes of a batch meet one weight", {"x": (2, 3, 4, 5), "y": (5, 6)}),
            Case("a batch and a weight from transposes", {"x": (3, 4, 7), "y": (7, 2), "transposed": True}),
            Case("two batches", {"x": (2, 3, 5, 7), "y": (2, 3, 7, 4)}, hidden=True),
            Case("batches that broadcast", {"x": (2, 1, 5, 7), "y": (3, 7, 2)}, hidden=True),
            Case("a weight with a batch axis of 1", {"x": (3, 4, 5), "y": (1, 5, 2)}, hidden=True),
            Case("an empty batch", {"x": (0, 4), "y": (4, 3)}, hidden=True),
            Case("a single row and column", {"x": (1, 9), "y": (9, 1), "dtype": F64}, hidden=True),
        ),
        inputs=_matmul_inputs,
        run=calls.matmul,
        snippet=snippets.MATMUL,
        expect=_matmul_expect,
        compare=_matmul_compare,
        first_hint="Write the three shapes down: only one order of factors gives the gradient the shape of its "
        "operand.",
        hint="G · Yᵀ for the left operand, Xᵀ · G for the right one; transpose the last two axes only (`.mT`), and "
        "unbroadcast what comes out. `view` wants an array in one piece, `reshape` takes any. A vjp works on "
        "torch.Tensors: g and x.data, not x. Each computes the gradient of "
        "its own operand only.",
        uses=("Tensor", "backward", "matmul"),
    ),
)
