"""What lab 05's checks tell a learner: the inputs of a public case as code that runs."""

from __future__ import annotations

from contextlib import nullcontext
from types import ModuleType
from typing import Any

import pytest

from mlsys_checks.runner import PUBLIC_SEED
from mlsys_checks.sandboxed.spec import Case, Check
from mlsys_checks.sandboxed.transformer_arithmetic.models import fields_of
from mlsys_checks.sandboxed.values import decode_text
from mlsys_checks.trusted.verdict import draw_inputs, public_inputs
from tests.labs.harness import labs, module_of

LAB = next(lab for lab in labs() if lab.info.topic == "transformer-arithmetic")
DESCRIBED = [(check, case) for check in LAB.checks.checks if check.describe for case in check.cases if not case.hidden]
ASKED = {"memory_bytes": 10**6, "zero_stage": 3, "recompute": "full"}
"""What the message says beside the inputs, since a case asks for several of them."""


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    return module_of(LAB.reference, "reference.ipynb")


@pytest.mark.parametrize(("check", "case"), DESCRIBED, ids=[f"{check.name}: {case.name}" for check, case in DESCRIBED])
def test_the_inputs_are_told_as_code_that_makes_them_again(check: Check, case: Case, reference: ModuleType) -> None:
    inputs = public_inputs(draw_inputs(check, case, PUBLIC_SEED))
    assert check.describe is not None
    code = check.describe(inputs)
    names: dict[str, Any] = vars(reference) | ASKED
    if "wrong" in case.params:  # each line by itself is to be refused, but for the few that are right
        answers = check.expect(inputs)
        for line in code.splitlines():
            refused = decode_text(answers[line]) == "ValueError"
            with pytest.raises(ValueError, match=r".*") if refused else nullcontext():
                exec(line, names)
    else:
        exec(code, names)
    if "model" in inputs:
        assert vars(names["config"]) == {"name": "a model", **fields_of(inputs["model"])}
    if "machines" in inputs:
        assert [[*vars(machine).values()][1:] for machine in names["machines"]] == inputs["machines"].tolist()
    if "rates" in inputs:
        assert [names["rates"][tuple(shape)] for shape in inputs["shapes"].tolist()] == inputs["rates"].tolist()
    assert all(str(array.item()) in code for name, array in inputs.items() if not array.ndim and name != "recompute")
