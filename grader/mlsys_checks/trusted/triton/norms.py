"""Tasks 3 and 4: RMS norm and its gradients. Oracle: torch's autograd through the definition, in float64."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from mlsys_checks.sandboxed.spec import Arrays, Case, Check
from mlsys_checks.sandboxed.triton import norms as calls
from mlsys_checks.sandboxed.triton.launches import blocks, power_of_two
from mlsys_checks.trusted.traced import agree, allow_at_most
from mlsys_checks.trusted.triton import snippets
from mlsys_checks.trusted.triton.kinds import draw_kind, result_dtype

F32 = 4
"""Bytes of a float32."""
LARGE = {"dtype": np.float16, "mean": 2.0, "spread": 0.1, "rows_of_dy": [2.5e4, 2.5e4, 2.5e4, -2.5e4]}
"""Gradients whose sum over rows is a float16, while that of the first three is none."""

TINY = {"mean": 0.0, "spread": 1e-4, "eps": 1e-8, "zeros": 1, "dtype": np.float16, "wide": True}
"""Squares as small as ε, which is 0 in half precision."""


def _norm(x: torch.Tensor, w: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """y and r, in the precision of x."""
    r = (x.square().mean(dim=1) + eps).rsqrt()
    return x * r[:, None] * w, r


def _inputs(rng: np.random.Generator, case: Case) -> Arrays:
    size = (case.params["rows"], case.params["columns"])
    dtype = case.params.get("dtype", np.float32)
    x = rng.normal(loc=case.params.get("mean", 0.5), scale=case.params.get("spread", 1.0), size=size).astype(dtype)
    x[: case.params.get("zeros", 0)] = 0.0
    w = rng.normal(1, 0.5, size[1]).astype(dtype)
    return {"x": x, "w": w, "eps": np.array(case.params.get("eps", 1e-5)), **draw_kind(case)}


# --- rms_norm -------------------------------------------------------------------------------------------------------


def _forward_expect(arrays: Arrays, counted: bool) -> Arrays:
    x, w = arrays["x"], arrays["w"]
    y, r = _norm(torch.from_numpy(x).double(), torch.from_numpy(w).double(), float(arrays["eps"]))
    values = {"y": y.numpy().astype(result_dtype(arrays, x.dtype)), "r": r.numpy().astype(np.float32)}
    rows, columns = x.shape
    most = allow_at_most(
        "rms_norm_kernel",
        reads={"x_ptr": x.nbytes, "w_ptr": rows * w.nbytes},
        writes={"y_ptr": values["y"].nbytes, "r_ptr": rows * F32},
        busiest=columns * (x.itemsize + values["y"].itemsize) + w.nbytes + F32,
        widest=power_of_two(columns),
        programs=rows,
    )
    return values | most if counted else values


# --- rms_norm_backward ----------------------------------------------------------------------------------------------


def _backward_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    given = _inputs(rng, case)
    x, w = (torch.from_numpy(given[name]).double() for name in ("x", "w"))
    _, r = _norm(x, w, float(given.pop("eps")))
    dy = rng.normal(scale=case.params.get("spread_of_dy", 1.0), size=x.shape)
    dy = (dy + np.array(case.params.get("rows_of_dy", [0.0]))[:, None]).astype(given["x"].dtype)
    numbers = {"programs": case.params["programs"], "BLOCK_of_sum_shares": case.params.get("block", 16)}
    sizes = {name: np.array(number) for name, number in numbers.items()}
    return {"dy": dy, **given, "r": r.numpy().astype(np.float32), **sizes}


def _backward_expect(arrays: Arrays, counted: bool) -> Arrays:
    """r is an input, so ε is what it says: r⁻² less the mean of squares."""
    x, w, dy = (torch.from_numpy(arrays[name]).double() for name in ("x", "w", "dy"))
    r = torch.from_numpy(arrays["r"]).double()
    eps = r**-2 - x.square().mean(dim=1)
    x.requires_grad_()
    w.requires_grad_()
    y = x * (x.square().mean(dim=1) + eps).rsqrt()[:, None] * w
    dx, dw = torch.autograd.grad(y, (x, w), dy)
    parts, programs = dy * (x * r[:, None]).detach(), int(arrays["programs"])
    share = np.stack([parts[p::programs].sum(dim=0).numpy() for p in range(programs)])
    dtype = result_dtype(arrays, arrays["x"].dtype)
    values = {"dx": dx.numpy().astype(dtype), "share": share.astype(np.float32), "dw": dw.numpy().astype(dtype)}
    return values | _backward_most(arrays, dtype.itemsize) if counted else values


def _backward_most(arrays: Arrays, itemsize: int) -> Arrays:
    """`itemsize` is that of dx and of dw."""
    x, w, programs, block = arrays["x"], arrays["w"], int(arrays["programs"]), int(arrays["BLOCK_of_sum_shares"])
    (rows, columns), shares = x.shape, programs * x.shape[1] * F32
    each = blocks(rows, programs) * (columns * (2 * x.itemsize + itemsize) + F32) + w.nbytes + columns * F32
    first = allow_at_most(
        "rms_norm_backward_kernel",
        reads={"dy_ptr": x.nbytes, "x_ptr": x.nbytes, "w_ptr": programs * w.nbytes, "r_ptr": rows * F32},
        writes={"dx_ptr": x.size * itemsize, "share_ptr": shares},
        busiest=each,
        widest=power_of_two(columns),
        programs=programs,
    )
    second = allow_at_most(
        "sum_shares_kernel",
        reads={"share_ptr": shares},
        writes={"dw_ptr": columns * itemsize},
        busiest=min(columns, block) * (programs * F32 + itemsize),
        widest=block,
        programs=blocks(columns, block),
    )
    return first | second


CHECKS = (
    Check(
        name="rms_norm",
        title="RMS norm of rows, and their r",
        points=6,
        cases=(
            Case("rows of 8", {"rows": 3, "columns": 8}),
            Case("rows that do not fill their block", {"rows": 3, "columns": 13}),
            Case("small numbers, where ε matters", {"rows": 2, "columns": 7, "spread": 0.01, "eps": 0.1}),
            Case(
                "half precision in, float32 out",
                {"rows": 2, "columns": 19, "dtype": np.float16, "spread": 300.0, "wide": True},
            ),
            Case("smaller numbers and ε, half precision, and a row of zeros", {"rows": 3, "columns": 7, **TINY}),
            Case("one element", {"rows": 1, "columns": 1}),
            Case("other rows", {"rows": 2, "columns": 101}, hidden=True),
        ),
        inputs=_inputs,
        run=calls.forward,
        expect=partial(_forward_expect, counted=False),
        compare=agree,
        snippet=snippets.RMS_NORM,
        first_hint="Which number does the mean divide by, and where under the root does ε stand?",
        hint="The mean divides by `columns`; ε is added to it under the root. r is one number a row: store it at "
        "r_ptr + row. Beyond the row's end x has to be 0.",
        uses=("rms_norm_kernel",),
        traced=True,
    ),
    Check(
        name="rms_norm_traffic",
        title="RMS norm reads each row once",
        points=3,
        cases=(
            Case("rows of 27", {"rows": 4, "columns": 27}),
            Case("rows of 43", {"rows": 3, "columns": 43, "dtype": np.float16}, hidden=True),
        ),
        inputs=_inputs,
        run=calls.forward,
        expect=partial(_forward_expect, counted=True),
        compare=agree,
        snippet=snippets.RMS_NORM,
        first_hint="What of a row is used twice, and where is it in between?",
        hint="Keep x between the sum of its squares and the product. One program, one row.",
        uses=("rms_norm_kernel",),
        traced=True,
    ),
    Check(
        name="rms_norm_backward",
        title="Gradients of x and of the weight",
        points=9,
        cases=(
            Case("one program", {"rows": 2, "columns": 8, "programs": 1}),
            Case("rows that do not divide among programs", {"rows": 5, "columns": 13, "programs": 2, "eps": 0.5}),
            Case("more columns than one program adds", {"rows": 3, "columns": 21, "programs": 3}),
            Case(
                "half precision in, float32 out",
                {"rows": 4, "columns": 19, "programs": 3, "dtype": np.float16, "wide": True},
            ),
            Case("half precision, large shares", {"rows": 4, "columns": 5, "programs": 4, **LARGE}),
            Case("seventy programs", {"rows": 71, "columns": 5, "programs": 70}),
            Case(
                "one column, seventy rows a program",
                {"rows": 140, "columns": 1, "programs": 2, "eps": 0.5},
            ),
            Case("others", {"rows": 7, "columns": 37, "programs": 6, "block": 32, "spread_of_dy": 50.0}, hidden=True),
            Case("one row", {"rows": 1, "columns": 13, "programs": 1, "eps": 0.5}, hidden=True),
        ),
        inputs=_backward_inputs,
        run=calls.backward,
        expect=partial(_backward_expect, counted=False),
        compare=agree,
        snippet=snippets.RMS_NORM_BACKWARD,
        first_hint="Which of the results is off? dx is made of one row, dw of all: look at the row's sum first, then "
        "at the share.",
        hint="The rows of a program begin at its number and are as far apart as there are programs. The sum over a row "
        "is of dy · w · x̂, and is divided by `columns`. The share adds dy · x̂, without w. sum_shares_kernel goes "
        "through all P rows.",
        uses=("rms_norm_backward_kernel", "sum_shares_kernel"),
        traced=True,
    ),
    Check(
        name="rms_norm_backward_traffic",
        title="The backward pass reads x and dy once, and shares its work",
        points=4,
        cases=(
            Case("6 rows, 3 programs", {"rows": 6, "columns": 21, "programs": 3}),
            Case("11 rows, 2 programs", {"rows": 11, "columns": 33, "programs": 2, "block": 8}, hidden=True),
        ),
        inputs=_backward_inputs,
        run=calls.backward,
        expect=partial(_backward_expect, counted=True),
        compare=agree,
        snippet=snippets.RMS_NORM_BACKWARD,
        first_hint="What is the same for all rows of a program, and what is finished only after the last?",
        hint="Load w before the loop. Within it, x and dy are loaded once and serve dx as well as the share. The share "
        "is stored once, after the loop.",
        uses=("rms_norm_backward_kernel", "sum_shares_kernel"),
        traced=True,
    ),
)
