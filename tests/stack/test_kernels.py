"""Only a learner's kernels run: their lines are the learner's, and the rest of the cells leaves no trace."""

from __future__ import annotations

import inspect

import pytest

from mlsys_lab.stack.artifact import Artifact, ArtifactError, Cell
from mlsys_lab.stack.kernels import load_kernels

SCALE = """\
#| export
import math, sys
from numba import cuda
BLOCK = 32

sys.modules["never run"] = math

@cuda.jit
def scale(x, y, factor):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = math.exp(x[i]) * factor
"""


def artifact(*cells: str) -> Artifact:
    return Artifact("lab.ipynb", tuple(Cell(2 * place + 1, source) for place, source in enumerate(cells)))


def test_kernels_and_numbers_are_there_and_nothing_else_has_run() -> None:
    import sys

    module = load_kernels(artifact("#| export\nraise SystemExit", SCALE))
    assert module.BLOCK == 32
    assert "never run" not in sys.modules
    assert not hasattr(module, "sys")
    assert "math.exp(x[i]) * factor" in inspect.getsource(module.scale.py_func)
    assert set(module.__builtins__) == {"range", "min", "max", "abs", "int", "float", "bool", "len"}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "    print(x)",
            "`print` is nothing that kernel `scale` can use (cell 3 (begins `import math, sys`), line 13: ",
        ),
        ("    import os", "a kernel has no `import` (cell 3"),
    ],
)
def test_what_is_no_kernel_is_told_at_its_cell_and_line(line: str, said: str) -> None:
    with pytest.raises(ArtifactError) as refused:
        load_kernels(artifact("1", SCALE + line + "\n"))
    assert said in str(refused.value)
    assert f"`{line.strip()}`" in str(refused.value)


def test_a_syntax_error_is_told_as_in_any_cell() -> None:
    with pytest.raises(ArtifactError, match="syntax error in cell 1"):
        load_kernels(artifact("@cuda.jit\ndef broken(:\n    pass"))
