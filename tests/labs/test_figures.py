"""Figures in the text of labs 01, 05 and 06 follow from what the labs, their checks and the package compute."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from mlsys_lab.checks.deciding.autograd import LAB as AUTOGRAD
from mlsys_lab.checks.deciding.autograd import training
from mlsys_lab.checks.deciding.scaling_laws import planning, runs
from mlsys_lab.checks.deciding.verdict import draw_inputs
from mlsys_lab.flops import preset
from mlsys_lab.scaling import World
from mlsys_lab.scaling.runs import PLAN, SEQUENCE
from mlsys_lab.scaling.text import read_corpus
from tests.labs.figures import figures_in, literals_of, places_of, texts_of, uncovered, value_of
from tests.labs.harness import LabUnderTest, labs, module_of

LABS = {lab.info.topic: lab for lab in labs()}


def percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def autograd(_lab: LabUnderTest) -> Iterator[str]:
    check = AUTOGRAD["train_digits"]
    images = len(draw_inputs(check, check.cases[0], 0)["_y_test"])
    yield f"at least {percent(training.TARGET)} test accuracy"
    yield f"Aim: at least {percent(training.TARGET)} on images"
    asked = percent(training.least_accuracy(images))
    yield f"One test of {images} images may be unlucky: the check asks for {asked} of them"
    yield f"nothing keeps a logit below {math.ceil(math.log(np.finfo(np.float32).max))}"


def transformer_arithmetic(lab: LabUnderTest) -> Iterator[str]:
    module = reference_of(lab)
    weights, gradients, states = module.state_bytes(1, 0).values()
    yield f"about {weights + gradients + states} bytes a parameter"
    yield f"{weights} bytes of **weights** (bf16), {gradients} of **gradients**, and {states} of **optimiser states**"
    model = preset("llama2-70b")
    products = sum(2 * times * m * k * n for _, times, m, k, n in module.forward_products(model, 1, model.context))
    others = 5 * (module.elementwise_units(model, 1, model.context) - module.count_parameters(model))  # FLOPs, amply
    yield f"more than {math.floor(100 * products / (products + others))} % of a large transformer's arithmetic"


def scaling_laws(lab: LabUnderTest) -> Iterator[str]:
    simulated = simulated_runs(lab)
    x = np.log(simulated["n_params"])
    yield f"$x$ is about {round(x.mean(), -1):.0f} and $x^2$ about {round((x**2).mean(), -2):.0f}"
    yield {20: "must be met by a step in $a$ twenty times as large"}[int(round(x.mean(), -1))]
    yield {0.05: "loses one run in twenty"}[runs.FAILURES]
    yield f"each start takes about {round(evaluations_a_start(lab, simulated), -1):.0f} evaluations in good units"
    yield f"the search takes some {round(evaluations_of_a_search(lab), -1):.0f} evaluations"
    worlds = [World.draw(seed) for seed in range(300)]
    divergence = [world.divergence for world in worlds]
    yield f"go {math.floor(min(divergence))} to {math.ceil(max(divergence))} times too high"
    yield f"adds noise of {({0.005: 'half a percent'})[runs.NOISE]} of the loss above E"
    yield f"the rate may be off by a factor of {planning.RATE_FAR_OFF}"
    yield f"It may cost **at most {percent(planning.SCOUTING_SHARE)}**"
    yield f"within a factor of {planning.RATE_OFF}, for the best model"
    yield f"at the best rate for its size, within a factor of {planning.RATE_OFF}"
    yield f"may waste {percent(planning.EXPECTED_WASTE)} of the target's compute on average"
    yield f"know its loss to ±{percent(planning.LOSS_OFF)}"
    yield f"your N wastes (at most {percent(planning.WASTE)})"
    yield f"the loss misses your prediction (at most {percent(planning.PREDICTED_OFF)})"
    made = [size for sizes in PLAN.values() for size in sizes]
    yield from {16: ("sixteen small transformers", "Count your sixteen models")}[len(made)]
    n_params = sorted(size.n_params(len(read_corpus().vocabulary)) for size in made)
    least, most = {6: "six"}[round(n_params[0] / 1e3)], f"{round(n_params[-1], -4) // 1000} thousand"
    yield f"between {least} thousand and {most} parameters"
    yield f"models of up to {most} parameters"
    yield f"with {SEQUENCE} tokens in a sequence"


COMPUTED: dict[str, Callable[[LabUnderTest], Iterator[str]]] = {
    "autograd": autograd,
    "transformer-arithmetic": transformer_arithmetic,
    "scaling-laws": scaling_laws,
}
"""By a lab's topic: phrases of its text, made of what is computed."""
IN_CODE = {
    "autograd": (),
    "transformer-arithmetic": (
        "a transformer of width 4,096 runs",
        "The same weights serve 4,096 tokens",
        "184,320 and 1,720,320 hours",
        "Your plan for 64 devices of 80 GB, one sequence of 4,096 tokens",
        "one sequence of 16,384 tokens",
    ),
    "scaling-laws": (
        "with noise of half a percent of the part",
        "those 5.76e23 FLOPs",
        "the middle 80 % of the answers",
        "An interval of 80 % misses it one time in five",
    ),
}
"""By a lab's topic: phrases whose figures stand in its code, too."""
GIVEN = {
    "autograd": (
        "shapes (64, 10) and (10,), each bias is *used* 64 times",
        "shape (3, 1) is multiplied by one of shape (2, 3, 4)",
        "of 1000",
        "One entry of `shape` may be −1",
        "a vocabulary of 100,000",
    ),
    "transformer-arithmetic": (
        "70-billion-parameter model",
        "7 and 70 billion parameters",
        "How many 80 GB devices hold a 70B model",
        "on 2 trillion tokens",
        "devices of 80 GB does Llama 2 70B need",
    ),
    "scaling-laws": (
        "280 billion parameters. Chinchilla spent the same on 70 billion and 1.4 trillion tokens",
        "about 20 tokens a parameter",
        "fewer than 20 tokens a parameter",
        "at 100 million parameters the best rate",
        "at these budgets, somewhere between 2 and 300. No fixed rule, such as 20, is right",
        "off by a factor of 1.5 costs",
    ),
}
"""By a lab's topic: phrases with examples, names and published figures, and those that a test below holds."""


def reference_of(lab: LabUnderTest) -> ModuleType:
    return module_of(lab.reference, "reference.ipynb")


def simulated_runs(lab: LabUnderTest) -> dict[str, np.ndarray]:
    """The runs of lab 06, Task 1, as its cell makes them."""
    (source,) = (
        source for cell in lab.reference_notebook["cells"] if "above_floor =" in (source := "".join(cell["source"]))
    )
    names = vars(reference_of(lab)) | {"print": lambda *_, **__: None}
    exec("from mlsys_lab.scaling import BESIROGLU_2024\n" + source, names)
    return {name: names[name] for name in ("n_params", "tokens", "loss")}


def evaluations_a_start(lab: LabUnderTest, simulated: dict[str, np.ndarray]) -> float:
    """How often the reference asks for its objective from each start."""
    module, asked = reference_of(lab), 0
    objective = vars(module)["objective"]

    def counting(*given: Any) -> Any:
        nonlocal asked
        asked += 1
        return objective(*given)

    vars(module)["objective"] = counting
    module.fit_law(**simulated)
    return asked / len(module.STARTS)


def evaluations_of_a_search(lab: LabUnderTest) -> float:
    """How often the reference's search for the cheapest model that serves asks for the cost."""
    module, counts = reference_of(lab), list[int]()
    search = vars(module)["minimize_scalar"]

    def counting(*given: Any, **options: Any) -> Any:
        counts.append((found := search(*given, **options)).nfev)
        return found

    vars(module)["minimize_scalar"] = counting
    law = module.Law(E=1.8, A=480.0, B=2100.0, alpha=0.35, beta=0.37)
    _, tokens = module.compute_optimal(law, 5.76e23)
    loss = law.loss(*module.compute_optimal(law, 5.76e23))
    for served in np.geomspace(0.01, 1000, 30):
        module.serving_optimal(law, loss, served * tokens)
    return float(np.mean(counts))


@pytest.mark.parametrize("topic", COMPUTED)
def test_every_figure_is_computed_or_known_to_be_given(topic: str) -> None:
    lab = LABS[topic]
    text, computed = texts_of(lab), list(COMPUTED[topic](lab))
    phrases = [*computed, *IN_CODE[topic], *GIVEN[topic]]
    assert [phrase for phrase in phrases if not places_of(phrase, text)] == []
    assert uncovered(text, phrases) == []


@pytest.mark.parametrize("topic", IN_CODE)
def test_figures_of_cells_are_those_of_the_code(topic: str) -> None:
    literals = literals_of(LABS[topic])
    for phrase in IN_CODE[topic]:
        figures = [value_of(found[0].strip(" ,")) for found in figures_in(phrase)]
        known = [
            any(math.isclose(one, literal * scale) for literal in literals for scale in (1, 1e-9)) for one in figures
        ]
        assert figures and all(known), phrase


def test_a_figure_that_nobody_holds_is_found() -> None:
    text = "Trained on sixty thousand tokens, 99 % of\nthem once; see Lab 05, `x[10]` and $10^3$."
    assert [found[0] for found in figures_in(text)] == ["sixty", "99 %"]
    assert uncovered(text, ["99 % of them"]) == ["Trained on sixty thousand tokens, 99 % of them"]


def test_what_lab_06_says_of_the_judges_worlds() -> None:
    """Tokens a parameter at the least and the largest budget; what wrong rates cost, in units of the noise."""
    rng, ratios, costs = np.random.default_rng(0), list[float](), list[np.ndarray]()
    for tokens_per_parameter in (runs.LARGE, runs.LONG):
        for _ in range(50):
            cluster = runs.Cluster.draw(rng, tokens_per_parameter)
            ratios += [flops / (6 * cluster.law.best_size(flops) ** 2) for flops in (3e19, 1e21)]
            costs.append(cluster.sensitivity * np.log([1.5, 3.0]) ** 2 / runs.NOISE)
    assert min(ratios) > 2 and max(ratios) < 300
    by_half, by_three = np.transpose(costs)
    assert by_half.min() > 0.9 and by_half.max() < 2.1 and round(by_three.mean()) in (10, 11)
