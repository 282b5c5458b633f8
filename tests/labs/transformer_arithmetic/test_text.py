"""Numbers in the text of lab 05."""

from __future__ import annotations

import math
from collections.abc import Iterator

from mlsys_lab.configs import preset
from tests.labs.figures import assert_held
from tests.labs.harness import labs, module_of

ARITHMETIC = next(lab for lab in labs() if lab.info.topic == "transformer-arithmetic")
IN_CODE = (
    "a transformer of width 4,096 runs",
    "The same weights serve 4,096 tokens",
    "184,320 and 1,720,320 hours",
    "Your plan for 64 devices of 80 GB, one sequence of 4,096 tokens",
    "one sequence of 16,384 tokens",
)
GIVEN = (
    "70-billion-parameter model",
    "7 and 70 billion parameters",
    "How many 80 GB devices hold a 70B model",
    "on 2 trillion tokens",
    "devices of 80 GB does Llama 2 70B need",
)


def computed() -> Iterator[str]:
    module = module_of(ARITHMETIC.reference, "reference.ipynb")
    weights, gradients, states = module.state_bytes(1, 0).values()
    yield f"about {weights + gradients + states} bytes a parameter"
    yield f"{weights} bytes of **weights** (bf16), {gradients} of **gradients**, and {states} of **optimiser states**"
    model = preset("llama2-70b")
    products = sum(2 * times * m * k * n for _, times, m, k, n in module.forward_products(model, 1, model.context))
    others = 5 * (module.elementwise_units(model, 1, model.context) - module.count_parameters(model))  # FLOPs, amply
    yield f"more than {math.floor(100 * products / (products + others))} % of a large transformer's arithmetic"


def test_figures_are_computed_or_given() -> None:
    assert_held(ARITHMETIC, computed=computed(), in_code=IN_CODE, given=GIVEN)
