"""Worked examples of the labs' texts: each statement `expression  # → value`, on the reference."""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest

from tests.labs.figures import texts_of
from tests.labs.harness import LabUnderTest, labs, module_of

EXAMPLE = re.compile(r"```python\n(.*?)```", re.DOTALL)
LABS = {lab.info.topic: lab for lab in labs() if "  # → " in texts_of(lab)}


def imports_of(lab: LabUnderTest) -> dict[str, Any]:
    """Names that the notebook's cells import, exported or not."""
    names: dict[str, Any] = {}
    for cell in lab.reference_notebook["cells"]:
        if cell["cell_type"] == "code":
            nodes = ast.parse("".join(cell["source"])).body
            imports: list[ast.stmt] = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
            exec(compile(ast.Module(imports, []), "cell", "exec"), names)
    return names


@pytest.mark.parametrize("lab", LABS.values(), ids=LABS)
def test_the_examples_print_what_the_text_says(lab: LabUnderTest) -> None:
    module, imported = module_of(lab.reference, "reference.ipynb"), imports_of(lab)
    for example in EXAMPLE.findall(texts_of(lab)):
        names = imported | vars(module)
        lines = example.splitlines()
        for statement in ast.parse(example).body:
            code = "\n".join(lines[statement.lineno - 1 : statement.end_lineno])
            _, _, value = code.partition("  # → ")
            if value:
                assert eval(code, names) == eval(value, names), code
            else:
                exec(code, names)
