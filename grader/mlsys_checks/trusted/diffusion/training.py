"""Checks of task 3: losses, dropped labels, averages, a step of training. Oracle: gradients by hand."""

from __future__ import annotations

import numpy as np

from mlsys_checks.sandboxed.diffusion import training as calls
from mlsys_checks.sandboxed.diffusion.training import OFFSET, PREDICTIONS, weights_of
from mlsys_checks.sandboxed.spec import Arrays, Case, Check
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.diffusion.predictions import draw_predictions, scales, target

CLASSES = 3
"""Classes of the network; the label after them is for none."""

# --- A linear network -------------------------------------------------------------------------------------------------


def _draw_network(rng: np.random.Generator, case: Case) -> Arrays:
    dtype, pixels = case.params.get("dtype", "float64"), int(np.prod(case.params["shape"][1:]))
    drawn = {
        "matrix": rng.standard_normal((pixels, pixels)) / pixels**0.5,
        "by_level": rng.standard_normal(pixels),
        "by_label": rng.standard_normal((CLASSES + 1, pixels)),
    }
    drawn |= {f"{OFFSET}_{i}": rng.standard_normal(pixels) for i in range(case.params.get("offsets", 0))}
    return {name: value.astype(dtype) for name, value in drawn.items()}


def _draw_losses(rng: np.random.Generator, case: Case) -> Arrays:
    label = {} if case.params.get("none") else {"label": rng.integers(0, CLASSES + 1, case.params["shape"][0])}
    drawn = draw_predictions(rng, case)
    drawn["x0"] *= case.params.get("size", 1)
    return {name: drawn[name] for name in ("x0", "noise", "sigma", "prediction")} | _draw_network(rng, case) | label


def _errors(
    weights: Arrays, prediction: str, batch: tuple[np.ndarray, ...], age: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Errors of all answers, what the network was given, and its levels: (B, pixels), (B, pixels), (B,)."""
    x0, sigma, noise, label = batch
    x0, noise = (images.reshape(len(images), -1).astype(np.float64) for images in (x0, noise))
    kept, noisy = scales(sigma, x0)
    x, level = kept * x0 + noisy * noise, np.log(sigma) / 4
    answer = x @ weights["matrix"].T + np.outer(level, weights["by_level"]) + weights["by_label"][label] + 0.1 * age
    answer += sum(value for name, value in weights.items() if name.startswith(OFFSET))
    return answer - target(prediction, x0, sigma, noise), x, level


def _expect_losses(arrays: Arrays) -> Arrays:
    label = arrays.get("label", np.full(len(arrays["x0"]), CLASSES))
    weights = {name: arrays[name].astype(np.float64) for name in weights_of(arrays)}
    batch = (arrays["x0"], arrays["sigma"], arrays["noise"], label)
    errors, _, _ = _errors(weights, PREDICTIONS[int(arrays["prediction"])], batch, 0)
    return {"losses": (errors**2).mean(1).astype(arrays["x0"].dtype)}


def _draw_steps(rng: np.random.Generator, case: Case) -> Arrays:
    steps = [_draw_losses(rng, case) for _ in range(case.params["steps"])]
    stacked = {name: np.stack([step[name] for step in steps]) for name in ("x0", "noise", "sigma", "label")}
    rates = {"rate": np.array(case.params.get("rate", 0.05)), "decay": np.array(rng.uniform(0.3, 0.9))}
    weights = weights_of(steps[0])
    trained = np.roll(np.arange(len(weights)), rng.integers(1, len(weights)))[: case.params.get("trained")]
    return stacked | {name: steps[0][name] for name in ("prediction", *weights)} | rates | {"trained": trained}


def _expect_steps(arrays: Arrays) -> Arrays:
    names = weights_of(arrays)
    weights = {name: arrays[name].astype(np.float64) for name in names}
    average, rate, decay = dict(weights), float(arrays["rate"]), float(arrays["decay"])
    losses, batches = [], zip(*(arrays[name] for name in ("x0", "sigma", "noise", "label")), strict=True)
    for age, batch in enumerate(batches):
        errors, x, level = _errors(weights, PREDICTIONS[int(arrays["prediction"])], batch, age)
        losses.append((errors**2).mean())
        slope = 2 * errors / errors.size
        by_label = np.zeros_like(weights["by_label"])
        np.add.at(by_label, batch[3], slope)
        gradient = {"matrix": slope.T @ x, "by_level": level @ slope, "by_label": by_label}
        for name in (names[place] for place in arrays["trained"]):
            weights[name] = weights[name] - rate * gradient.get(name, slope.sum(0))
        average = {name: decay * average[name] + (1 - decay) * weights[name] for name in names}
    dtype = arrays["matrix"].dtype
    answers = {"losses": np.array(losses)}
    for name in names:
        answers |= {name: weights[name].astype(dtype), f"average of {name}": average[name].astype(dtype)}
    return answers


def _code_of_losses(arrays: Arrays) -> str:
    label = 'torch.from_numpy(given["label"])' if "label" in arrays else "None"
    x0, sigma, noise = (f'torch.from_numpy(given["{name}"])' for name in ("x0", "sigma", "noise"))
    named = PREDICTIONS[int(arrays["prediction"])]
    return (
        "from mlsys_checks.sandboxed.diffusion.training import LinearNetwork\n"
        f'p_losses(LinearNetwork(given), "{named}", {x0}, {sigma}, {noise}, {label}).detach()'
    )


def _code_of_steps(arrays: Arrays) -> str:
    named = PREDICTIONS[int(arrays["prediction"])]
    return f"""from mlsys_checks.sandboxed.diffusion.training import Descent, LinearNetwork
network = LinearNetwork(given)
average = [weight.detach().clone() for weight in network.parameters()]
for weight in network.parameters():
    weight.grad = torch.ones_like(weight)
weights = list(network.parameters())
optimizer = Descent([weights[place] for place in {arrays["trained"].tolist()}], {float(arrays["rate"])!r})
batches = zip(*(torch.from_numpy(given[name]) for name in ("x0", "sigma", "noise", "label")))
[train_step(network, optimizer, list(average), "{named}", *batch, {float(arrays["decay"])!r}) for batch in batches]
average"""


# --- Labels and averages ----------------------------------------------------------------------------------------------


def _draw_labels(rng: np.random.Generator, case: Case) -> Arrays:
    B, share = case.params["B"], case.params["share"]
    uniforms = rng.random(B)
    if case.params.get("tied"):
        uniforms[::2] = share
    return {
        "label": rng.integers(0, 10, B),
        "uniforms": uniforms,
        "share": np.array(share),
        "null": np.array(case.params.get("null", rng.integers(10, 1000))),
    }


def _expect_labels(arrays: Arrays) -> Arrays:
    return {"label": np.where(arrays["uniforms"] < arrays["share"], arrays["null"], arrays["label"])}


def _draw_average(rng: np.random.Generator, case: Case) -> Arrays:
    dtype = case.params.get("dtype", "float64")
    shapes = {"first": (2, 3), "second": (4,), "first_weight": (2, 3), "second_weight": (4,)}
    drawn = {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}
    return drawn | {"decay": np.array(case.params["decay"]), "times": np.array(case.params["times"])}


def _expect_average(arrays: Arrays) -> Arrays:
    left = float(arrays["decay"]) ** int(arrays["times"])
    answers = {
        name: (left * arrays[name].astype(np.float64) + (1 - left) * arrays[f"{name}_weight"]).astype(
            arrays[name].dtype
        )
        for name in ("first", "second")
    }
    return answers | {"weight": arrays["first_weight"]}


def _code_of_average(arrays: Arrays) -> str:
    times, decay = int(arrays["times"]), float(arrays["decay"])
    return f"""average = torch.from_numpy(given["first"].T.copy()).T, torch.from_numpy(given["second"].copy())
weights = [torch.tensor(given[f"{{name}}_weight"], requires_grad=name == "first") for name in ("first", "second")]
for _ in range({times}):
    update_average(list(average), weights, {decay!r})
for weight in weights:
    weight.data.fill_(0)
average"""


CHECKS = (
    Check(
        name="p_losses",
        title="A loss for each image",
        points=5,
        cases=(
            Case("v", {"prediction": "v", "shape": (3, 2)}),
            Case("noise, images of unequal sides", {"prediction": "epsilon", "shape": (2, 1, 3, 2)}),
            Case("the image, without labels", {"prediction": "x0", "shape": (4, 3), "none": True}),
            Case("one image", {"prediction": "v", "shape": (1, 2, 2)}),
            Case("single precision", {"prediction": "epsilon", "shape": (3, 4), "dtype": "float32"}),
            Case("levels of all sizes", {"prediction": "v", "shape": (9, 2), "levels": (1e-4, 1e3)}, hidden=True),
            Case("many images", {"prediction": "v", "shape": (29, 3, 2)}, hidden=True),
        ),
        inputs=_draw_losses,
        run=calls.p_losses,
        expect=_expect_losses,
        compare=close,
        first_hint="Which three things does the network get? Over which axes is the mean?",
        hint="The noisy image at size 1, a quarter of the level's logarithm, the label; then the mean of squares over "
        "all axes but the first.",
        uses=("p_losses", "target"),
        describe=_code_of_losses,
    ),
    Check(
        name="drop_labels",
        title="Labels that are dropped",
        points=3,
        cases=(
            Case("a tenth", {"B": 40, "share": 0.1}),
            Case("half", {"B": 9, "share": 0.5}),
            Case("none", {"B": 5, "share": 0.0}),
            Case("all", {"B": 5, "share": 1.0}),
            Case("numbers at the edge", {"B": 8, "share": 0.25, "tied": True}),
            Case("null is 0", {"B": 9, "share": 0.5, "null": 0}),
            Case("many", {"B": 200, "share": 0.3}, hidden=True),
        ),
        inputs=_draw_labels,
        run=calls.drop_labels,
        expect=_expect_labels,
        compare=close,
        first_hint="Which labels change, and to what? Is the input still as it was?",
        hint="Compare each number with the share, and put null in where it is below; in a new tensor.",
        uses=("drop_labels",),
        snippet="drop_labels(label, uniforms, share, null)",
    ),
    Check(
        name="update_average",
        title="An average of weights",
        points=3,
        cases=(
            Case("one update", {"decay": 0.9, "times": 1}),
            Case("several updates", {"decay": 0.7, "times": 5}),
            Case("single precision", {"decay": 0.99, "times": 2, "dtype": "float32"}),
            Case("nothing is kept", {"decay": 0.0, "times": 1}),
            Case("many updates", {"decay": 0.95, "times": 30}, hidden=True),
        ),
        inputs=_draw_average,
        run=calls.update_average,
        expect=_expect_average,
        compare=close,
        first_hint="Which of the two is kept for the most part, and whose memory is written?",
        hint="Without gradients: multiply each averaged tensor in place by decay, and add what is left of 1 times the "
        "weight.",
        uses=("update_average",),
        describe=_code_of_average,
    ),
    Check(
        name="train_step",
        title="A step of training",
        points=5,
        cases=(
            Case("one step", {"prediction": "v", "shape": (4, 2), "steps": 1}),
            Case("three steps", {"prediction": "v", "shape": (3, 3), "steps": 3}),
            Case("noise, unequal sides", {"prediction": "epsilon", "shape": (2, 1, 2, 3), "steps": 2}),
            Case("the image", {"prediction": "x0", "shape": (5, 2), "steps": 4, "rate": 0.2}),
            Case("one weight is not trained", {"prediction": "v", "shape": (4, 3), "steps": 2, "trained": 2}),
            Case("large images", {"prediction": "v", "shape": (4, 3), "steps": 2, "size": 300}, hidden=True),
            Case("many steps", {"prediction": "v", "shape": (6, 2, 2), "steps": 12, "offsets": 4}, hidden=True),
        ),
        inputs=_draw_steps,
        run=calls.train_step,
        expect=_expect_steps,
        compare=close,
        first_hint="From which step on are losses, weights or averages wrong? The first, or the second?",
        hint="Clear, backward, step, and then the average: it takes in the new weights. The loss is that before the "
        "step, as a number.",
        uses=("train_step", "p_losses", "update_average"),
        describe=_code_of_steps,
    ),
)
