"""The two sides of every lab's checks are apart: calls know nothing of what decides, and are all that a sandbox has."""

from __future__ import annotations

import ast
import inspect
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from mlsys_checks.sandboxed.spec import call_name, find_call
from mlsys_checks.sides import SANDBOXED, find_files
from mlsys_checks.trusted.verdict import draw_inputs, public_inputs
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.paths import IMPORT_PATH
from mlsys_grader.sandbox import contents
from mlsys_lab.stack.labinfo import read_lab
from tests.labs.harness import PROJECT, labs

FIXTURES = PROJECT / "tests" / "grader" / "fixtures"
ALLOWED = (
    "numpy",
    "torch",
    "mlsys_lab.errors",
    *(
        f"mlsys_checks.sandboxed.{name}"
        for name in (
            *("spec", "storage", "values", "trees", "repeated_calls", "findings", "inputs", "kernel_sources"),
            *("exceptions", "lending", "kernels"),
        )
    ),
    "mlsys_lab.benchmark.memory",
    "mlsys_lab.capstone.job",
    "mlsys_lab.comm.rank",
    "mlsys_lab.configs",
    "mlsys_lab.models.aging",
    "mlsys_lab.models.transformer",
    "mlsys_lab.kernels.numba_record",
    "mlsys_lab.kernels.trace",
    "mlsys_lab.kernels.cuda_cpp",
    "mlsys_lab.kernels.triton_launch",
    "mlsys_lab.kernels.triton_compile",
    "mlsys_lab.stack",
)
"""What a module of calls may import besides the standard library and its own lab's calls."""
SHARED = find_files(SANDBOXED, "none of the course")
"""What serves every lab on the sandboxed side."""
DIFFERENTIATES = ("autograd", "func", "nn", "optim", "special", "linalg")
"""Parts of torch that could compute what a learner is to compute."""
TOPICS = [lab.info.topic for lab in labs()]


@pytest.fixture(params=[*TOPICS, "tiny"])
def lab(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> GradedLab:
    """Every lab of the course, and the one that tests of the grader register."""
    monkeypatch.syspath_prepend(str(FIXTURES / "checks"))
    infos = {lab.info.topic: lab.info for lab in labs()} | {"tiny": read_lab(FIXTURES / "solutions" / "01-tiny")}
    return GradedLab(infos[request.param])


def files_of_calls(lab: GradedLab) -> list[Path]:
    files = [Path(str(sys.modules[name].__file__)) for name in lab.checks.call_modules]
    ours = find_files(SANDBOXED, lab.info.checks_module) if lab.foreign_path is None else []
    return sorted({*files, *(file for file in ours if file not in SHARED)})


def faults(source: str, own: str) -> Iterator[str]:
    """What a module of calls must not do. `own`: the package or module of the lab's calls."""
    for node in ast.walk(ast.parse(source)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or "."] if not node.level else ["."]
            names += [f"{node.module}.{alias.name}" for alias in node.names if node.module == "torch"]
        for name in names:
            standard = name.split(".")[0] in sys.stdlib_module_names and name.split(".")[0] != "importlib"
            if not standard and not any(f"{name}.".startswith(f"{known}.") for known in (*ALLOWED, own)):
                yield f"imports {name}"
            if name.startswith(tuple(f"torch.{part}" for part in DIFFERENTIATES)):
                yield f"imports {name}"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "torch" and node.attr in DIFFERENTIATES:
                yield f"uses torch.{node.attr}"
            if node.value.id == "np" and node.attr == "testing":
                yield "compares"


def test_calls_import_nothing_that_decides_and_differentiate_nothing(lab: GradedLab) -> None:
    assert files_of_calls(lab)
    for file in files_of_calls(lab):
        own = f"mlsys_checks.sandboxed.{lab.topic.replace('-', '_')}" if file.is_relative_to(SANDBOXED) else file.stem
        assert list(faults(file.read_text(encoding="utf-8"), own)) == [], file.name


@pytest.mark.parametrize(
    "line",
    [
        "from mlsys_checks.trusted.compare import close",
        "from mlsys_checks.trusted import compare",
        "from mlsys_checks import trusted",
        "import mlsys_checks.trusted.autograd",
        "from mlsys_checks.sandboxed import cuda",
        "from mlsys_checks.trusted.autograd.engine import leaf",
        "from mlsys_checks.sandboxed.cuda import launch",
        "from mlsys_lab.autograd import Tensor",
        "from ..scalar import CHECKS",
        "from . import oracle",
        "from mlsys_lab.kernels.softmax import softmax",
        "import importlib",
        "import sklearn",
        "import torch.autograd",
        "from torch import nn",
        "from torch.func import grad",
        "g = torch.autograd.grad(y, x)",
        "y = torch.nn.functional.cross_entropy(x, t)",
    ],
)
def test_a_module_of_calls_that_could_decide_is_found(line: str) -> None:
    own = "mlsys_checks.sandboxed.autograd"
    good = f"import math\nimport torch\nfrom {own}.engine import inputs_of\nx = torch.zeros(2)\n"
    assert list(faults(good, own)) == []
    assert list(faults(good + line, own)) != []


def test_every_run_is_found_by_its_name_and_nothing_else_of_its_check_is_beside_it(lab: GradedLab) -> None:
    inside = {source for source, _ in contents.bind_project(lab)}
    for check in lab.checks.checks:
        timed = (check.performance.make, check.performance.call) if check.performance else ()
        assert [find_call(call_name(side)) for side in (check.run, *timed)] == [check.run, *timed]
        for decides in (check.inputs, check.expect, check.compare):
            function = decides.func if isinstance(decides, partial) else decides
            file = Path(str(inspect.getsourcefile(function)))
            assert not {str(file), *map(str, file.parents)} & inside, f"{check.name}: {file.name} is in the sandbox"


def test_no_number_that_stays_with_the_judge_is_among_those_that_a_submission_sees(lab: GradedLab) -> None:
    cases = [(check, case) for check in lab.checks.checks for case in check.cases]
    for check, case in cases:
        inputs = draw_inputs(check, case, 7)
        shown = public_inputs(inputs)
        kept = {array.item() for name, array in inputs.items() if name not in shown and not array.ndim}
        seen = {one for array in shown.values() if array.dtype.kind == "f" for one in array.ravel().tolist()}
        assert not kept & seen, f"{check.name}: {case.name}"


def test_a_sandboxs_files_are_enough_to_call_and_not_enough_to_decide(lab: GradedLab, tmp_path: Path) -> None:
    for source, target in contents.bind_project(lab):
        inside = tmp_path / Path(target).relative_to(contents.HOME)
        inside.parent.mkdir(parents=True, exist_ok=True)
        if Path(source).is_dir():
            shutil.copytree(source, inside, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            inside.write_bytes(Path(source).read_bytes())
    names = [call_name(check.run) for check in lab.checks.checks]
    speeds = [check.performance for check in lab.checks.checks if check.performance is not None]
    timed = [call_name(side) for speed in speeds for side in (speed.make, speed.call)]
    uses = [check.uses for check in lab.checks.checks]
    program = f"""
import sys, types
sys.path[:] = [{str(tmp_path)!r}, *(path for path in sys.path if path not in {IMPORT_PATH!r})]
from mlsys_checks.sandboxed.attempt import attempt
from mlsys_checks.sandboxed.spec import Call, find_call
for name, uses in zip({names!r}, {uses!r}):
    assert attempt(Call(find_call(name), uses), types.SimpleNamespace(), {{}}).unfinished, name
for name in {timed!r}:
    find_call(name)
print(*sorted(name for name in sys.modules if name.startswith("mlsys_checks.")))
from pathlib import Path
ours = [module for name, module in sys.modules.items() if name.startswith(("mlsys_lab.", "mlsys_checks."))]
origins = [module.__file__ for module in ours if getattr(module, "__file__", None)]
assert all(Path(origin).is_relative_to({str(tmp_path)!r}) for origin in origins), origins
"""
    ran = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=400, check=False
    )
    assert ran.returncode == 0, ran.stderr
    own = f"mlsys_checks.sandboxed.{lab.topic.replace('-', '_')}"
    shared = (".".join(path.relative_to(SANDBOXED.parents[1]).with_suffix("").parts) for path in SHARED)
    known = {own, *(name.removesuffix(".__init__") for name in shared)}
    assert [name for name in ran.stdout.split() if name not in known and not name.startswith(f"{own}.")] == []
