"""`check("name")` in a live notebook: run the public cases on the notebook's current definitions.

A check that traces kernels runs on what the grader would load of the exported cells executed so far, in execution
order: both reject the same code with the same message.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, NoReturn

from mlsys_checks.render import show
from mlsys_checks.runner import PUBLIC_SEED, CheckFailed, Report, run_check
from mlsys_checks.sandboxed.kernel_sources import lend_sources
from mlsys_checks.sandboxed.kernels.loading import load_kernels
from mlsys_checks.sandboxed.spec import Arrays, Check, Lab
from mlsys_checks.trusted.artifact import Notebook
from mlsys_checks.trusted.verdict import draw_inputs, public_inputs
from mlsys_lab.errors import CourseError, InputError
from mlsys_lab.stack.artifact import Cell, ExecutionCount
from mlsys_lab.stack.workspace import Workspace


class LiveNamespace:
    """A notebook's definitions as attributes, like a module of exported cells."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.__dict__ = names  # `vars` then returns what the definitions see, as for a module

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"the notebook does not define {name!r}")


class LiveChecks:
    """The checks of one lab bound to a notebook: call it with a check's name."""

    def __init__(self, lab: Lab, names: dict[str, Any]) -> None:
        self.lab, self._names = lab, names
        self._passed: set[str] = set()
        self._failures: Counter[str] = Counter()

    def __repr__(self) -> str:
        names = "\n".join(f"  check({c.name!r})  {c.title} ({c.points:g} points)" for c in self.lab.checks)
        return f"checks of lab {self.lab.topic!r}, {self.lab.points:g} points:\n{names}"

    def __call__(self, name: str) -> None:
        """Run a check, show the outcome and record it in the workspace; raise `CheckFailed` unless it passed."""
        check = self.lab[name]
        report = replace(run_check(check, self._load(check)), failures=self._failures[name])
        self._failures[name] += bool(report.hint)
        (self._passed.add if report.passed else self._passed.discard)(name)
        show(report, self._tally() + _recorded(self.lab, report))
        if not report.passed:
            raise CheckFailed(report.line)

    def inputs(self, name: str, case: str) -> Arrays:
        """Inputs of a check's public case by name, as the check's messages show them."""
        check = self.lab[name]
        public = {one.name: one for one in check.cases if not one.hidden}
        if case not in public:
            raise InputError(f"check {name!r} has no such case", got=repr(case), expected=f"one of {', '.join(public)}")
        return public_inputs(draw_inputs(check, public[case], PUBLIC_SEED))

    def predict(self, guess: float | None, measured: float, what: str, *, within: float = 0.2) -> None:
        """Print how a prediction compares with what was measured; it is right `within` this fraction of it."""
        if guess is None:
            print(f"Prediction skipped: set `guess` in the cell above first. Measured: {measured:g} {what}.")
            return
        error = abs(guess - measured) / abs(measured) if measured else abs(guess)
        verdict = "right" if error <= within else f"off by {error:.0%}: which step of your reasoning does this change?"
        print(f"Your prediction: {guess:g}. Measured: {measured:g} {what}. {verdict[0].upper()}{verdict[1:]}")

    def speed(self, name: str) -> None:
        """Print the speed of the check's code compared with the library on this machine's GPU, if there is one."""
        from mlsys_checks.speed import speed_of

        print(speed_of(self.lab[name], self._load(self.lab[name])))

    def _load(self, check: Check) -> Any:
        """The namespace that a check runs on: the notebook's names, or only its kernels."""
        live = LiveNamespace(self._names)
        if not check.traced:
            return live
        cells = tuple(Cell(ExecutionCount(n), one) for n, one in enumerate(self._names.get("In", [])))
        kernels = load_kernels(Notebook("the notebook", cells).artifact)
        lend_sources(kernels, live, check.kernel_sources)
        return kernels

    def _tally(self) -> str:
        points = sum(self.lab[name].points for name in self._passed)
        return (
            f"{len(self._passed)} of {len(self.lab.checks)} checks passed in this session, "
            f"{points:g} of {self.lab.points:g} points"
        )


def _recorded(lab: Lab, report: Report) -> str:
    """Record the outcome if there is a workspace; return "" or why that failed (the verdict is shown anyway)."""
    try:
        if (workspace := Workspace.find()) is not None:
            workspace.record(lab.topic, {report.check.name: report.points})
    except CourseError as error:
        return f" · progress not noted: {error}"
    return ""
