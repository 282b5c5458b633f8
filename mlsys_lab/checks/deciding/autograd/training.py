"""Task 7: a network that learns. Oracles: torch.nn, sums, a count of FLOPs, and labels that the judge keeps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from mlsys_lab.checks.deciding.autograd import asks
from mlsys_lab.checks.deciding.autograd.digits import digits
from mlsys_lab.checks.deciding.autograd.oracle import answer, gradients
from mlsys_lab.checks.deciding.compare import close
from mlsys_lab.checks.learner.autograd import training as calls
from mlsys_lab.checks.learner.spec import Arrays, Case, Check, Mismatch

TARGET = 0.95
"""Share of unseen digits that is to be read correctly."""
COPIES = 1000
"""How often one of the test images comes once more: enough to move the mean of them all."""
STANDARD_ERRORS = 3
"""How far below TARGET the share of one test set may lie: which images it holds is chance, and costs nobody points."""
BLIND_ACCURACY = 0.5
"""What a network that has learned nothing reads at most: one in ten, or by luck of its first weights a few more."""


def _network(rng: np.random.Generator, widths: tuple[int, ...]) -> Arrays:
    arrays = {"widths": np.array(widths, dtype=np.int64)}
    for i, (n_in, n_out) in enumerate(itertools.pairwise(widths)):
        arrays[f"weight {i}"] = (rng.standard_normal((n_in, n_out)) / np.sqrt(n_in)).astype(np.float32)
        arrays[f"bias {i}"] = rng.standard_normal(n_out).astype(np.float32)
    return arrays


def _oracles_mlp(arrays: Arrays) -> torch.nn.Sequential:
    layers: list[torch.nn.Module] = []
    for i in range(len(arrays["widths"]) - 1):
        weight = arrays[f"weight {i}"]
        linear = torch.nn.Linear(weight.shape[0], weight.shape[1], dtype=torch.float64)
        linear.weight.data = torch.from_numpy(weight.T).double()
        linear.bias.data = torch.from_numpy(arrays[f"bias {i}"]).double()
        layers += [linear, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


# --- mlp_forward ----------------------------------------------------------------------------------------------------


def _mlp_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    widths, batch = case.params["widths"], case.params["batch"]
    x = rng.standard_normal((batch, widths[0])).astype(np.float32)
    return _network(rng, widths) | {"x": x, "g": rng.standard_normal((batch, widths[-1])).astype(np.float32)}


def _mlp_expect(arrays: Arrays) -> Arrays:
    model = _oracles_mlp(arrays)
    logits = model(torch.from_numpy(arrays["x"]).double())
    expected = {"logits": answer(logits, np.float32)}
    for i, layer in enumerate(layer for layer in model if isinstance(layer, torch.nn.Linear)):
        weight, bias = gradients(logits, (layer.weight, layer.bias), arrays["g"])
        expected[f"gradient of weight {i}"] = answer(weight.T, np.float32)
        expected[f"gradient of bias {i}"] = answer(bias, np.float32)
    return expected


# --- sgd ------------------------------------------------------------------------------------------------------------


def _sgd_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    steps = case.params["steps"]
    rests = np.zeros(steps, dtype=bool)
    rests[1 : 1 + case.params.get("rests", 0)] = True
    kept = np.zeros(steps, dtype=bool)
    kept[1 : 1 + case.params.get("kept", 0)] = True
    grads = rng.standard_normal((steps, 3, 4)).astype(np.float32)
    for i in np.flatnonzero(kept):
        grads[i] = grads[i - 1]
    grads[1 : 1 + case.params.get("zeros", 0)] = 0
    return {
        "p": rng.standard_normal((3, 4)).astype(np.float32),
        "q": rng.standard_normal(5).astype(np.float32),
        "gradients of p": grads,
        "kept": kept,
        "gradients of q": rng.standard_normal((steps, 5)).astype(np.float32),
        "q rests": rests,
        "rates": case.params["lr"] * case.params.get("decay", 1.0) ** np.arange(steps),
        "momentum": np.array(case.params["momentum"]),
    }


def sgd_after(
    start: np.ndarray, grads: Sequence[np.ndarray] | np.ndarray, rates: Sequence[float] | np.ndarray, momentum: float
) -> np.ndarray:
    """A parameter after one step per gradient, as a plain sum: gradient s goes into step t ≥ s times μ^(t−s) η(t).

    torch.optim does the same; it takes half a second to get going.
    """
    pairs = ((s, t) for t in range(len(grads)) for s in range(t + 1))
    return start - sum(rates[t] * momentum ** (t - s) * grads[s] for s, t in pairs)


def _sgd_expect(arrays: Arrays) -> Arrays:
    momentum, rests = float(arrays["momentum"]), arrays["q rests"]
    steps = {"p": np.ones_like(rests), "q": ~rests}
    after = {
        name: sgd_after(
            arrays[name].astype(float),
            arrays[f"gradients of {name}"][taken].astype(float),
            arrays["rates"][taken],
            momentum,
        )
        for name, taken in steps.items()
    }
    return {
        "p": after["p"].astype(np.float32),
        "q": after["q"].astype(np.float32),
        "the last gradient of q": arrays["gradients of q"][-1],
        "a parameter without gradient": arrays["q"],
    }


# --- train_step -----------------------------------------------------------------------------------------------------


def _step_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    widths, batch, steps = (6, 9, 4), 8, case.params["steps"]
    return _network(rng, widths) | {
        "x": rng.standard_normal((steps, batch, widths[0])).astype(np.float32),
        "y": rng.integers(0, widths[-1], (steps, batch)),
        "offset is used": np.arange(steps) < case.params.get("offset for", steps),
        "momentum": np.array(case.params["momentum"]),
    }


def _step_expect(arrays: Arrays) -> Arrays:
    model, losses = _oracles_mlp(arrays), []
    offset = torch.zeros(int(arrays["widths"][-1]), dtype=torch.float64, requires_grad=True)
    parameters = (*model.parameters(), offset)
    start = [answer(p, float) for p in parameters]
    grads: list[list[np.ndarray]] = [[] for _ in parameters]
    for x, y, moved in zip(arrays["x"], arrays["y"], arrays["offset is used"], strict=True):
        logits = model(torch.from_numpy(x).double())
        loss = torch.nn.functional.cross_entropy(logits + offset if moved else logits, torch.from_numpy(y))
        losses.append(loss.item())
        for i, share in enumerate(gradients(loss, parameters if moved else parameters[:-1], np.ones(()))):
            grads[i].append(answer(share, float))
            after = sgd_after(start[i], grads[i], [0.1] * len(grads[i]), float(arrays["momentum"]))
            parameters[i].data = torch.from_numpy(after)
    linears = [layer for layer in model if isinstance(layer, torch.nn.Linear)]
    expected = {"loss of each step": np.array(losses, dtype=np.float32), calls.IMAGES_WANT: np.array(False)}
    expected |= {f"weight {i} after": answer(layer.weight.T, np.float32) for i, layer in enumerate(linears)}
    return expected | {"offset after": answer(offset, np.float32)}


# --- step_flops -----------------------------------------------------------------------------------------------------


def _flops_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    depth, (batch, width) = case.params["depth"], case.params.get("most", (100, 300))
    widths = rng.integers(width // 300, width, depth + 1)
    if case.params.get("equal"):
        widths[1:] = widths[0]
    return {"batch": rng.integers(batch // 100, batch, ()), "widths": widths}


def _flops_expect(arrays: Arrays) -> Arrays:
    """Two FLOPs for each multiply-add: forward, for the weight, and for the input unless it is the data."""
    macs = arrays["batch"] * arrays["widths"][:-1] * arrays["widths"][1:]
    return {"FLOPs": np.array(2 * (3 * macs.sum() - macs[0]))}


# --- train_digits ---------------------------------------------------------------------------------------------------


def _digits_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    """A random split of scikit-learn's 1,797 digits, with noise, pixels moved and classes renamed.

    To a fully connected network one scramble of all images changes nothing; weights from elsewhere fail. Behind the
    test images comes one of them many times over: no other one's label may depend on that.
    """
    images, labels = digits()
    images = images / 16 + rng.normal(0, 0.02, images.shape)
    images, labels = images[:, rng.permutation(64)], rng.permutation(10)[labels]
    order = rng.permutation(len(images))
    test, train = order[:360], order[360:]
    return {
        "x_train": images[train].astype(np.float32),
        "y_train": labels[train].astype(np.int64),
        "x_test": np.concatenate([images[test], np.repeat(images[test[:1]], COPIES, axis=0)]).astype(np.float32),
        "_y_test": labels[test].astype(np.int64),
    }


def _digits_expect(arrays: Arrays) -> Arrays:
    """The labels of the images, and without gradients hardly any of them; −1 for a copy, which counts for nothing."""
    return {"labels": np.concatenate([arrays["_y_test"], np.full(COPIES, -1)])}


def least_accuracy(images: int) -> float:
    """The share of so many test images that a classifier has to read which reads TARGET of all."""
    return TARGET - STANDARD_ERRORS * math.sqrt(TARGET * (1 - TARGET) / images)


def _digits_compare(got: Arrays, expected: Arrays) -> Mismatch | None:
    labels, truth = got["labels"], expected["labels"]
    if labels.shape != truth.shape or labels.dtype.kind not in "iu":
        found, wanted = f"{labels.dtype} of shape {labels.shape}", f"integers of shape {truth.shape}"
        return Mismatch("the predicted labels have the wrong form", found, wanted, is_form=True)
    counted = truth >= 0
    accuracy, images = float((labels == truth)[counted].mean()), int(counted.sum())
    least = least_accuracy(images)
    if accuracy < least:
        asked = f"at least {least:.1%}: {TARGET:.0%}, less what chance does on {images} images"
        return Mismatch("too many digits are misread", f"accuracy {accuracy:.1%}", asked)
    if (alone := got[calls.ALONE]).shape != (1,):
        what = "the predicted label of a single image has the wrong form"
        return Mismatch(what, f"shape {alone.shape}", "integers of shape (1,)", is_form=True)
    told, walks = int(got["losses"]), int(got["backward passes"])
    if 2 * told < walks:
        return Mismatch("losses are missing", f"{told} losses of {walks} backward passes", "the loss of every step")
    if np.unique(got[calls.FIRST]).size > 1:
        return Mismatch("two trainings begin differently", "two first losses", "a torch.Generator of fixed seed")
    blind = got[calls.BLIND]
    if blind.shape != truth.shape or (blind == truth)[counted].mean() > BLIND_ACCURACY:
        what = "it reads digits without your engine's gradients: something else has learned them"
        return Mismatch(what, "right labels where `backward` does nothing", f"at most {BLIND_ACCURACY:.0%} of them")
    return None


CHECKS = (
    Check(
        name="mlp_forward",
        title="A network of your own layers, forward and back",
        points=3,
        cases=(
            Case("two layers", {"widths": (5, 7, 3), "batch": 4}),
            Case("one layer: no relu after it", {"widths": (4, 2), "batch": 3}),
            Case("four layers", {"widths": (3, 8, 5, 6, 2), "batch": 1}, hidden=True),
            Case("all equally wide", {"widths": (4, 4, 4), "batch": 3}, hidden=True),
        ),
        inputs=_mlp_inputs,
        run=calls.forward_and_back,
        ask=asks.FORWARD_AND_BACK,
        expect=_mlp_expect,
        compare=partial(close, scale=20),  # products of four layers cancel: one entry may be far smaller than its terms
        pointer="After which layers does relu stand, and may a logit be negative?",
        hint="relu stands between layers: after each but the last, whose outputs are logits and may be negative.",
        uses=("Tensor", "MLP", "backward"),
    ),
    Check(
        name="sgd",
        title="Gradient descent with momentum",
        points=3,
        cases=(
            Case("without momentum", {"steps": 1, "lr": 0.3, "momentum": 0.0}),
            Case("with momentum, three steps", {"steps": 3, "lr": 0.1, "momentum": 0.9}),
            Case("a learning rate that falls", {"steps": 4, "lr": 0.1, "momentum": 0.9, "decay": 0.5}),
            Case("a parameter that rests for two steps", {"steps": 5, "lr": 0.1, "momentum": 0.9, "rests": 2}),
            Case("a gradient that stays for three", {"steps": 4, "lr": 0.1, "momentum": 0.9, "kept": 2}),
            Case("gradients of zeros, which slow down only", {"steps": 4, "lr": 0.1, "momentum": 0.9, "zeros": 2}),
            Case("with momentum, many steps", {"steps": 20, "lr": 0.02, "momentum": 0.5}, hidden=True),
        ),
        inputs=_sgd_inputs,
        run=calls.sgd,
        ask=asks.SGD,
        expect=_sgd_expect,
        compare=close,
        pointer="Follow one parameter through two steps on paper: what is left of the first gradient in the "
        "second step?",
        hint="v ← μ v + gradient, then p ← p − η v, with a v of its own for each parameter. Leave p.grad as it is; "
        "skip a parameter whose grad is None.",
        uses=("Tensor", "SGD"),
    ),
    Check(
        name="train_step",
        title="One step of training",
        points=3,
        cases=(
            Case("two steps", {"steps": 2, "momentum": 0.0}),
            Case("five steps with momentum", {"steps": 5, "momentum": 0.9}),
            Case("three steps, a parameter in the first only", {"steps": 3, "momentum": 0.9, "offset for": 1}),
            Case("ten steps", {"steps": 10, "momentum": 0.5, "offset for": 4}, hidden=True),
        ),
        inputs=_step_inputs,
        run=calls.train_step,
        ask=asks.TRAIN_STEP,
        expect=_step_expect,
        compare=lambda got, expected: close(got, expected, scale=5),
        pointer="What do the gradients hold when `backward` begins?",
        hint="In this order: zero_grad (the optimiser's), loss, backward, step. Gradients of the step before add up "
        "unless you clear them, and the model may be any function, without parameters. The images come as a "
        "torch.Tensor, and the model wants Tensor(x), which wants no gradient. Return loss.item().",
        uses=("Tensor", "MLP", "SGD", "add", "cross_entropy", "train_step"),
    ),
    Check(
        name="step_flops",
        title="FLOPs of a training step, predicted",
        points=3,
        cases=(
            Case("two layers", {"depth": 2}),
            Case("one layer", {"depth": 1}),
            Case("four layers of one shape", {"depth": 4, "equal": True}),
            Case("a large batch and wide layers", {"depth": 3, "most": (10_000_000, 60_000)}),
            Case("five layers", {"depth": 5}, hidden=True),
        ),
        inputs=_flops_inputs,
        run=calls.step_flops,
        ask="predict_step_flops(batch, tuple(widths.tolist()))",
        expect=_flops_expect,
        compare=close,
        pointer="List the products of one layer, forward and back. Does the first layer need all of them?",
        hint="2 · B · n · m for each product. Each layer has three (forward, weight, input), but the first has no "
        "input gradient. Return an int.",
        uses=("predict_step_flops",),
    ),
    Check(
        name="train_digits",
        title="Read unseen digits: at least 95 %",
        points=6,
        cases=(Case("a random split, pixels and classes in another order, one image many times"),),
        inputs=_digits_inputs,
        run=calls.digits,
        ask="train_classifier(x_train, y_train, x_test)[0]",
        expect=_digits_expect,
        compare=_digits_compare,
        pointer="Plot the losses that you return: do they fall at all, and do they stop falling too early?",
        hint="Does the loss fall? If not, try other learning rates, in factors of 3. If it falls and the test is "
        "still poor, train for more epochs or widen the hidden layer. Predict with argmax over the classes. What you "
        "take off the images comes from the training images, for the test images too.",
        uses=("Tensor", "MLP", "SGD", "train_step", "train_classifier"),
        time_limit_s=60,
    ),
)
