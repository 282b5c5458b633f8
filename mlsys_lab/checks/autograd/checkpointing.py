"""Task 8: bytes predicted, and gradients under a byte budget. Oracles: algebra, and torch in slices of the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from mlsys_lab.checks.autograd.common import answer, array, gradients, leaf, storage_only, whole
from mlsys_lab.checks.compare import close
from mlsys_lab.checks.spec import Arrays, Case, Check, Mismatch

LAYERS, BATCH, WIDTH = 64, 8192, 64
"""The deep stack: one result is 2 MiB, the whole graph 384 MiB, a checkpointed one about 65 MiB."""


def _sizes(rng: np.random.Generator, case: Case) -> Arrays:
    low, high = case.params["layers"]
    return {
        "batch": rng.integers(1, 500, ()),
        "width": rng.integers(1, 500, ()),
        "layers": rng.integers(low, high, ()),
        "segments": rng.integers(1, low + 1, ()),
    }


# --- graph_bytes ----------------------------------------------------------------------------------------------------


@storage_only
def _graph_run(artifact: Any, arrays: Arrays) -> Arrays:
    sizes = (int(arrays[name]) for name in ("batch", "width", "layers"))
    return {"bytes": whole("bytes", artifact.predict_graph_bytes(*sizes))}


def _graph_expect(arrays: Arrays) -> Arrays:
    one = np.empty((int(arrays["batch"]), int(arrays["width"])), dtype=np.float32).nbytes
    return {"bytes": np.array(sum(one for _ in range(int(arrays["layers"])) for _ in ("@", "+", "tanh")))}


# --- checkpointed_bytes ---------------------------------------------------------------------------------------------


@storage_only
def _segments_run(artifact: Any, arrays: Arrays) -> Arrays:
    sizes = (int(arrays[name]) for name in ("batch", "width", "layers", "segments"))
    return {
        "bytes": whole("bytes", artifact.predict_checkpointed_bytes(*sizes)),
        "choose_segments": whole("choose_segments", artifact.choose_segments(int(arrays["layers"]))),
    }


def _segments_expect(arrays: Arrays) -> Arrays:
    layers = int(arrays["layers"])
    one = np.empty((int(arrays["batch"]), int(arrays["width"])), dtype=np.float32).nbytes
    held = [k + 3 * -(-layers // k) for k in range(1, layers + 1)]
    return {
        "bytes": np.array(held[int(arrays["segments"]) - 1] * one),
        "choose_segments": np.array(int(np.argmin(held)) + 1),
    }


# --- checkpoint -----------------------------------------------------------------------------------------------------


def _stage(h: Any, w: Any, v: Any) -> Any:
    """Two products and a short cut, so that h is used twice inside."""
    return ((h @ w).tanh() @ v) + h * 0.5


def _checkpoint_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    return {
        "x": rng.standard_normal((5, 4)),
        "w": rng.standard_normal((4, 6)),
        "v": rng.standard_normal((6, 4)),
        "g": rng.standard_normal((5, 4)),
        "x_wants": np.array(case.params.get("x_wants", True)),
        "backwards": np.array(case.params.get("backwards", 1)),
        "nested": np.array(case.params.get("nested", False)),
    }


@storage_only
def _checkpoint_run(artifact: Any, arrays: Arrays) -> Arrays:
    calls = [0]

    def stage(h: Any) -> Any:
        calls[0] += 1
        return _stage(h, w, v)

    def twice(h: Any) -> Any:
        return artifact.checkpoint(stage, artifact.checkpoint(stage, h))

    w, v = (artifact.Tensor(torch.from_numpy(arrays[name]), requires_grad=True) for name in ("w", "v"))
    x = artifact.Tensor(torch.from_numpy(arrays["x"]), requires_grad=bool(arrays["x_wants"]))
    result = artifact.checkpoint(twice, x) if arrays["nested"] else twice(x)
    forward_calls = calls[0]
    for _ in range(int(arrays["backwards"])):
        artifact.backward(result, torch.from_numpy(arrays["g"]))
    got = {"result": array("the result", result), "w.grad": array("w.grad", w.grad), "v.grad": array("v.grad", v.grad)}
    if arrays["x_wants"]:
        got["x.grad"] = array("x.grad", x.grad)
    return got | {"calls of fn": np.array((forward_calls, calls[0]))}


def _checkpoint_expect(arrays: Arrays) -> Arrays:
    x, w, v = (leaf(arrays[name]) for name in ("x", "w", "v"))
    result = _stage(_stage(x, w, v), w, v)
    backwards = int(arrays["backwards"])
    grad_x, grad_w, grad_v = gradients(result, (x, w, v), arrays["g"] * backwards)
    expected = {"result": answer(result, float), "w.grad": answer(grad_w, float), "v.grad": answer(grad_v, float)}
    if arrays["x_wants"]:
        expected["x.grad"] = answer(grad_x, float)
    # An inner stage runs forward, once when the outer segment is rebuilt, and once for its own way back.
    again = 2 if arrays["nested"] else 1
    return expected | {"calls of fn": np.array((2, 2 + 2 * again * backwards))}


# --- checkpoint_memory ----------------------------------------------------------------------------------------------


def _memory_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    """Orthogonal weights, so that nothing fades or blows up over sixty-four layers."""
    weights = np.linalg.qr(rng.standard_normal((LAYERS, WIDTH, WIDTH)))[0]
    return {
        "x": rng.standard_normal((BATCH, WIDTH)).astype(np.float32),
        "weights": weights.astype(np.float32),
        "biases": (0.1 * rng.standard_normal((LAYERS, WIDTH))).astype(np.float32),
        "g": (rng.standard_normal((BATCH, WIDTH)) / BATCH).astype(np.float32),
        "segments": np.array(case.params["segments"]),
    }


@storage_only
def _memory_run(artifact: Any, arrays: Arrays) -> Arrays:
    calls = [0] * LAYERS
    weights = [artifact.Tensor(torch.from_numpy(w), requires_grad=True) for w in arrays["weights"]]
    biases = [artifact.Tensor(torch.from_numpy(b), requires_grad=True) for b in arrays["biases"]]

    def layer(i: int) -> Any:
        def apply(h: Any) -> Any:
            calls[i] += 1
            return (h @ weights[i] + biases[i]).tanh()

        return apply

    x = artifact.Tensor(torch.from_numpy(arrays["x"]))
    result = artifact.checkpoint_sequential([layer(i) for i in range(LAYERS)], x, int(arrays["segments"]))
    artifact.backward(result, torch.from_numpy(arrays["g"]))
    return {
        "result": array("the result", result)[::1000],
        "gradient of the first weight": array("gradient of the first weight", weights[0].grad),
        "gradients of the biases": np.stack([array("a bias's gradient", b.grad) for b in biases]),
        "most calls of a layer": np.array(max(calls)),
    }


def _memory_expect(arrays: Arrays) -> Arrays:
    """Images of a batch do not meet: gradients of the weights are sums over slices of it."""
    weights, biases = leaf(arrays["weights"]), leaf(arrays["biases"])
    results, grad_w, grad_b = [], np.zeros(()), np.zeros(())
    for h, g in zip(np.split(arrays["x"], 16), np.split(arrays["g"], 16), strict=True):
        out = torch.from_numpy(h).double()
        for w, b in zip(weights.unbind(), biases.unbind(), strict=True):
            out = (out @ w + b).tanh()
        results.append(answer(out, np.float32))
        shares = gradients(out, (weights, biases), g)
        grad_w, grad_b = grad_w + answer(shares[0], float), grad_b + answer(shares[1], float)
    return {
        "result": np.concatenate(results)[::1000],
        "gradient of the first weight": grad_w[0].astype(np.float32),
        "gradients of the biases": grad_b.astype(np.float32),
    }


def _memory_compare(got: Arrays, expected: Arrays) -> Mismatch | None:
    """Sums over 8,192 images in float32, through 64 layers, stray further than one operation does."""
    calls = int(got.pop("most calls of a layer"))
    if calls > 2:
        return Mismatch("a layer runs too often", f"{calls} calls", "at most 2: once forward, once on the way back")
    return close(got, expected, scale=20)


CHECKS = (
    Check(
        name="graph_bytes",
        title="Bytes that a graph holds, predicted",
        points=3,
        cases=(
            Case("one layer", {"layers": (1, 2)}),
            Case("a few layers", {"layers": (2, 20)}),
            Case("many layers", {"layers": (100, 300)}, hidden=True),
        ),
        inputs=_sizes,
        run=_graph_run,
        expect=_graph_expect,
        compare=close,
        hint="Three results a layer (product, sum, tanh), each of batch × width numbers of 4 bytes. Return an int.",
        uses=("predict_graph_bytes",),
    ),
    Check(
        name="checkpoint",
        title="The same gradients from a second forward pass",
        points=5,
        cases=(
            Case("two segments", {}),
            Case("data that wants no gradient", {"x_wants": False}),
            Case("two backward passes", {"backwards": 2}),
            Case("a checkpoint within a checkpoint", {"nested": True}, hidden=True),
        ),
        inputs=_checkpoint_inputs,
        run=_checkpoint_run,
        expect=_checkpoint_expect,
        compare=close,
        hint="In the vjp: a fresh input on x.data that requires a gradient, fn on it, backward(…, g), and return "
        "that input's gradient. If weights get none when x is data, the only edge was dropped: let it lead to "
        "a tensor that wants one.",
        uses=("Tensor", "backward", "no_grad", "checkpoint"),
    ),
    Check(
        name="checkpointed_bytes",
        title="Bytes under checkpointing, and the best number of segments",
        points=3,
        cases=(
            Case("a few layers", {"layers": (6, 20)}),
            Case("one layer", {"layers": (1, 2)}),
            Case("many layers", {"layers": (100, 200)}, hidden=True),
        ),
        inputs=_sizes,
        run=_segments_run,
        expect=_segments_expect,
        compare=close,
        hint="k outputs, and three results for each of ceil(n/k) layers. choose_segments tries every k from 1 to n, "
        "exactly; √(3n) is only near it.",
        uses=("predict_checkpointed_bytes", "choose_segments"),
    ),
    Check(
        name="checkpoint_memory",
        title="Sixty-four layers in a third of the bytes",
        points=5,
        cases=(Case("16 segments", {"segments": 16}), Case("24 segments, the last one short", {"segments": 24})),
        inputs=_memory_inputs,
        run=_memory_run,
        expect=_memory_expect,
        compare=_memory_compare,
        hint="Each layer runs twice, no more. A function made in a loop must keep its own part: lambda h, "
        "part=part: … No vjp may hold on to the first run: compute it under no_grad(). And memory that is never "
        "freed points to a vjp that uses its own node, say `out.data` in tanh: keep the array instead (Task 1).",
        uses=("Tensor", "backward", "no_grad", "run_layers", "checkpoint", "checkpoint_sequential"),
        time_limit_s=60,
        memory_bytes=128 * 2**20,
    ),
)
