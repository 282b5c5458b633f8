"""Help comes in steps: where to look, then the step, and never the answer."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from mlsys_checks.sandboxed.spec import Check
from tests.labs.harness import LabUnderTest, labs

LABS = labs()
CHECKS = [(lab, check) for lab in LABS for check in lab.checks.checks]
LEAST = 18
"""Characters of a piece of code, blanks left out, that say more than a name or a call of a known function."""


def squeezed(text: str) -> str:
    return re.sub(r"\s", "", text)


@cache
def expressions_of(lab: LabUnderTest) -> frozenset[str]:
    """All pieces of the lab's solution that are long enough to be an answer."""
    regions = re.findall(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", lab.reference, re.DOTALL)
    assert regions
    nodes = [node for node in ast.walk(ast.parse(lab.reference)) if isinstance(node, ast.expr)]
    solved = {squeezed(ast.unparse(node)) for node in nodes if not isinstance(node, ast.Constant | ast.Name)}
    inside = squeezed("\n".join(regions))
    return frozenset(piece for piece in solved if len(piece) >= LEAST and piece in inside)


@pytest.mark.parametrize(("lab", "check"), CHECKS, ids=[f"{lab.info.topic}: {check.name}" for lab, check in CHECKS])
def test_a_check_says_where_to_look_before_it_names_the_step(lab: LabUnderTest, check: Check) -> None:
    assert len(check.hints) == 2, (
        f"{lab.info.topic}: check {check.name} has no `first_hint`, which is said before `hint`"
    )
    for text in check.hints:
        assert text.endswith((".", "?"))
        assert [piece for piece in expressions_of(lab) if piece in squeezed(text)] == []


@pytest.mark.parametrize("lab", LABS, ids=[lab.info.topic for lab in LABS])
def test_an_answer_in_a_hint_would_be_found(lab: LabUnderTest) -> None:
    found = len(expressions_of(lab))
    assert found > 10, f"{lab.info.topic}: {found} of at least 11 expressions to hold hints against"
