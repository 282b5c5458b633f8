"""Worked examples of the labs' texts: each statement `expression  # → value`, on the reference."""

from __future__ import annotations

import ast
import re

import pytest

from tests.labs.figures import texts_of
from tests.labs.harness import LabUnderTest, labs, module_of

EXAMPLE = re.compile(r"```python\n(.*?)```", re.DOTALL)
LABS = {lab.info.topic: lab for lab in labs() if "  # → " in texts_of(lab)}


@pytest.mark.parametrize("lab", LABS.values(), ids=LABS)
def test_the_examples_print_what_the_text_says(lab: LabUnderTest) -> None:
    module = module_of(lab.reference, "reference.ipynb")
    for example in EXAMPLE.findall(texts_of(lab)):
        names = dict(vars(module))
        lines = example.splitlines()
        for statement in ast.parse(example).body:
            code = "\n".join(lines[statement.lineno - 1 : statement.end_lineno])
            _, _, value = code.partition("  # → ")
            if value:
                assert eval(code, names) == eval(value, names), code
            else:
                exec(code, names)
