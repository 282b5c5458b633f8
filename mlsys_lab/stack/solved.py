"""The solved labs, on which later labs run where a learner has no accepted artifact.

A checkout has them in solutions/; a wheel holds the exported cells of each in mlsys_lab/_solved, unless it was built
without (.ci/solved_labs.py). A lab's sandbox has those that its lab.toml lists under `stack`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import mlsys_lab
from mlsys_lab.stack.commands import is_exported

CELL = re.compile(r"^(?=# %%)", re.MULTILINE)
"""Where a cell of a py:percent notebook begins."""


def find_solved(topic: str) -> Path | None:
    """Find the file of a topic's solved lab; None if this installation has none."""
    package = Path(str(mlsys_lab.__file__)).parent
    name = f"[0-9][0-9]-{topic}"
    found = [*(package / "_solved").glob(f"{name}.py"), *(package.parent / "solutions").glob(f"{name}/{name}.py")]
    return next(iter(found), None)


def export_solved(text: str) -> str:
    """The exported cells of a py:percent notebook, as a module; the lines of the other cells are left blank.

    >>> export_solved("# %% [markdown]\\n# A sum.\\n# %%\\n#| export\\ntotal = 1 + 2\\n# %%\\nprint(total)\\n")
    '\\n\\n# %%\\n#| export\\ntotal = 1 + 2\\n\\n\\n'
    """
    return "".join(cell if is_exported(cell) else "\n" * cell.count("\n") for cell in CELL.split(text))


def load_solved(topic: str) -> ModuleType | None:
    """Import the exported cells of a topic's solved lab, once in a process; None if this installation has none."""
    name = f"mlsys_solved_{topic.replace('-', '_')}"
    if (path := find_solved(topic)) is None or name in sys.modules:
        return sys.modules.get(name)
    code = compile(export_solved(path.read_text(encoding="utf-8")), str(path), "exec", dont_inherit=True)
    module = sys.modules[name] = ModuleType(name)  # dataclasses and pickle look a class's module up by name
    try:
        exec(code, vars(module))
    except BaseException:
        del sys.modules[name]
        raise
    return module
