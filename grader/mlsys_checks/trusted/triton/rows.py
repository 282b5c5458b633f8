"""Tasks 1 to 4: cases, oracles, minimum traffic, and cases as code. Letters: rows of D elements, P programs.

Oracles: definitions in float64 by NumPy and SciPy; for gradients, torch's autograd through the definition. Results are
of their inputs' dtype or, if a case says `wide`, float32: half precision into float32 shows every rounding on the way.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from scipy.special import expit
from scipy.special import softmax as softmax_of

from mlsys_checks.sandboxed.spec import Arrays, Case, Mismatch
from mlsys_checks.sandboxed.triton import PROGRAMS, blocks, power_of_two
from mlsys_checks.trusted.traced import agree, allow_at_most

F32 = 4
"""Bytes of a float32."""


def dtype_of(case: Case) -> np.dtype:
    """Return the dtype of a case's inputs."""
    return np.dtype(np.float16 if case.params.get("half") else np.float32)


def draw_wide(case: Case) -> Arrays:
    """Return whether a case's results are float32 whatever its inputs are: one of its variables."""
    return {"wide": np.array(bool(case.params.get("wide")))}


def like_result(values: np.ndarray, given: np.ndarray, arrays: Arrays) -> np.ndarray:
    """Convert expected values to the dtype of the launch's results, `given` being one of its inputs."""
    return values.astype(np.float32 if arrays["wide"] else given.dtype)


def compare_programs(got: Arrays, expected: Arrays) -> Mismatch | None:
    """Compare values, who stored each element, faults and traffic."""
    mismatch = agree(got, expected)
    if mismatch is None or not mismatch.what.startswith(f"`{PROGRAMS}`"):
        return mismatch
    what = "the values are right, but elements are stored by other programs than the task says"
    return replace(mismatch, what=what, got=f"program {mismatch.got}", expected=f"program {mismatch.expected}")


# --- silu_mul ---------------------------------------------------------------------------------------------------------


def draw_silu(rng: np.random.Generator, case: Case) -> Arrays:
    """Draw gates around `mean`, the first moved by `first`, and what they multiply."""
    p = {"mean": 0.0, "spread": 3.0, "up": 3.0, "log_block": 4, "first": 0.0, **case.params}
    gate, up = rng.normal(p["mean"], p["spread"], p["n"]), rng.normal(scale=p["up"], size=p["n"])
    gate[0] += p["first"]
    dtype, block = dtype_of(case), np.array(1 << p["log_block"])
    return {"gate": gate.astype(dtype), "up": up.astype(dtype), "BLOCK": block, **draw_wide(case)}


def expect_silu(arrays: Arrays) -> Arrays:
    """Return the product, each element's program, and the minimum traffic."""
    gate, up = (arrays[name].astype(np.float64) for name in ("gate", "up"))
    n, itemsize, block = gate.size, arrays["gate"].itemsize, int(arrays["BLOCK"])
    y = like_result(gate * expit(gate) * up, arrays["gate"], arrays)
    limits = allow_at_most(
        "silu_mul_kernel",
        reads={"gate_ptr": n * itemsize, "up_ptr": n * itemsize},
        writes={"y_ptr": y.nbytes},
        busiest=min(n, block) * (2 * itemsize + y.itemsize),
        widest=block,
        programs=blocks(n, block),
    )
    return {"y": y, PROGRAMS: np.arange(n) // block, **limits}


# --- softmax ----------------------------------------------------------------------------------------------------------


def draw_softmax(rng: np.random.Generator, case: Case) -> Arrays:
    """Draw rows around `mean`; `first` moves the first column, columns in `masked` are −∞."""
    p = {"mean": 0.0, "spread": 2.0, "first": 0.0, "masked": [], **case.params}
    x = rng.normal(p["mean"], p["spread"], (p["rows"], p["D"]))
    x[:, :1] += p["first"]
    x[:, p["masked"]] = -np.inf
    return {"x": x.astype(dtype_of(case)), **draw_wide(case)}


def expect_softmax(arrays: Arrays) -> Arrays:
    """Return the softmax of each row."""
    x = arrays["x"]
    return {"y": like_result(softmax_of(x.astype(np.float64), axis=1), x, arrays)}


def expect_softmax_traffic(arrays: Arrays) -> Arrays:
    """Return the softmax and the minimum traffic."""
    values, x = expect_softmax(arrays), arrays["x"]
    limits = allow_at_most(
        "softmax_kernel",
        reads={"x_ptr": x.nbytes},
        writes={"y_ptr": values["y"].nbytes},
        busiest=x.shape[1] * (x.itemsize + values["y"].itemsize),
        widest=power_of_two(x.shape[1]),
        programs=len(x),
    )
    return values | limits


# --- rms_norm ---------------------------------------------------------------------------------------------------------


def draw_norm(rng: np.random.Generator, case: Case) -> Arrays:
    """Draw rows and a weight; the first `zeros` rows are 0."""
    p = {"mean": 0.5, "spread": 1.0, "zeros": 0, "eps": 1e-5, **case.params}
    x = rng.normal(p["mean"], p["spread"], (p["rows"], p["D"])).astype(dtype_of(case))
    x[: p["zeros"]] = 0.0
    w = rng.normal(1, 0.5, p["D"]).astype(dtype_of(case))
    return {"x": x, "w": w, "eps": np.array(p["eps"]), **draw_wide(case)}


def _norm(given: list[torch.Tensor], eps: torch.Tensor | float) -> tuple[torch.Tensor, torch.Tensor]:
    x, w = given
    r = (x.square().mean(dim=1) + eps).rsqrt()
    return x * r[:, None] * w, r


def _doubles(arrays: Arrays, *names: str) -> list[torch.Tensor]:
    return [torch.from_numpy(arrays[name]).double() for name in names]


def expect_norm(arrays: Arrays) -> Arrays:
    """Return r and y, in this order: a wrong r spoils y too."""
    y, r = _norm(_doubles(arrays, "x", "w"), float(arrays["eps"]))
    return {"r": r.numpy().astype(np.float32), "y": like_result(y.numpy(), arrays["x"], arrays)}


def expect_norm_traffic(arrays: Arrays) -> Arrays:
    """Return y, r, and the minimum traffic."""
    values, x, w = expect_norm(arrays), arrays["x"], arrays["w"]
    rows, D = x.shape
    limits = allow_at_most(
        "rms_norm_kernel",
        reads={"x_ptr": x.nbytes, "w_ptr": rows * w.nbytes},
        writes={"y_ptr": values["y"].nbytes, "r_ptr": rows * F32},
        busiest=D * (x.itemsize + values["y"].itemsize) + w.nbytes + F32,
        widest=power_of_two(D),
        programs=rows,
    )
    return values | limits


# --- rms_norm_backward ------------------------------------------------------------------------------------------------


def draw_backward(rng: np.random.Generator, case: Case) -> Arrays:
    """Draw rows, a weight, the gradient of y (of `spread_of_dy`, moved by `rows_of_dy`), and the rows' r."""
    given = draw_norm(rng, case)
    programs = min(case.params["programs"], len(given["x"]))
    _, r = _norm(_doubles(given, "x", "w"), float(given.pop("eps")))
    dy = rng.normal(scale=case.params.get("spread_of_dy", 1.0), size=given["x"].shape)
    dy = (dy + np.array(case.params.get("rows_of_dy", [0.0]))[:, None]).astype(given["x"].dtype)
    sizes = {"programs": programs, "BLOCK_of_sum_rows": 1 << case.params.get("log_block", 4)}
    numbers = {name: np.array(number) for name, number in sizes.items()}
    return {"dy": dy, **given, "r": r.numpy().astype(np.float32), **numbers}


def expect_backward(arrays: Arrays) -> Arrays:
    """Return dx, partial sums and dw. r is an input, and says what ε is: r⁻² less the mean of squares."""
    x, w, dy, r = _doubles(arrays, "x", "w", "dy", "r")
    eps, x_hat = r**-2 - x.square().mean(dim=1), x * r[:, None]
    y, _ = _norm([x.requires_grad_(), w.requires_grad_()], eps)
    dx, dw = (grad.numpy() for grad in torch.autograd.grad(y, (x, w), dy))
    programs = int(arrays["programs"])
    partials = np.stack([(dy * x_hat)[p::programs].sum(dim=0).numpy() for p in range(programs)])
    grads = {name: like_result(grad, arrays["x"], arrays) for name, grad in (("dx", dx), ("dw", dw))}
    return {"dx": grads["dx"], "partials": partials.astype(np.float32), "dw": grads["dw"]}


def expect_backward_traffic(arrays: Arrays) -> Arrays:
    """Return the gradients, and the minimum traffic of both kernels."""
    values, x, w = expect_backward(arrays), arrays["x"], arrays["w"]
    programs, block, itemsize = int(arrays["programs"]), int(arrays["BLOCK_of_sum_rows"]), values["dx"].itemsize
    (rows, D), partials_bytes = x.shape, values["partials"].nbytes
    first = allow_at_most(
        "rms_norm_backward_kernel",
        reads={"dy_ptr": x.nbytes, "x_ptr": x.nbytes, "w_ptr": programs * w.nbytes, "r_ptr": rows * F32},
        writes={"dx_ptr": x.size * itemsize, "partials_ptr": partials_bytes},
        busiest=blocks(rows, programs) * (D * (2 * x.itemsize + itemsize) + F32) + w.nbytes + D * F32,
        widest=power_of_two(D),
        programs=programs,
    )
    second = allow_at_most(
        "sum_rows_kernel",
        reads={"partials_ptr": partials_bytes},
        writes={"dw_ptr": D * itemsize},
        busiest=min(D, block) * (programs * F32 + itemsize),
        widest=block,
        programs=blocks(D, block),
    )
    return values | first | second


# --- cases as code ----------------------------------------------------------------------------------------------------


def render_result(arrays: Arrays, like: str) -> str:
    """Write code for an unwritten result of an input's shape."""
    return f"torch.empty_like({like}, dtype=torch.float32)" if arrays.get("wide") else f"torch.empty_like({like})"


def render_launch(kernel: str, grid: object, inputs: str, results: dict[str, str], arguments: str, **sizes: int) -> str:
    """Write code for one launch: inputs from the case, results by their code, the launch, and its report."""
    names = inputs.split()
    loaded = [f'{name} = torch.from_numpy(given["{name}"])' for name in names]
    if len(names) > 1:
        loaded = [f"{', '.join(names)} = (torch.from_numpy(given[name]) for name in {inputs!r}.split())"]
    made = [f"{name} = {code}" for name, code in results.items()]
    constants = ", ".join(f"{name}={size}" for name, size in sizes.items())
    outputs = [f"{name}_ptr" for name in results]
    trace = f"trace = record({kernel}, {grid}, {arguments}, {constants}, outputs={outputs})"
    return "\n".join([*loaded, *made, trace, "show_table(report(trace).table())", ", ".join(results)])


def describe_silu(arrays: Arrays) -> str:
    """Write a case of Task 1 as code."""
    n, block, results = arrays["gate"].size, int(arrays["BLOCK"]), {"y": render_result(arrays, "gate")}
    return render_launch("silu_mul_kernel", blocks(n, block), "gate up", results, f"gate, up, y, {n}", BLOCK=block)


def describe_softmax(arrays: Arrays) -> str:
    """Write a case of Task 2 as code."""
    (rows, D), results = arrays["x"].shape, {"y": render_result(arrays, "x")}
    return render_launch("softmax_kernel", rows, "x", results, f"x, y, {D}", BLOCK=power_of_two(D))


def describe_norm(arrays: Arrays) -> str:
    """Write a case of Task 3 as code."""
    rows, D = arrays["x"].shape
    results = {"y": render_result(arrays, "x"), "r": f"torch.empty({rows})"}
    arguments = f"x, w, y, r, {D}, {float(arrays['eps'])}"
    return render_launch("rms_norm_kernel", rows, "x w", results, arguments, BLOCK=power_of_two(D))


def describe_backward(arrays: Arrays) -> str:
    """Write a case of Task 4 as code: both launches."""
    (N, D), programs, block = arrays["x"].shape, int(arrays["programs"]), int(arrays["BLOCK_of_sum_rows"])
    results = {"dx": render_result(arrays, "x"), "partials": f"torch.empty({programs}, {D})"}
    arguments, sums = f"dy, x, w, r, dx, partials, {N}, {D}", f"partials, dw, {programs}, {D}"
    kernel = "rms_norm_backward_kernel"
    first = render_launch(kernel, programs, "dy x w r", results, arguments, BLOCK=power_of_two(D))
    second = render_launch(
        "sum_rows_kernel", blocks(D, block), "", {"dw": render_result(arrays, "w")}, sums, BLOCK=block
    )
    return f"{first}\n{second}, dx, partials".replace("\ndx, partials\n", "\n")
