"""Only a learner's kernels run: their lines are the learner's, and the rest of the cells leaves no trace."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from mlsys_checks.sandboxed.kernels.loading import load_kernels
from mlsys_lab.stack.artifact import Artifact, ArtifactError, Cell
from mlsys_lab.stack.loading import find_lost
from tests.kernels.compiled import compiled

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
    names = {"range", "min", "max", "abs", "int", "float", "bool", "len", "NotImplementedError"}
    assert set(module.__builtins__) == names


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
    module = load_kernels(artifact("1", SCALE + line + "\n"))
    with pytest.raises(ArtifactError) as refused:
        _ = module.scale
    assert said in str(refused.value)
    assert f"`{line.strip()}`" in str(refused.value)


def test_a_syntax_error_costs_its_own_cell_and_is_told_as_in_any() -> None:
    module = load_kernels(artifact("%time x = 1\nawait x", "@cuda.jit\ndef broken(:\n    pass", SCALE))
    assert callable(module.scale)
    assert "syntax error in cell 3" in str(find_lost(module, ["broken"]))


STUB = "#| export\nimport math\nfrom numba import cuda\n\n@cuda.jit\ndef scale(x):\n    {}\n"


def test_a_task_that_is_still_to_do_says_so() -> None:
    from mlsys_lab.kernels.trace import numba_simulator

    module = load_kernels(artifact(STUB.format('raise NotImplementedError("still to do: Task 1")')))
    with pytest.raises(NotImplementedError, match="still to do: Task 1"):
        numba_simulator.record(module.scale, 1, 1, np.zeros(1))


def test_number_types_go_by_their_libraries_names_whatever_the_notebook_imports() -> None:
    from mlsys_lab.kernels.trace import numba_simulator

    body = "tile = cuda.shared.array(4, dtype=np.float32)\n    for k in range(4):\n        tile[k] = numba.int32(2.5)\n"
    module = load_kernels(artifact(STUB.format(f"{body}        x[k] = tile[k] + types.float64(0.5)")))
    assert not {"np", "numba", "types"} & vars(load_kernels(artifact(SCALE))).keys()
    x = np.zeros(4)
    numba_simulator.record(module.scale, 1, 1, x)
    assert x.tolist() == [2.5] * 4


@pytest.mark.parametrize("line", ["raise NotImplementedError", "raise NotImplementedError(x)", "raise ValueError('x')"])
def test_nothing_else_is_raised(line: str) -> None:
    module = load_kernels(artifact(STUB.format(line)))
    with pytest.raises(ArtifactError, match="a kernel has no `raise`"):
        _ = module.scale


def test_what_is_refused_costs_the_kernels_that_use_it_and_no_others() -> None:
    bad = "scale_ = 1\n\n@cuda.jit(device=True)\ndef shout(x):\n    print(x)\n    return x\n"
    call = "\n@cuda.jit\ndef loud(x):\n    x[0] = shout(x[0])\n\n@cuda.jit\ndef both(x):\n    x[0] = 1\n\nboth = 2\n"
    module = load_kernels(artifact(SCALE, bad + call))
    assert callable(module.scale) and not hasattr(module, "loudly")
    for name in ("shout", "loud"):
        with pytest.raises(ArtifactError, match="`print` is nothing that kernel `shout` can use"):
            getattr(module, name)
    with pytest.raises(ArtifactError, match="`both` is a kernel and a number"):
        _ = module.both


def test_of_what_is_defined_again_the_last_counts_as_in_the_notebook() -> None:
    """Cells that came twice, another try further down, another block size for the tasks that follow."""
    again = "BLOCK = 64\nWIDE = 2 * BLOCK\n\n@cuda.jit\ndef scale(x):\n    x[0] = BLOCK + WIDE\n"
    first = "WIDE = 2 * 16\n\n@cuda.jit\ndef scale(x):\n    print(x)\n"
    module = load_kernels(artifact(SCALE, first, "BLOCK = 32\nWIDE = 2 * BLOCK", again))
    assert (module.BLOCK, module.WIDE) == (64, 128)
    assert "x[0] = BLOCK + WIDE" in inspect.getsource(module.scale.py_func)
    assert callable(load_kernels(artifact(SCALE, SCALE)).scale)


COPY = """\
#| export
import triton
import triton.language as tl
EACH = tl.constexpr(2)
{before}
@triton.jit
def copy(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, EACH * tl.load(x_ptr + at, mask=at < n), mask=at < n)
"""
LAUNCHES = """
import torch
from mlsys_lab.kernels.triton_launch import launch
from mlsys_lab.stack.artifact import Artifact
from mlsys_checks.sandboxed.kernels.loading import load_kernels

x = torch.empty(64, device="meta")
for source in {sources!r}:
    launch(load_kernels(Artifact.parse("lab.ipynb", source)).copy, (1,), x.device, x, x, 64, BLOCK=64)
"""


def test_what_is_compiled_is_the_text_that_was_checked() -> None:
    """Triton looks a kernel's lines up by their number: after a line end that only some count, it finds others."""
    another = "def copy(x_ptr, y_ptr, n, BLOCK: tl.constexpr): tl.store(y_ptr, 0)"
    before = ["", *(f"X = 1  # {end * 6}\n# @triton.jit{end}{another}\n" for end in ("\x0c", "\u2028"))]
    made = compiled(LAUNCHES.format(sources=[COPY.format(before=lines) for lines in before]))
    assert len(made) == 3 and all(one.widest_bytes("ld") for one in made)
