"""Tasks 5 and 6: moving numbers about, and the loss. Oracles: numpy, and torch in double precision."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from mlsys_checks.sandboxed.autograd import shapes as calls
from mlsys_checks.sandboxed.autograd.engine import AGAIN
from mlsys_checks.sandboxed.spec import Arrays, Case, Check, Mismatch
from mlsys_checks.trusted.autograd import snippets
from mlsys_checks.trusted.autograd.oracle import answer, gradients, leaf
from mlsys_checks.trusted.autograd.tensor import F16, F32, F64, draw, draw_positive
from mlsys_checks.trusted.compare import close

# --- tensor_sum -----------------------------------------------------------------------------------------------------


def _sum_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    axis, keepdims = case.params["axis"], case.params.get("keepdims", False)
    shape, dtype = case.params.get("shape", (2, 3, 4)), case.params.get("dtype", F32)
    axes = axis if isinstance(axis, tuple) else () if axis is None else (axis,)
    summed = np.zeros(shape).sum(axis=axis, keepdims=keepdims).shape
    return {
        "x": draw_positive(rng, shape, dtype),
        "g": draw(rng, summed, dtype),
        "g2": draw(rng, (math.prod(shape[-1:]), math.prod(shape[:-1])), dtype),
        "axes": np.array(axes, dtype=np.int64),
        "is_tuple": np.array(isinstance(axis, tuple)),
        "keepdims": np.array(keepdims),
        "transposed": np.array(case.params.get("transposed", False)),
    }


def _sum_expect(arrays: Arrays) -> Arrays:
    x, axis, keepdims = arrays["x"].astype(float), calls.axis_of(arrays), bool(arrays["keepdims"])
    g = np.broadcast_to(np.reshape(arrays["g"].astype(float), x.sum(axis=axis, keepdims=True).shape), x.shape)
    count = x.size / arrays["g"].size
    expected = {
        "sum": x.sum(axis=axis, keepdims=keepdims),
        "x.grad of sum": g,
        "mean": x.mean(axis=axis, keepdims=keepdims),
        "x.grad of mean": g / count,
        "reshape": x.reshape(arrays["g2"].shape),
        "x.grad of reshape": arrays["g2"].reshape(x.shape),
        calls.TURNED: x.reshape(-1, len(arrays["g2"])),
        f"x.grad of {calls.TURNED}": arrays["g2"].reshape(x.shape),
    }
    return {name: np.asarray(values).astype(arrays["x"].dtype) for name, values in expected.items()}


# --- tensor_index ---------------------------------------------------------------------------------------------------


def _index_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    dtype, count = case.params.get("dtype", F32), case.params["count"]
    most, shape = case.params.get("from", 5), (5, case.params.get("width", 3))
    rows = rng.integers(-most, most, count)
    flags = {name: np.array(case.params.get(name, False)) for name in ("transposed", "long")}
    keys = calls.keys_of(flags | {"rows": rows})
    shapes = {name: np.empty(shape)[_numpy_key(key)].shape for name, key in keys.items()}
    arrays = {"x": draw(rng, shape, dtype), "rows": rows} | flags
    return arrays | {f"g of {name}": draw(rng, picked, dtype) for name, picked in shapes.items()}


def _numpy_key(key: Any) -> Any:
    if isinstance(key, tuple):
        return tuple(_numpy_key(part) for part in key)
    if isinstance(key, list):
        return np.array(key, dtype=np.int64)
    return key.numpy() if isinstance(key, torch.Tensor) else key


def _index_expect(arrays: Arrays) -> Arrays:
    expected, x = {}, arrays["x"]
    for name, key in calls.keys_of(arrays).items():
        at = _numpy_key(key)
        grad = np.zeros(x.shape)
        np.add.at(grad, at, arrays[f"g of {name}"].astype(float))
        expected[name], expected[f"x.grad of {name}"] = x[at], grad.astype(x.dtype)
        expected[f"x.grad of {name} {AGAIN}"] = (3 * grad).astype(x.dtype)
    return expected


def _compare_index(got: Arrays, expected: Arrays) -> Mismatch | None:
    """None where all is close. A gradient is a sum of n terms of size 1, or of size 3 after the second pass.

    Rounding each partial sum p leaves an error of up to (n - 1) · u · max |p|, also where the terms cancel and the sum
    is near 0; u is the unit roundoff. In half precision n is at most 3 and 5e-3 = 10 u, so that terms of size 1 allow
    for partial sums up to 5. The root mean square of the array is no measure of its terms: most entries may be 0.
    """
    terms = {name: 3.0 if name.endswith(AGAIN) else 1.0 for name in expected if name.startswith("x.grad")}
    return close(got, expected, min_size=terms)


# --- cross_entropy --------------------------------------------------------------------------------------------------


def _loss_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    batch, classes = case.params["shape"]
    dtype, size, shift = case.params.get("dtype", F32), case.params.get("size", 1.0), case.params.get("shift", 0.0)
    logits, labels = draw(rng, (batch, classes), F64) * size + shift, rng.integers(0, classes, batch)
    if case.params.get("certain"):
        logits[np.arange(batch), labels] = 0.0
    if case.params.get("ruled_out"):
        logits[(rng.random(logits.shape) < 0.5) & (np.arange(classes) != labels[:, None])] = -np.inf
    return {
        "logits": logits.astype(dtype),
        "labels": labels,
        "g": np.asarray(rng.uniform(0.5, 2.0)).astype(dtype),
        "transposed": np.array(case.params.get("transposed", False)),
    }


def _loss_expect(arrays: Arrays) -> Arrays:
    logits, dtype = leaf(arrays["logits"]), arrays["logits"].dtype
    loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(arrays["labels"]))
    (grad,) = gradients(loss, (logits,), arrays["g"])
    return {"loss": answer(loss, dtype)} | dict(
        zip(calls.LOSS_GRADS, (answer(grad, dtype), answer(3 * grad, dtype)), strict=True)
    )


CHECKS = (
    Check(
        name="tensor_sum",
        title="Sums over axes, and reshape",
        points=5,
        cases=(
            Case("everything", {"axis": None, "dtype": F64}),
            Case("the first axis", {"axis": 0}),
            Case("the last axis, kept", {"axis": -1, "keepdims": True}),
            Case("an axis in the middle, from a transpose", {"axis": 1, "transposed": True}),
            Case("two axes", {"axis": (0, 2)}),
            Case("the first axis, kept", {"axis": 0, "keepdims": True}),
            Case("a single number", {"axis": None, "shape": ()}),
            Case("half precision", {"axis": (0, 2), "dtype": F16}),
            Case("all of five axes, kept", {"axis": None, "shape": (2, 1, 3, 2, 2), "keepdims": True}, hidden=True),
            Case("two axes in falling order", {"axis": (1, 0)}, hidden=True),
            Case("a column", {"axis": 0, "shape": (5, 1)}, hidden=True),
            Case("two axes from the end, square", {"axis": (-1, -2), "shape": (3, 3, 3)}, hidden=True),
            Case("two of five axes", {"axis": (0, 3), "shape": (2, 1, 3, 2, 2)}, hidden=True),
        ),
        inputs=_sum_inputs,
        run=calls.sums,
        snippet=snippets.SUMS,
        expect=_sum_expect,
        compare=close,
        first_hint="Every entry of x went into one entry of the sum: whose gradient does it get, and in which shape "
        "does that arrive?",
        hint="Reshape the gradient to the shape with size 1 in the summed axes, then expand it to the shape of x.",
        uses=("Tensor", "backward", "mul", "reduce_sum", "reshape"),
    ),
    Check(
        name="tensor_index",
        title="Picking out, and scattering back",
        points=6,
        cases=(
            Case("few rows, picked often", {"count": 7, "from": 2}),
            Case("one row", {"count": 1}),
            Case("double precision", {"count": 4, "dtype": F64}),
            Case("half precision, long rows", {"count": 3, "dtype": F16, "width": 701}),
            Case("many rows, from a transpose", {"count": 101, "transposed": True, "long": True}, hidden=True),
            Case("no rows", {"count": 0}, hidden=True),
        ),
        inputs=_index_inputs,
        run=calls.index,
        snippet=snippets.INDEX,
        expect=_index_expect,
        compare=_compare_index,
        first_hint="What should an element get that was picked twice, and what does your assignment give it?",
        hint="Start from zeros of x's shape, and add: an element that was picked twice gets both gradients. "
        "`out[key] += g` counts one of them only.",
        uses=("Tensor", "backward", "index"),
    ),
    Check(
        name="cross_entropy",
        title="Softmax cross-entropy, at any size of logits",
        points=7,
        cases=(
            Case("a batch", {"shape": (6, 10)}),
            Case("one example, two classes", {"shape": (1, 2)}),
            Case("huge logits", {"shape": (5, 4), "size": 1e4}),
            Case("all logits far below zero", {"shape": (5, 4), "shift": -1e6}),
            Case("double precision", {"shape": (3, 7), "dtype": F64}),
            Case("classes that are ruled out", {"shape": (6, 5), "ruled_out": True}),
            Case("half precision", {"shape": (48, 5), "size": 30.0, "dtype": F16}),
            Case(
                "a large batch, from a transpose", {"shape": (257, 11), "size": 30.0, "transposed": True}, hidden=True
            ),
            Case("as many classes as examples", {"shape": (9, 9)}, hidden=True),
            Case("one example, many classes", {"shape": (1, 101)}, hidden=True),
            Case("one class", {"shape": (3, 1)}, hidden=True),
            Case(
                "all but certain",
                {"shape": (5, 4), "size": 0.1, "shift": -15.5, "certain": True, "dtype": F64},
                hidden=True,
            ),
        ),
        inputs=_loss_inputs,
        run=calls.loss,
        snippet=snippets.LOSS,
        expect=_loss_expect,
        compare=close,
        first_hint="Try logits of 10,000 by hand: at which step do numbers leave the range of the dtype?",
        hint="Subtract each row's largest logit first, from the label's logit too, which is picked by its index: a "
        "product with 0 makes NaN of −∞. The gradient is (p − one-hot) / B, "
        "times the gradient g that arrives. The vjp may change in place only what it has made itself.",
        uses=("Tensor", "backward", "cross_entropy"),
    ),
)
