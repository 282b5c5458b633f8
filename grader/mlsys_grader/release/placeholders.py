"""Replace solutions in a notebook by a line that names the unfinished task.

Imports nbgrader (two seconds): import this only where notebooks are built.
"""

from __future__ import annotations

import re
from typing import Any

from nbgrader.preprocessors import ClearSolutions

TASK = re.compile(r"^#+\s*(.*\bTask\b.*?)\s*#*$", re.MULTILINE | re.IGNORECASE)
DEFINITION = re.compile(r"^(\s*)(?:async\s+)?(?:def|class)\s+(\w+)", re.MULTILINE)


class NamedPlaceholders(ClearSolutions):  # type: ignore[misc]
    """nbgrader's ClearSolutions with stubs that name the task (nearest heading with "Task") and the function."""

    def preprocess(self, nb: Any, resources: Any) -> Any:
        """Clear every cell, tracking the heading above it."""
        self._task = ""
        return super().preprocess(nb, resources)

    def preprocess_cell(self, cell: Any, resources: Any, cell_index: int) -> Any:
        if cell.cell_type == "markdown" and (headings := TASK.findall(cell.source)):
            self._task = headings[-1].partition(" · ")[0]
        return super().preprocess_cell(cell, resources, cell_index)

    def _replace_solution_region(self, cell: Any, language: str) -> bool:
        task = self._task or str(cell.metadata.get("nbgrader", {}).get("grade_id", "this cell"))
        if cell.cell_type != "code" or self.begin_solution_delimeter not in cell.source:
            self.code_stub = {language: make_placeholder(task, "")}
            return bool(super()._replace_solution_region(cell, language))
        # One region at a time: each is in a function of its own.
        parts = re.split(rf"(?<={re.escape(self.end_solution_delimeter)})", cell.source)
        done = ""
        for part in parts:
            if self.begin_solution_delimeter in part:
                self.code_stub = {
                    language: make_placeholder(
                        task, find_enclosing(done + part.split(self.begin_solution_delimeter)[0])
                    )
                }
                piece = type(cell)(source=part, cell_type="code", metadata={})
                super()._replace_solution_region(piece, language)
                part = piece.source
            done += part
        cell.source = done
        return True


def make_placeholder(task: str, name: str) -> str:
    """The line that replaces a solution.

    >>> make_placeholder("Task 1: double", "double")
    'raise NotImplementedError("Task 1: double, `double`")'
    """
    what = f"{task}, `{name}`" if name else task
    return f"raise NotImplementedError({quote(what)})"


def quote(text: str) -> str:
    """Write a text as a double-quoted Python literal."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def find_enclosing(before: str) -> str:
    """Find the dotted name of the definition that a solution region stands in, from the source above the region.

    `before` ends with the indentation of the region's first line.

    >>> find_enclosing("class A:\\n    def f(self):\\n        ### ")
    'A.f'
    """
    last = before.rpartition("\n")[2]
    indent = len(last) - len(last.lstrip())
    names: list[str] = []
    for match in reversed(list(DEFINITION.finditer(before))):
        depth = len(match[1].replace("\n", ""))
        if depth < indent:
            names.insert(0, match[2])
            indent = depth
    return ".".join(names)
