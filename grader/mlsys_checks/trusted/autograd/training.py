"""Task 7: a network that learns. Oracles: torch.nn, sums, and a count of FLOPs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from mlsys_checks.sandboxed.autograd import training as calls
from mlsys_checks.sandboxed.spec import Arrays, Case, Check
from mlsys_checks.trusted.autograd import snippets
from mlsys_checks.trusted.autograd.oracle import answer, gradients
from mlsys_checks.trusted.autograd.tensor import F32, F64
from mlsys_checks.trusted.compare import close


def _network(rng: np.random.Generator, widths: tuple[int, ...], dtype: str = F32) -> Arrays:
    arrays = {"widths": np.array(widths, dtype=np.int64)}
    for i, (n_in, n_out) in enumerate(itertools.pairwise(widths)):
        arrays[f"weight {i}"] = (rng.standard_normal((n_in, n_out)) / np.sqrt(n_in)).astype(dtype)
        arrays[f"bias {i}"] = rng.standard_normal(n_out).astype(dtype)
    return arrays


def _oracles_mlp(arrays: Arrays) -> torch.nn.Sequential:
    layers: list[torch.nn.Module] = []
    for i in range(len(arrays["widths"]) - 1):
        weight = arrays[f"weight {i}"]
        linear = torch.nn.Linear(weight.shape[0], weight.shape[1], dtype=torch.float64)
        linear.weight.data = torch.from_numpy(weight.T).double()
        linear.bias.data = torch.from_numpy(arrays[f"bias {i}"]).double()
        layers += [linear, torch.nn.ReLU()]
    if arrays.get("tied"):
        layers[-2] = layers[0]
    return torch.nn.Sequential(*layers[:-1])


# --- mlp_forward ----------------------------------------------------------------------------------------------------


def _mlp_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    widths, batch = case.params["widths"], case.params["batch"]
    x, g = (rng.standard_normal((batch, width)).astype(F32) for width in (widths[0], widths[-1]))
    return _network(rng, widths) | {"x": x, "g": g, "tied": np.array(case.params.get("tied", False))}


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
        "momenta": np.full(steps, case.params["momentum"]),
    }


def sgd_after(
    start: np.ndarray, grads: Sequence[np.ndarray] | np.ndarray, rates: np.ndarray, momenta: np.ndarray
) -> np.ndarray:
    """A parameter after one step per gradient, as a plain sum: gradient s is in step t ≥ s times μ(s+1) … μ(t) η(t).

    torch.optim does the same; it takes half a second to get going.
    """
    pairs = ((s, t) for t in range(len(grads)) for s in range(t + 1))
    after: np.ndarray = start - sum(rates[t] * np.prod(momenta[s + 1 : t + 1]) * grads[s] for s, t in pairs)
    return after


def _sgd_expect(arrays: Arrays) -> Arrays:
    rests = arrays["q rests"]
    steps = {"p": np.ones_like(rests), "q": ~rests}
    after = {
        name: sgd_after(
            arrays[name].astype(float),
            arrays[f"gradients of {name}"][taken].astype(float),
            arrays["rates"][taken],
            arrays["momenta"][taken],
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
    batch, steps, dtype = 8, case.params["steps"], case.params.get("dtype", F32)
    widths = case.params.get("widths", (6, 9, 4))
    return _network(rng, widths, dtype) | {
        "x": rng.standard_normal((steps, batch, widths[0])).astype(dtype),
        "y": rng.integers(0, widths[-1], (steps, batch)),
        "offset is used": np.arange(steps) < case.params.get("offset for", steps),
        "momentum": np.array(case.params["momentum"]),
    }


def _step_expect(arrays: Arrays) -> Arrays:
    model, losses, dtype = _oracles_mlp(arrays), list[float](), arrays["x"].dtype
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
            rates, momenta = (np.full(len(grads[i]), value) for value in (0.1, float(arrays["momentum"])))
            after = sgd_after(start[i], grads[i], rates, momenta)
            parameters[i].data = torch.from_numpy(after)
    linears = [layer for layer in model if isinstance(layer, torch.nn.Linear)]
    expected = {"loss of each step": np.array(losses, dtype), calls.IMAGES_WANT: np.array(False)}
    expected[calls.RUNS] = np.array(len(losses))
    expected |= {f"weight {i} after": answer(layer.weight.T, dtype) for i, layer in enumerate(linears)}
    return expected | {"offset after": answer(offset, dtype)}


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


CHECKS = (
    Check(
        name="mlp_forward",
        title="A network of your own layers, forward and back",
        points=3,
        cases=(
            Case("two layers", {"widths": (5, 7, 3), "batch": 4}),
            Case("one layer: no relu after it", {"widths": (4, 2), "batch": 3}),
            Case("one layer in the first place and in the last", {"widths": (4, 4, 4, 4), "batch": 3, "tied": True}),
            Case("four layers", {"widths": (3, 8, 5, 6, 2), "batch": 1}, hidden=True),
            Case("all equally wide", {"widths": (4, 4, 4), "batch": 3}, hidden=True),
            Case("wider ones, the first also last", {"widths": (8, 8, 8, 8), "batch": 9, "tied": True}, hidden=True),
        ),
        inputs=_mlp_inputs,
        run=calls.forward_and_back,
        snippet=snippets.FORWARD_AND_BACK,
        expect=_mlp_expect,
        compare=partial(close, scale=20),  # products of four layers cancel: one entry may be far smaller than its terms
        first_hint="After which layers does relu stand, and may a logit be negative?",
        hint="relu stands between layers: after each but the last, whose outputs are logits and may be negative. The "
        "last one is so by its place in the list, which stays as it is.",
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
            Case("a momentum that rises from 0", {"steps": 3, "lr": 0.1, "momentum": (0.0, 0.5, 0.9)}),
            Case("gradients of zeros, which slow down only", {"steps": 4, "lr": 0.1, "momentum": 0.9, "zeros": 2}),
            Case("with momentum, many steps", {"steps": 20, "lr": 0.02, "momentum": 0.5}, hidden=True),
        ),
        inputs=_sgd_inputs,
        run=calls.sgd,
        snippet=snippets.SGD,
        expect=_sgd_expect,
        compare=close,
        first_hint="Follow one parameter through two steps on paper: what is left of the first gradient in the "
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
            Case("double precision", {"steps": 2, "momentum": 0.9, "dtype": F64}),
            Case(
                "ten steps of four layers",
                {"steps": 10, "momentum": 0.5, "offset for": 4, "widths": (6, 9, 8, 7, 4)},
                hidden=True,
            ),
        ),
        inputs=_step_inputs,
        run=calls.train_step,
        snippet=snippets.TRAIN_STEP,
        expect=_step_expect,
        compare=lambda got, expected: close(got, expected, scale=5),
        first_hint="What do the gradients hold when `backward` begins?",
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
        snippet="predict_step_flops(batch, tuple(widths.tolist()))",
        expect=_flops_expect,
        compare=close,
        first_hint="List the products of one layer, forward and back. Does the first layer need all of them?",
        hint="2 · B · n · m for each product. Each layer has three (forward, weight, input), but the first has no "
        "input gradient. Return an int.",
        uses=("predict_step_flops",),
    ),
)
