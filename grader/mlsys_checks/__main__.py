"""Child process of `mlsys_checks.fresh`: run a lab's public checks on a saved notebook, one JSON line per event."""

from __future__ import annotations

import importlib
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from mlsys_checks.runner import run_check
from mlsys_checks.sandboxed.kernel_sources import lend_sources
from mlsys_checks.sandboxed.kernels.loading import load_kernels
from mlsys_checks.trusted.artifact import export_cells, load
from mlsys_lab.errors import CourseError, UnfinishedError
from mlsys_lab.stack.limits import OutOfTimeError, time_limit
from mlsys_lab.stack.loading import ArtifactLoader, find_elsewhere

IMPORT_LIMIT_S = 30.0


def main(checks_module: str, notebook: str, results: str) -> None:
    """Write events to `results`: the plan (all checks); then a load error, or success and each report."""
    with Path(results).open("w", encoding="utf-8", buffering=1) as file:

        def tell(**event: Any) -> None:
            file.write(json.dumps(event) + "\n")

        lab = importlib.import_module(checks_module).LAB
        public = {check.name: sum(not case.hidden for case in check.cases) for check in lab.checks}
        plan = [
            {"name": c.name, "title": c.title, "points": c.points, "limit_s": c.time_limit_s * public[c.name]}
            for c in lab.checks
        ]
        tell(plan=plan)
        try:
            with time_limit(IMPORT_LIMIT_S):
                cells = export_cells(Path(notebook))
                artifact = load(cells, loader_of=partial(ArtifactLoader, limit_s=IMPORT_LIMIT_S))
                kernels = load_kernels(cells) if any(check.traced for check in lab.checks) else artifact
        except OutOfTimeError:
            tell(refused=f"the exported cells did not come to an end within {IMPORT_LIMIT_S:g} s", unfinished=False)
            return
        except CourseError as error:
            tell(refused=str(error), unfinished=isinstance(error, UnfinishedError))
            return
        tell(loaded=True)
        for check in lab.checks:
            if check.traced:
                lend_sources(kernels, artifact, check.kernel_sources)
            report = run_check(check, kernels if check.traced else artifact)
            mismatch = report.mismatch
            missing = [name for name in check.uses if not hasattr(artifact, name)]
            hint = report.hint
            for name, number in find_elsewhere(artifact, missing).items():
                hint = f"cell {number} defines `{name}`: begin it with the line `#| export`"
            tell(
                name=check.name,
                passed=report.passed,
                unfinished=report.unfinished,
                case=report.case.name if report.case else "",
                given="" if report.unfinished else report.given,
                what=mismatch.what if mismatch else "",
                got=mismatch.got if mismatch else "",
                expected=mismatch.expected if mismatch else "",
                hint=hint,
                time_s=report.time_s,
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
