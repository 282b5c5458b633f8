"""Task 8: bytes predicted, and gradients under a byte budget. Oracles: algebra, and torch in slices of the batch."""

from __future__ import annotations

import numpy as np
import torch

from mlsys_lab.checks.autograd.calls import checkpointing as calls
from mlsys_lab.checks.autograd.oracle import answer, gradients, leaf
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


def _graph_expect(arrays: Arrays) -> Arrays:
    one = np.empty((int(arrays["batch"]), int(arrays["width"])), dtype=np.float32).nbytes
    return {"bytes": np.array(sum(one for _ in range(int(arrays["layers"])) for _ in ("@", "+", "tanh")))}


# --- checkpointed_bytes ---------------------------------------------------------------------------------------------


def _segments_expect(arrays: Arrays) -> Arrays:
    layers = int(arrays["layers"])
    one = np.empty((int(arrays["batch"]), int(arrays["width"])), dtype=np.float32).nbytes
    held = [k + 3 * -(-layers // k) for k in range(1, layers + 1)]
    return {
        "bytes": np.array(held[int(arrays["segments"]) - 1] * one),
        "choose_segments": np.array(int(np.argmin(held)) + 1),
    }


# --- checkpoint -----------------------------------------------------------------------------------------------------


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


def _checkpoint_expect(arrays: Arrays) -> Arrays:
    x, w, v = (leaf(arrays[name]) for name in ("x", "w", "v"))
    result = calls.stage(calls.stage(x, w, v), w, v)
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
        run=calls.graph_bytes,
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
        run=calls.checkpoint,
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
        run=calls.checkpointed_bytes,
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
        run=calls.deep_stack,
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
