"""Nobody waits for what they do not use: which slow libraries an import or a command loads, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HEAVY = ("torch", "scipy", "sklearn", "plotly", "IPython", "nbformat", "numba", "triton", "numpy")
PLAIN = (
    "errors",
    "validation",
    "hardware",
    "configs",
    "flops",
    "flops.estimate",
    "kernels",
    "stack",
    "stack.workspace",
    "checks",
    "cli",
)
SERVING = ("inference.engine.scheduler", "inference.simulator")
ARRAYS = ("scaling", "scaling.runs", "benchmark", "inference.server.serve")  # the server tokenizes
RUN_CHECKS = ("runner", "live", "fresh", "command", "trusted.artifact")
TENSORS = ("autograd", "models", "efficiency.formats", "inference", "diffusion")
COMMANDS = (
    ["--help"],
    ["list"],
    ["start", "autograd"],
    ["progress"],
    ["estimate", "llama3-8b"],
    ["estimate", "--help"],
    ["plan-serving", "llama3-8b", "--rate", "1", "--node", "1"],
)


def loaded(code: list[str], folder: Path | None = None) -> set[str]:
    """Which of `HEAVY` a new Python has loaded after these lines."""
    report = f"print('\\n' + json.dumps([name for name in {HEAVY} if name in sys.modules]))"
    program = "\n".join(["import sys, json", *code, report])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=folder)
    return set(json.loads(done.stdout.splitlines()[-1]))


def imports(modules: tuple[str, ...], package: str = "mlsys_lab") -> list[str]:
    return [f"import {package}.{module}" for module in modules]


def test_tables_formulas_and_the_command_are_plain_python() -> None:
    assert loaded([*imports((*PLAIN, *SERVING)), "import mlsys_checks"]) == set()


def test_curves_clocks_and_what_runs_checks_need_numpy_alone() -> None:
    assert loaded([*imports(ARRAYS), *imports(RUN_CHECKS, "mlsys_checks")]) <= {"numpy"}


def test_who_judges_needs_no_torch_which_the_processes_beside_it_have() -> None:
    assert "torch" not in loaded(["import mlsys_grader.grading.grade, mlsys_grader.grading.shards"])


def test_the_engine_and_its_checks_need_torch_and_no_other_slow_library() -> None:
    checks = imports(("trusted.autograd", "trusted.transformer_arithmetic"), "mlsys_checks")
    assert loaded([*imports(TENSORS), *checks]) == {"torch", "numpy"}


def test_no_command_waits_for_a_slow_library_but_check_and_doctor(tmp_path: Path) -> None:
    commands = ["from mlsys_lab.cli import main", *(f"assert main({command}) == 0" for command in COMMANDS)]
    assert loaded(commands, tmp_path) == set()
