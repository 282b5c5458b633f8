"""Tasks 7 and 8: training and checkpoints. Oracles: torch in double precision, sums, counting.

`draw_…` returns the inputs of a case, `expect_…` what the oracle makes of them; the case as code stands next to them.
"""

from __future__ import annotations

import itertools
import math
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from mlsys_checks.sandboxed import autograd as calls
from mlsys_checks.sandboxed.spec import Arrays, Case, Mismatch
from mlsys_checks.trusted.autograd.engine import answer, gradients, leaf
from mlsys_checks.trusted.compare import close

Rng = np.random.Generator


def draw_mlp(rng: Rng, case: Case) -> Arrays:
    """Draw a network of `layers` layers, each of up to `width` units, and a batch."""
    p = case.params
    sizes = rng.integers(1, p["width"] + 1, p["layers"] + 1)
    arrays: Arrays = {"sizes": sizes, "x": rng.standard_normal((p["batch"], sizes[0])).astype(np.float32)}
    for i, (n, m) in enumerate(itertools.pairwise(sizes)):
        arrays[f"weight {i}"] = (rng.standard_normal((m, n)) / math.sqrt(n)).astype(np.float32)
        arrays[f"bias {i}"] = rng.standard_normal(m).astype(np.float32)
    return arrays


def expect_mlp(arrays: Arrays) -> Arrays:
    """Logits in double precision; edges lead to all parameters."""
    h, layers = arrays["x"].astype(float), len(arrays["sizes"]) - 1
    for i in range(layers):
        h = h @ arrays[f"weight {i}"].astype(float).T + arrays[f"bias {i}"]
        h = np.maximum(h, 0) if i < layers - 1 else h
    return {"logits": h.astype(np.float32), calls.REACHED: np.ones(2 * layers, bool)}


MLP = """\
model = MLP(*sizes.tolist())
for i, layer in enumerate(model.layers):
    layer.weight.data = torch.from_numpy(given[f"weight {i}"])
    layer.bias.data = torch.from_numpy(given[f"bias {i}"])
model(Tensor(x)).data"""


def draw_sgd(rng: Rng, case: Case) -> Arrays:
    """Draw gradients of p for each step, and of q for some; the rate falls by `decay` percent a step."""
    p, steps = case.params, case.params["steps"]
    grads = rng.standard_normal((steps, 3)).astype(np.float32)
    return {
        "p": rng.standard_normal(3).astype(np.float32),
        "q": rng.standard_normal(5).astype(np.float32),
        "gradients of p": np.repeat(grads[:1], steps, axis=0) if p.get("kept") else grads,
        "kept": np.array(bool(p.get("kept"))),
        "gradients of q": rng.standard_normal((steps, 5)).astype(np.float32) * (rng.random((steps, 1)) < 0.8),
        "q has a gradient": np.arange(steps) % (1 + p.get("rests", 0)) == 0,
        "rates": 0.1 * (1 - p.get("decay", 0) / 100) ** np.arange(steps),
        "momentum": np.array(p["momentum"] / 10),
    }


def sgd_after(start: np.ndarray, grads: np.ndarray, rates: np.ndarray, momentum: float) -> np.ndarray:
    """A parameter after one step per gradient: gradient s is part of step t ≥ s, times momentum^(t - s) · rate t.

    torch.optim computes the same, but its import takes half a second.
    """
    pairs = ((s, t) for t in range(len(grads)) for s in range(t + 1))
    after: np.ndarray = start - sum(rates[t] * momentum ** (t - s) * grads[s] for s, t in pairs)
    return after


def expect_sgd(arrays: Arrays) -> Arrays:
    """Both parameters by sums; the one without a gradient stays."""
    has, momentum = arrays["q has a gradient"], float(arrays["momentum"])
    p, q = (arrays[name].astype(float) for name in "pq")
    of_p, of_q = (arrays[f"gradients of {name}"].astype(float) for name in "pq")
    return {
        "p": sgd_after(p, of_p, arrays["rates"], momentum).astype(np.float32),
        "q": sgd_after(q, of_q[has], arrays["rates"][has], momentum).astype(np.float32),
        "a parameter without gradient": arrays["q"],
    }


SGD = """\
a, b, idle = (Tensor(start, requires_grad=True) for start in (p, q, q))
optimizer = SGD([idle, b, a], lr=rates[0].item(), momentum=momentum)
for i, rate in enumerate(rates.tolist()):
    optimizer.lr = rate
    if i == 0 or not kept:
        a.grad = torch.from_numpy(given["gradients of p"][i])
    b.grad = torch.from_numpy(given["gradients of q"][i]) if given["q has a gradient"][i] else None
    optimizer.step()
a.data, b.data, idle.data"""


def draw_step(rng: Rng, case: Case) -> Arrays:
    """Draw batches for some steps; the model uses its offset in the first `with offset` of them."""
    p, dtype = case.params, case.params.get("dtype", "float32")
    steps, batch, classes = p["steps"], p["batch"], p["classes"]
    return {
        "x": rng.standard_normal((steps, batch, classes)).astype(dtype),
        "y": rng.integers(0, classes, (steps, batch)),
        "uses offset": np.arange(steps) < p.get("with offset", steps),
        "scale": rng.standard_normal(classes).astype(dtype),
        "offset": rng.standard_normal(classes).astype(dtype),
    }


def expect_step(arrays: Arrays) -> Arrays:
    """Gradient descent at rate 0.1 on half the squared distance to the one-hot classes, by torch."""
    scale, offset, dtype, losses = leaf(arrays["scale"]), leaf(arrays["offset"]), arrays["x"].dtype, []
    for x, y, uses_offset in zip(arrays["x"], arrays["y"], arrays["uses offset"].tolist(), strict=True):
        logits = torch.from_numpy(x).double() * scale + uses_offset * offset
        loss = ((logits - torch.eye(logits.shape[1])[torch.from_numpy(y)]) ** 2).sum() / (2 * len(y))
        losses.append(loss.item())
        steps = gradients(loss, (scale, offset), np.ones(()))
        scale, offset = (leaf(answer(p - 0.1 * g, float)) for p, g in zip((scale, offset), steps, strict=True))
    return {
        "loss of each step": np.array(losses, dtype),
        calls.IMAGES: np.array(False),
        calls.RUNS: np.array(len(losses)),
        "scale after the steps": answer(scale, dtype),
        "offset after the steps": answer(offset, dtype),
    }


TRAIN_STEP = """\
# The check has a loss and an optimizer of its own; this is the same with yours.
scale, offset = Tensor(scale, requires_grad=True), Tensor(offset, requires_grad=True)
for p in (scale, offset):
    p.grad = torch.ones_like(p.data)  # of an earlier pass
optimizer = SGD([scale, offset], lr=0.1)
for images, classes, uses_offset in zip(x, y, given["uses offset"].tolist()):
    model = (lambda x: x * scale + offset) if uses_offset else (lambda x: x * scale)
    print(train_step(model, optimizer, images, classes), scale.data, offset.data)"""


def draw_flops(rng: Rng, case: Case) -> Arrays:
    """Draw sizes of up to `width` units, all equal in some cases, and a batch."""
    p = case.params
    sizes = rng.integers(1, p["width"] + 1, p["layers"] + 1)
    return {"batch": np.array(p["batch"]), "sizes": sizes if not p.get("equal") else np.full_like(sizes, sizes[0])}


def expect_flops(arrays: Arrays) -> Arrays:
    """Two FLOPs per multiply-add: forward, for the weight, and for the input unless it is the data."""
    pairs = arrays["batch"] * arrays["sizes"][:-1] * arrays["sizes"][1:]
    return {"FLOPs": np.array(2 * (3 * pairs.sum() - pairs[0]))}


TARGET = 0.95
"""Fraction of unseen digits to be read correctly."""
STANDARD_ERRORS = 3
"""How far below TARGET the accuracy on one test set may lie: which images it holds is chance."""
COPIES, BRIGHT = 1000, 1000.0
"""How often one test image comes again, and how much brighter, so that statistics of the test images are far off."""
BLIND_ACCURACY = 0.5
"""Accuracy that a network without gradients stays below: one in ten, or a few more by luck of its first weights."""


@cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    """1,797 images (n, 64) of 0 to 16 in float64 and their classes (n,) in int64, which must not be changed.

    Reads scikit-learn's file without importing scikit-learn, which takes a second; asks it if the file is elsewhere.
    """
    spec = find_spec("sklearn")
    folder = Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else Path()
    file = folder / "datasets" / "data" / "digits.csv.gz"
    if file.is_file():
        table = np.loadtxt(file, delimiter=",")
        return table[:, :-1], table[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return images, labels.astype(np.int64)


def draw_digits(rng: Rng, case: Case) -> Arrays:
    """Draw a split of the digits, with noise, pixels permuted and classes renamed, so that ready-made weights fail.

    To a fully connected network a permutation of pixels changes nothing.
    """
    images, labels = digits()
    images = images / 16 + rng.normal(0, 0.02, images.shape)
    images, labels = images[:, rng.permutation(64)], rng.permutation(10)[labels]
    order = rng.permutation(len(images))
    test, train = order[:360], order[360:]
    bright = np.repeat(BRIGHT * images[test[:1]], COPIES, axis=0)
    return {
        "x_train": images[train].astype(np.float32),
        "y_train": labels[train].astype(np.int64),
        "x_test": np.concatenate([images[test], bright]).astype(np.float32),
        "_y_test": labels[test].astype(np.int64),
    }


def expect_digits(arrays: Arrays) -> Arrays:
    """The classes of the test images; −1 for a copy, which does not count."""
    return {"predictions": np.concatenate([arrays["_y_test"], np.full(COPIES, -1)])}


def least_accuracy(images: int) -> float:
    """Accuracy that a classifier of accuracy TARGET reaches on this number of images, except by bad luck."""
    return TARGET - STANDARD_ERRORS * math.sqrt(TARGET * (1 - TARGET) / images)


def compare_digits(got: Arrays, expected: Arrays) -> Mismatch | None:
    """Judge accuracy, with gradients and without; one loss for at least every other step, and equal first losses."""
    predictions, truth = got["predictions"], expected["predictions"]
    if predictions.shape != truth.shape or predictions.dtype.kind not in "iu":
        found, wanted = f"{predictions.dtype} of shape {predictions.shape}", f"integers of shape {truth.shape}"
        return Mismatch("the predictions have the wrong form", found, wanted, is_form=True)
    counted = truth >= 0
    accuracy, images = float((predictions == truth)[counted].mean()), int(counted.sum())
    if accuracy < (least := least_accuracy(images)):
        wanted = f"at least {least:.1%}: {TARGET:.0%}, less what chance does on {images} images"
        return Mismatch("too many digits are misread", f"accuracy {accuracy:.1%}", wanted)
    losses, steps = int(got["losses"]), int(got["backward passes"])
    if 2 * losses < steps:
        return Mismatch("losses are missing", f"{losses} losses of {steps} backward passes", "the loss of every step")
    if np.unique(got[calls.FIRST]).size > 1:
        found = "first losses " + " and ".join(f"{loss:.6g}" for loss in got[calls.FIRST])
        return Mismatch("two trainings on the same images differ", found, "equal ones: a generator of fixed seed")
    blind = got[calls.BLIND]
    if blind.shape != truth.shape or (blind == truth)[counted].mean() > BLIND_ACCURACY:
        what = "it reads digits without gradients of your engine, so something else has learned them"
        wanted = f"at most {BLIND_ACCURACY:.0%} of them"
        return Mismatch(what, "right classes although `backward` did nothing", wanted)
    return None


LAYERS, WIDTH, BATCH = 36, 16, 16_384
"""A deep stack: one result is 1 MiB, the whole graph 108 MiB, a checkpointed one about 22 MiB.

A sandbox also limits the memory that the process maps, to the budget and some slack, and this must be less than the
whole graph. The C library keeps freed blocks of less than 1 MiB, which would count.
"""
COPIED = 16
"""How often the batch repeats its images."""
BUDGET_BYTES = 36 * 2**20
"""A third of the whole graph."""


def draw_sizes(rng: Rng, case: Case) -> Arrays:
    """Draw a stack and its segments; `tied`: two numbers of segments are equally good for its depth."""
    p = case.params
    layers = p["layers"]
    while p.get("tied") and _held(layers).count(min(_held(layers))) < 2:
        layers += 1
    segments = rng.integers(1, layers + 1)
    return {name: np.array(p[name]) for name in ("batch", "width")} | {
        "layers": np.array(layers),
        "segments": np.array(segments),
    }


def _held(layers: int) -> list[int]:
    """Results held at the worst moment with 1, 2, … segments."""
    return [k + 3 * -(-layers // k) for k in range(1, layers + 1)]


def _result_bytes(arrays: Arrays) -> int:
    shape = int(arrays["batch"]), int(arrays["width"])
    return np.broadcast_to(np.zeros((), np.float32), shape).nbytes


def expect_graph_bytes(arrays: Arrays) -> Arrays:
    """Product, sum and tanh of every layer."""
    return {"bytes": np.array(sum(_result_bytes(arrays) for _ in range(int(arrays["layers"])) for _ in "@+t"))}


def expect_checkpointed_bytes(arrays: Arrays) -> Arrays:
    """Bytes at the worst moment, and the first of the best numbers of segments."""
    held = _held(int(arrays["layers"]))
    found = held[int(arrays["segments"]) - 1] * _result_bytes(arrays)
    return {"bytes": np.array(found), "best_segments": np.array(int(np.argmin(held)) + 1)}


FLAGS = ("nested", "stops", "quiet")


def draw_checkpoint(rng: Rng, case: Case) -> Arrays:
    """Draw the input and weights of two stages, and a factor for each run; see `sandboxed.autograd.checkpoint`."""
    p = case.params
    shape = (p["batch"], p["width"])
    sizes = {"x": shape, "w": shape[1:], "g": shape}
    arrays = {name: rng.standard_normal(size).round(2) for name, size in sizes.items()}
    arrays |= {"turns": rng.uniform(0.5, 1.5, 10).round(2), "backwards": np.array(p.get("backwards", 1))}
    arrays |= {"x requires grad": np.array(not p.get("data"))}
    return arrays | {name: np.array(bool(p.get(name))) for name in FLAGS}


def expect_checkpoint(arrays: Arrays) -> Arrays:
    """Run each stage forward and back by itself, with the factor of the run that must have given its gradients."""
    x, w, turns = leaf(arrays["x"]), leaf(arrays["w"]), iter(arrays["turns"].tolist())

    def run(h: torch.Tensor, turn: float) -> torch.Tensor:
        return turn * (h * w).tanh()

    middle = leaf(answer(run(x, next(turns)), float))
    result = run(middle, next(turns))
    of_x, of_w = np.zeros(arrays["x"].shape), np.zeros(arrays["w"].shape)
    backwards = int(arrays["backwards"])
    for _ in range(backwards):
        if arrays["nested"]:  # the outer checkpoint runs both inner ones forward once more
            middle = leaf(answer(run(x, next(turns)), float))
            next(turns)
        of_middle, w_of_second = gradients(run(middle, next(turns)), (middle, w), arrays["g"])
        x_of_first, w_of_first = gradients(run(x, next(turns)), (x, w), answer(of_middle, float))
        of_x = of_x + answer(x_of_first, float)
        of_w = of_w + answer(w_of_first, float) + answer(w_of_second, float)
    if arrays["stops"]:
        stopped = (torch.from_numpy(arrays["x"]) * w).tanh()
        result = result + stopped
        of_w = of_w + backwards * answer(gradients(stopped, (w,), arrays["g"])[0], float)
    runs = 2 + (4 if arrays["nested"] else 2) * backwards
    expected = {"calls of `function` forward": np.array(2), calls.RECORDED: np.array(0)}
    expected |= {"result": answer(result, float), "w.grad": of_w, calls.REQUIRES: arrays["x requires grad"]}
    expected |= {"x.grad": of_x} if arrays["x requires grad"] else {}
    return expected | {"calls of `function`": np.array(runs), calls.RECORDING: np.array([False, True])}


CHECKPOINT = """\
turns = iter(turns.tolist())
a = Tensor(x, requires_grad=given["x requires grad"].item())
weight = Tensor(w, requires_grad=True)
stage = lambda h: (h * weight).tanh() * next(turns)
twice = lambda h: checkpoint(stage, checkpoint(stage, h))
result = checkpoint(twice, a) if nested else twice(a)
if stops:
    result = result + checkpoint(lambda h: (h.detach() * weight).tanh(), a)
for _ in range(backwards):
    with set_grad_enabled(not quiet):
        backward(result, g)
result.data, a.grad, weight.grad"""


def draw_stack(rng: Rng, case: Case) -> Arrays:
    """Draw a stack of layers tanh(h · w + b), with weights near 1, so that gradients do not vanish over its depth."""
    batch = case.params["batch"]
    images = rng.standard_normal((batch // COPIED, WIDTH)).astype(np.float32)
    return {
        "x": np.tile(images, (COPIED, 1)),
        "weights": rng.uniform(1.0, 1.2, (LAYERS, WIDTH)).astype(np.float32),
        "biases": (0.1 * rng.standard_normal((LAYERS, WIDTH))).astype(np.float32),
        "g": (rng.standard_normal((batch, WIDTH)) / batch).astype(np.float32),
        "segments": np.array(case.params["segments"]),
    }


def expect_stack(arrays: Arrays) -> Arrays:
    """Gradients are linear in g, so those that arrive at the copies of an image add up, and each image runs once."""
    weights, biases = leaf(arrays["weights"]), leaf(arrays["biases"])
    h = torch.from_numpy(arrays["x"][: len(arrays["x"]) // COPIED]).double()
    for w, b in zip(weights.unbind(), biases.unbind(), strict=True):
        h = (h * w + b).tanh()
    g = arrays["g"].astype(float).reshape(COPIED, -1, WIDTH).sum(axis=0)
    of_weights, of_biases = gradients(h, (weights, biases), g)
    segments = int(arrays["segments"])
    return {
        "segments": np.array(min(segments, LAYERS)),
        "layers of the longest segment": np.array(-(-LAYERS // segments)),
        "the result": np.tile(answer(h, np.float32), (COPIED, 1))[::1000],
        "gradients of the weights": answer(of_weights, np.float32),
        "gradients of the biases": answer(of_biases, np.float32),
    }


def compare_stack(got: Arrays, expected: Arrays) -> Mismatch | None:
    """Compare counts and values; sums over 16,384 images in float32 through 36 layers get 20 times the tolerance."""
    if (runs := int(got.pop("most runs of a layer"))) > 2:
        return Mismatch("a layer runs too often", f"{runs} runs", "at most 2: one forward, one in the backward pass")
    if recorded := int(got.pop("layers recorded at once")):
        wanted = "none: every segment forgets its inside, the last one too"
        return Mismatch("layers are recorded in the forward pass", f"{recorded} layers", wanted)
    if (left := int(got.pop("layers left in the list"))) != LAYERS:
        return Mismatch("the list of functions has changed", f"{left} functions are left", f"all {LAYERS}")
    names = ("segments", "layers of the longest segment")
    counts = [(name, int(got.pop(name)), int(expected.pop(name))) for name in names]
    if mismatch := close(got, expected, scale=20):
        return mismatch
    for name, count, most in counts:
        if count > most:
            return Mismatch("the layers are cut into other segments", f"{name}: {count}", f"at most {most}")
    return None


STACK = """\
def make_layer(w, b):
    w, b = Tensor(w, requires_grad=True), Tensor(b, requires_grad=True)
    return w, lambda h: (h * w + b).tanh()

pairs = [make_layer(w, b) for w, b in zip(weights, biases)]
stack = [layer for _, layer in pairs]
result = checkpoint_sequential(stack, Tensor(x), segments)
backward(result, g)
result.data[::1000], torch.stack([w.grad for w, _ in pairs])"""
