"""Task 8: bytes predicted, and gradients under a byte budget. Oracles: algebra, and torch."""

from __future__ import annotations

import numpy as np
import torch

from mlsys_checks.sandboxed.autograd import checkpointing as calls
from mlsys_checks.sandboxed.spec import Arrays, Case, Check, Mismatch
from mlsys_checks.trusted.autograd import snippets
from mlsys_checks.trusted.autograd.oracle import answer, gradients, leaf
from mlsys_checks.trusted.compare import close

LAYERS, BATCH, WIDTH = 36, 16_384, 16
"""The deep stack: one result is 1 MiB, the whole graph 108 MiB, a checkpointed one about 22 MiB.

A grader's sandbox caps what the process maps as well, at the budget and some slack, which has to stay below the whole
graph. The C library keeps freed blocks of less than 1 MiB for itself, where they would count.
"""
COPIES = 16
"""How often the batch repeats its images."""
BUDGET_BYTES = 36 * 2**20
"""A third of the whole graph."""


def _sizes(rng: np.random.Generator, case: Case) -> Arrays:
    low, high = case.params["layers"]
    most = case.params.get("most", 500)
    tied = [n for n in range(low, high) if not case.params.get("tied") or _held(n).count(min(_held(n))) > 1]
    return {
        "batch": rng.integers(most // 500, most, ()),
        "width": rng.integers(most // 500, most, ()),
        "layers": rng.choice(tied),
        "segments": rng.integers(1, low + 1, ()),
        "double": np.array(case.params.get("double", False)),
    }


def _held(layers: int) -> list[int]:
    """Results that are held at the worst moment with 1, 2, … segments."""
    return [k + 3 * -(-layers // k) for k in range(1, layers + 1)]


def _result_bytes(arrays: Arrays) -> int:
    """Bytes of a result: of an array that is one number, seen as often as it has elements."""
    shape = int(arrays["batch"]), int(arrays["width"])
    return np.broadcast_to(np.zeros((), np.float32), shape).nbytes


# --- graph_bytes ----------------------------------------------------------------------------------------------------


def _graph_expect(arrays: Arrays) -> Arrays:
    one = _result_bytes(arrays)
    return {"bytes": np.array(sum(one for _ in range(int(arrays["layers"])) for _ in ("@", "+", "tanh")))}


# --- checkpointed_bytes ---------------------------------------------------------------------------------------------


def _segments_expect(arrays: Arrays) -> Arrays:
    layers = int(arrays["layers"])
    one, held = _result_bytes(arrays), _held(layers)
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
        "turns": rng.uniform(0.5, 1.5, 16),
        "backwards": np.array(case.params.get("backwards", 1)),
        **{name: np.array(case.params.get(name, False)) for name in ("nested", "branches", "raises", "stops", "quiet")},
    }


def _checkpoint_expect(arrays: Arrays) -> Arrays:
    """Each stage forward and back by itself, with the factor of the run in which the engine must have made it."""
    x, w, v = (leaf(arrays[name]) for name in ("x", "w", "v"))
    turns = iter(arrays["turns"].tolist())

    def run(h: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = calls.stage(h, w, v) * next(turns)
        return result

    total, forward = [np.zeros(())] * 3, 2
    backwards, runs = int(arrays["backwards"]), 4 if arrays["nested"] else 2
    if arrays["branches"]:  # which of the two runs first is all one
        result = run(x) + run(x)
        total = [answer(share, float) for share in gradients(run(x) + run(x), (x, w, v), arrays["g"])]
    else:
        middle = run(x).detach().requires_grad_()
        result = run(middle)
    for _ in range(0 if arrays["branches"] else backwards):
        if arrays["nested"]:  # the outer segment is rebuilt first: both inner ones run forward once more
            middle = run(x).detach().requires_grad_()
            run(middle)
        back = gradients(run(middle), (middle, w, v), arrays["g"])
        further = gradients(run(x), (x, w, v), answer(back[0], float))
        shares = (further[0], back[1] + further[1], back[2] + further[2])
        total = [sofar + answer(share, float) for sofar, share in zip(total, shares, strict=True)]
    if arrays["stops"]:
        stopped = (leaf(arrays["x"]) @ w) @ v
        result = result + stopped
        back = gradients(stopped, (x, w, v), backwards * arrays["g"])
        total = [sofar + answer(share, float) for sofar, share in zip(total, back, strict=True)]
    expected = {"calls of fn": np.array((forward, forward + runs * backwards)), "result": answer(result, float)}
    expected["runs of fn that were recorded before any backward pass"] = np.array(0)
    expected[calls.RECORDED] = np.array(False)
    names = ("x.grad", "w.grad", "v.grad") if arrays["x_wants"] else ("", "w.grad", "v.grad")
    return expected | {name: grad for name, grad in zip(names, total, strict=True) if name}


# --- checkpoint_memory ----------------------------------------------------------------------------------------------


def _memory_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    """Orthogonal weights, so that nothing fades or blows up over that many layers."""
    batch = case.params["batch"]
    weights = np.linalg.qr(rng.standard_normal((LAYERS, WIDTH, WIDTH)))[0]
    images = rng.standard_normal((batch // COPIES, WIDTH)).astype(np.float32)
    return {
        "x": np.tile(images, (COPIES, 1)),
        "weights": weights.astype(np.float32),
        "biases": (0.1 * rng.standard_normal((LAYERS, WIDTH))).astype(np.float32),
        "g": (rng.standard_normal((batch, WIDTH)) / batch).astype(np.float32),
        "segments": np.array(case.params["segments"]),
        "as_tuple": np.array(case.params.get("tuple", False)),
    }


def _memory_expect(arrays: Arrays) -> Arrays:
    """Gradients are linear in g: what arrives at the copies of an image is added up, and each image runs once."""
    weights, biases = leaf(arrays["weights"]), leaf(arrays["biases"])
    out = torch.from_numpy(arrays["x"][: len(arrays["x"]) // COPIES]).double()
    for w, b in zip(weights.unbind(), biases.unbind(), strict=True):
        out = (out @ w + b).tanh()
    g = arrays["g"].astype(float).reshape(COPIES, -1, WIDTH).sum(axis=0)
    grad_w, grad_b = gradients(out, (weights, biases), g)
    segments = int(arrays["segments"])
    return {
        "segments": np.array(segments),
        "pieces": np.array(min(segments, LAYERS)),
        "longest piece": np.array(-(-LAYERS // segments)),
        "result": np.tile(answer(out, np.float32), (COPIES, 1))[::1000],
        "gradient of the first weight": answer(grad_w[0], np.float32),
        "gradients of the biases": answer(grad_b, np.float32),
    }


def _memory_compare(got: Arrays, expected: Arrays) -> Mismatch | None:
    """Sums over 16,384 images in float32, through 36 layers, stray further than one operation does."""
    calls = int(got.pop("most calls of a layer"))
    if calls > 2:
        return Mismatch("a layer runs too often", f"{calls} calls", "at most 2: one in each pass")
    if recorded := int(got.pop("layers recorded at once")):
        asked = "each piece forgets its inside, the last one too"
        return Mismatch("layers are recorded before any backward pass", f"{recorded} layers", asked)
    if (left := int(got.pop("layers left in the list"))) != LAYERS:
        return Mismatch("the list of layers is changed", f"{left} layers are left", f"all {LAYERS}")
    if (made := int(got.pop("checkpoints"))) > (asked_for := int(expected.pop("segments"))):
        return Mismatch("there are too many pieces", f"{made} calls of checkpoint", f"at most {asked_for}")
    counts = {name: (int(got.pop(name)), int(expected.pop(name))) for name in ("pieces", "longest piece")}
    if mismatch := close(got, expected, scale=20):
        return mismatch
    for name, (count, most) in counts.items():
        if count > most:
            return Mismatch("the layers are cut into other pieces", f"{name}: {count}", f"at most {most}")
    return None


CHECKS = (
    Check(
        name="graph_bytes",
        title="Bytes that a graph holds, predicted",
        points=3,
        cases=(
            Case("one layer", {"layers": (1, 2)}),
            Case("a few layers", {"layers": (2, 20)}),
            Case("many layers, large and wide", {"layers": (100, 300), "most": 10_000_000}),
            Case(
                "many layers where double precision is the default", {"layers": (100, 300), "double": True}, hidden=True
            ),
        ),
        inputs=_sizes,
        run=calls.graph_bytes,
        snippet="predict_graph_bytes(batch, width, layers)",
        expect=_graph_expect,
        compare=close,
        first_hint="Which results of one layer does the graph keep, and how many bytes is each?",
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
            Case("a checkpoint within a checkpoint", {"nested": True}),
            Case("after functions that raised", {"raises": True}),
            Case("a backward pass inside no_grad", {"quiet": True}),
            Case("with one that stops the gradient", {"stops": True}),
            Case("two branches of data that wants no gradient", {"branches": True, "x_wants": False}),
            Case("the same on data, twice", {"nested": True, "x_wants": False, "backwards": 2}, hidden=True),
        ),
        inputs=_checkpoint_inputs,
        run=calls.checkpoint,
        snippet=snippets.CHECKPOINT,
        expect=_checkpoint_expect,
        compare=close,
        first_hint="When should the segment run for the second time, and on which input?",
        hint="In the vjp: a fresh input on x.data that requires a gradient, fn on it, backward(…, g), and return "
        "that input's gradient. If weights get none when x is data, the only edge was dropped: let it lead to "
        "a tensor that wants one. And return node(…), which keeps no edge inside no_grad(). `with no_grad():` records "
        "again behind it, also where fn raises; `with enable_grad():` in the vjp records where `backward` runs inside "
        "no_grad(). Where fn stops the gradient, that input's grad is None: give zeros like x.",
        uses=("Tensor", "backward", "no_grad", "checkpoint"),
    ),
    Check(
        name="checkpointed_bytes",
        title="Bytes under checkpointing, and the best number of segments",
        points=3,
        cases=(
            Case("a few layers", {"layers": (6, 20)}),
            Case("one layer", {"layers": (1, 2)}),
            Case("two numbers of segments are equally good", {"layers": (6, 60), "tied": True}),
            Case("thousands of layers, large and wide", {"layers": (2000, 4000), "most": 10_000_000}),
            Case("two layers", {"layers": (2, 3)}, hidden=True),
            Case(
                "many layers where double precision is the default", {"layers": (100, 200), "double": True}, hidden=True
            ),
            Case("tens of thousands of layers", {"layers": (50_000, 60_000)}, hidden=True),
        ),
        inputs=_sizes,
        run=calls.checkpointed_bytes,
        snippet="predict_checkpointed_bytes(batch, width, layers, segments), choose_segments(layers)",
        expect=_segments_expect,
        compare=close,
        first_hint="What is held between segments, and what inside the one that is in its backward pass?",
        hint="k outputs, and three results for each of ceil(n/k) layers. choose_segments tries every k from 1 to n, "
        "exactly; √(3n) is only near it.",
        uses=("predict_checkpointed_bytes", "choose_segments"),
    ),
    Check(
        name="checkpoint_memory",
        title="Thirty-six layers in a third of the bytes",
        points=5,
        cases=(
            Case("12 segments", {"segments": 12, "batch": BATCH}),
            Case("8 segments, the last one short; a small batch", {"segments": 8, "batch": BATCH // 8}),
            Case(
                "a segment for each layer, in a tuple; a small batch",
                {"segments": LAYERS, "batch": BATCH // 8, "tuple": True},
            ),
            Case("one segment; a tiny batch", {"segments": 1, "batch": BATCH // 64}),
            Case("more segments than layers; a tiny batch", {"segments": 50, "batch": BATCH // 64}, hidden=True),
            Case("7 segments; a small batch", {"segments": 7, "batch": BATCH // 8}, hidden=True),
        ),
        inputs=_memory_inputs,
        run=calls.deep_stack,
        snippet=snippets.DEEP_STACK,
        expect=_memory_expect,
        compare=_memory_compare,
        first_hint="How often does a layer run, and who still holds the results of its first run?",
        hint="Each layer runs twice, no more. A function made in a loop must keep its own part of the layers, cut "
        "before it runs: lambda h, part=part: … No vjp may hold on to the first run: compute it under no_grad(). And "
        "memory that is never freed points to a vjp that uses its own node, say `out.data` in tanh: keep the array "
        "instead (Task 1).",
        uses=("Tensor", "backward", "no_grad", "run_layers", "checkpoint", "checkpoint_sequential"),
        time_limit_s=60,
        memory_bytes=BUDGET_BYTES,
    ),
)
