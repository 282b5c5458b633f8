"""Worked examples of the labs' texts: each line `expression  # → value`, on the reference."""

from __future__ import annotations

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
        for line in example.splitlines():
            code, _, value = line.partition("  # → ")
            if value:
                assert eval(code, names) == eval(value, names), line
            else:
                exec(code, names)
