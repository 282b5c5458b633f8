"""A class of thirty that hands in lab 01: what each student's file holds, and the exact checks that each must lose.

python tests/grader/classroom.py HAND_INS     writes HAND_INS/STUDENT/01-autograd.ipynb, nothing for one of them
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jupytext

from mlsys_grader.release.build import Released, release

PROJECT = Path(__file__).parents[2]
LAB = "01-autograd"
TOPIC = "autograd"
ALL = "all"
Notebook = dict[str, Any]


@dataclass(frozen=True)
class Student:
    """`make` builds the file from the solved notebook (None: hands in nothing); `lost` are the checks that must fail.

    `reason` is part of the reason that feedback must give for each of them.
    """

    name: str
    make: Callable[[Notebook], bytes | None]
    lost: frozenset[str] | str = frozenset()
    reason: str = ""


@cache
def released() -> Released:
    return release(PROJECT / "solutions" / LAB, PROJECT / "pyproject.toml")


def blank_notebook() -> Notebook:
    return json.loads(released().files[f"{LAB}.ipynb"])


def solved_notebook() -> Notebook:
    """The released notebook with the course's own solutions typed in."""
    source = jupytext.read(PROJECT / "solutions" / LAB / f"{LAB}.py")
    solutions = {
        cell.metadata["nbgrader"]["grade_id"]: "\n".join(
            line
            for line in cell.source.splitlines()
            if "### BEGIN SOLUTION" not in line and "### END SOLUTION" not in line
        )
        for cell in source.cells
        if cell.metadata.get("nbgrader", {}).get("solution")
    }
    notebook = blank_notebook()
    for cell in notebook["cells"]:
        if (name := grade_id(cell)) in solutions:
            cell["source"] = solutions[name]
    return notebook


def grade_id(cell: dict[str, Any]) -> str:
    return cell["metadata"].get("nbgrader", {}).get("grade_id", "")


def is_check(cell: dict[str, Any]) -> bool:
    return cell["metadata"].get("nbgrader", {}).get("grade", False)


def save(notebook: Notebook) -> bytes:
    return json.dumps(notebook).encode()


def code_cell(source: str) -> dict[str, Any]:
    return {"cell_type": "code", "metadata": {}, "source": source, "outputs": [], "execution_count": None}


def adding(source: str) -> Callable[[Notebook], bytes]:
    """The solved notebook with one more exported cell at the end, which overrides what came before."""

    def make(notebook: Notebook) -> bytes:
        notebook["cells"].append(code_cell(f"#| export\n{source}"))
        return save(notebook)

    return make


def before_all(source: str) -> Callable[[Notebook], bytes]:
    def make(notebook: Notebook) -> bytes:
        notebook["cells"].insert(0, code_cell(f"#| export\n{source}"))
        return save(notebook)

    return make


def changing(change: Callable[[Notebook], None]) -> Callable[[Notebook], bytes]:
    def make(notebook: Notebook) -> bytes:
        change(notebook)
        return save(notebook)

    return make


def only_first_tasks(notebook: Notebook) -> None:
    unsolved = {grade_id(cell): cell["source"] for cell in blank_notebook()["cells"]}
    for cell in notebook["cells"]:
        if grade_id(cell).startswith(("task-4", "task-5", "task-6", "task-7", "task-8")):
            cell["source"] = unsolved[grade_id(cell)]


TASK_6 = frozenset({"cross_entropy", "train_step", "train_digits"})
"""The checks that need what task 6 defines."""


def broken_task_6(notebook: Notebook) -> None:
    for cell in notebook["cells"]:
        if grade_id(cell) == "task-6-cross-entropy":
            cell["source"] += "\nreturn = 3\n"


def without_task_6(notebook: Notebook) -> None:
    notebook["cells"] = [cell for cell in notebook["cells"] if grade_id(cell) != "task-6-cross-entropy"]


def without_check_cells(notebook: Notebook) -> None:
    notebook["cells"] = [cell for cell in notebook["cells"] if not is_check(cell)]


def renamed_cells(notebook: Notebook) -> None:
    for number, cell in enumerate(notebook["cells"]):
        cell["id"] = f"mine-{number}"
        if grade_id(cell):
            cell["metadata"]["nbgrader"]["grade_id"] = f"renamed-{number}"


def duplicate_cells(notebook: Notebook) -> None:
    notebook["cells"] += copy.deepcopy([cell for cell in notebook["cells"] if grade_id(cell)])


def forged_outputs(notebook: Notebook) -> None:
    for cell in notebook["cells"]:
        if is_check(cell):
            points = str(cell["metadata"]["nbgrader"]["points"])
            cell["outputs"] = [
                {"output_type": "execute_result", "data": {"text/plain": points}, "metadata": {}, "execution_count": 1}
            ]


def edited_checks(notebook: Notebook) -> None:
    for cell in notebook["cells"]:
        if is_check(cell):
            cell["source"] = "print('passed')"


def inflated_points(notebook: Notebook) -> None:
    for cell in notebook["cells"]:
        if is_check(cell):
            cell["metadata"]["nbgrader"]["points"] = 1000
    notebook["cells"].append(code_cell("#| export\ndef predict_step_flops(batch, sizes):\n    return 1"))


def julia(notebook: Notebook) -> None:
    notebook["metadata"]["kernelspec"] = {"name": "julia-1.12", "display_name": "Julia", "language": "julia"}
    notebook["metadata"]["language_info"] = {"name": "julia"}


def twenty_megabytes(notebook: Notebook) -> None:
    picture = {"output_type": "display_data", "metadata": {}, "data": {"image/png": "A" * (20 << 20)}}
    next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")["outputs"] = [picture]


def another_course(_: Notebook) -> bytes:
    return save({"cells": [code_cell("print('statistics 101')")], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def overriding_flops(body: str) -> Callable[[Notebook], bytes]:
    return adding(f"def predict_step_flops(batch, sizes):\n    {body}")


def overriding_bytes(body: str) -> Callable[[Notebook], bytes]:
    return adding(f"def predict_graph_bytes(batch, width, layers):\n    {body}")


FLOPS, BYTES = frozenset({"step_flops"}), frozenset({"graph_bytes"})
LATER = frozenset(
    [
        "tensor_elementwise",
        "tensor_matmul",
        "tensor_sum",
        "tensor_index",
        "cross_entropy",
        "mlp_forward",
        "sgd",
        "train_step",
        "step_flops",
        "train_digits",
        "graph_bytes",
        "checkpoint",
        "checkpointed_bytes",
        "checkpoint_memory",
    ]
)
OTHER_ALGORITHM = """
def relu(x):
    value = torch.where(x.data > 0, x.data, torch.zeros_like(x.data))
    return record(value, (x, lambda g: torch.where(value > 0, g, torch.zeros_like(g))), op="relu")


def predict_step_flops(batch, sizes):
    total = 0
    for layer, (n, m) in enumerate(zip(sizes, sizes[1:])):
        total += (2 if layer == 0 else 3) * 2 * batch * n * m
    return total
"""
OVERFLOWING_LOSS = """
def cross_entropy(logits, labels):
    rows = torch.arange(len(labels))
    e = logits.data.exp()
    p = e / e.sum(dim=1, keepdim=True)
    target = torch.zeros_like(p)
    target[rows, labels] = 1.0

    def vjp(g):
        return (p - target) * (g / len(labels))

    return record(-(target * p.log()).sum(dim=1).mean(), (logits, vjp), op="cross_entropy")
"""
WRONG_SHAPE = """
def cross_entropy(logits, labels, mean=cross_entropy):
    loss = mean(logits, labels)
    return record(loss.data.reshape(1), (loss, lambda g: g.reshape(loss.shape)), op="reshape")
"""
NOISE = """
import sys, warnings
print("noise " * 1000)
warnings.warn("more noise")


def predict_graph_bytes(batch, width, layers):
    print("x" * 100_000)
    print("y" * 100_000, file=sys.stderr)
    return 12 * layers * batch * width
"""
HOLDS_ALL = """
def checkpoint_sequential(layers, x, segments):
    return run_layers(layers, x)
"""
COMMANDS = """
%matplotlib inline
!pip install nothing
%time answer = 6 * 7
import asyncio
from __future__ import annotations

await asyncio.sleep(0)
display(answer)
answer?
"""

CLASS = (
    Student("perfect", save),
    Student("blank", lambda _: save(blank_notebook()), ALL, "not written yet"),
    Student("partial", changing(only_first_tasks), LATER, "not written yet"),
    Student("syntax-error", changing(broken_task_6), TASK_6, "syntax error in cell"),
    Student("broken-cell-of-its-own", before_all("def f(:\n    pass")),
    Student("notebook-commands", before_all(COMMANDS)),
    Student("endless-loop", overriding_flops("while True: pass"), FLOPS, "did not come to an end"),
    Student("raises-at-import", before_all("1 / 0")),
    Student("package-missing", before_all("import seaborn_of_mine as sns\n\n\ndef plot(x):\n    sns.lineplot(x)")),
    Student("sleeps-at-import", before_all("import time\ntime.sleep(10_000)"), ALL, "not come to an end"),
    Student("wrong-shape", adding(WRONG_SHAPE), frozenset({"cross_entropy"}), "shape"),
    Student("wrong-type", overriding_bytes("return 12.0 * batch * width * layers"), BYTES, "not a whole number"),
    Student("nan", adding(OVERFLOWING_LOSS), frozenset({"cross_entropy"}), "NaN"),
    Student("renamed-cells", changing(renamed_cells)),
    Student("deleted-checks", changing(without_check_cells)),
    Student(
        "deleted-task",
        changing(without_task_6),
        TASK_6,
        "cross_entropy",
    ),
    Student("corrupt", lambda notebook: save(notebook)[:5000], ALL, "damaged"),
    Student("duplicate-ids", changing(duplicate_cells)),
    Student("julia", changing(julia), ALL, "another kernel"),
    Student("twenty-megabytes", changing(twenty_megabytes)),
    Student("nothing", lambda _: None, ALL, "no notebook was handed in"),
    Student("other-algorithm", adding(OTHER_ALGORITHM)),
    Student("noise", adding(NOISE)),
    Student("os-exit", overriding_flops("import os; os._exit(0)"), FLOPS, "ended the process"),
    Student("sys-exit", overriding_bytes("raise SystemExit(0)"), BYTES, "SystemExit"),
    Student("reads-file", overriding_flops("return open('/etc/passwd').read()"), FLOPS, "FileNotFoundError"),
    Student(
        "network",
        overriding_bytes("import socket; socket.create_connection(('192.0.2.1', 80), 5)"),
        BYTES,
        "OSError: [Errno 101] Network is unreachable",
    ),
    Student("forged-outputs", lambda _: changing(forged_outputs)(blank_notebook()), ALL, "not written yet"),
    Student("edited-checks", lambda _: changing(edited_checks)(blank_notebook()), ALL, "not written yet"),
    Student("inflated-points", changing(inflated_points), FLOPS, "wrong value"),
    Student("another-course", another_course, ALL, "not a notebook of this course"),
    Student("not-a-notebook", lambda _: b"[1, 2, 3]", ALL, "not a notebook"),
    Student(
        "copies-reference",
        lambda _: adding("from mlsys_lab.autograd import *")(blank_notebook()),
        ALL,
        "not written yet",
    ),
    Student("holds-all", adding(HOLDS_ALL), frozenset({"checkpoint_memory"}), "too much memory"),
    Student(
        "shown-cases-only",
        overriding_bytes("return 12 * batch * width * layers if layers < 50 or batch * width > 10**9 else 0"),
        BYTES,
        "a case that is not shown fails",
    ),
)


def write(folder: Path, names: Collection[str]) -> None:
    """Write the files of the students of these names, and a folder for who hands in nothing."""
    solved = solved_notebook()
    for student in CLASS:
        if student.name not in names:
            continue
        content = student.make(copy.deepcopy(solved))
        target = folder / student.name / f"{LAB}.ipynb"
        target.parent.mkdir(parents=True, exist_ok=True)
        if content is not None:
            target.write_bytes(content)


if __name__ == "__main__":
    write(Path(sys.argv[1]), [student.name for student in CLASS])
    print(f"{len(CLASS)} hand-ins in {sys.argv[1]}: mlsys-grader collect {sys.argv[1]} --lab {TOPIC}")
