"""Run code in a Python that can import only the standard library and `mlsys_lab`, as a reader's browser can."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

from book.project import ROOT

_ALONE = """\
import json, sys
class Alone:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in {*sys.stdlib_module_names, "mlsys_lab"}:
            raise ModuleNotFoundError(f"No module named {name!r}")
sys.meta_path.insert(0, Alone())
given, answer = json.load(sys.stdin), sys.stdout
"""
_MODULES = """\
import importlib, os, pkgutil
import mlsys_lab
sys.stdout = open(os.devnull, "w")
found = ["mlsys_lab"]
for module in pkgutil.walk_packages(mlsys_lab.__path__, "mlsys_lab.", onerror=lambda name: None):
    try:
        importlib.import_module(module.name)
    except Exception:
        continue
    found.append(module.name)
json.dump(found, answer)
"""
_STATEMENTS = """\
def works(statement):
    try:
        exec(statement, {})
    except Exception:  # a module may say in its own words what it lacks
        return False
    return True
json.dump([works(statement) for statement in given], answer)
"""


def run_alone(code: str, given: Any) -> Any:
    """What `code` writes to `answer` as JSON; it finds `given`, any JSON, under this name.

    Raises:
        subprocess.CalledProcessError: the code failed; its traceback has been printed.
    """
    done = subprocess.run(
        [sys.executable, "-c", _ALONE + code],
        input=json.dumps(given),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return json.loads(done.stdout)


@cache
def list_modules() -> tuple[str, ...]:
    """Names of the modules of `mlsys_lab` that can be imported."""
    return tuple(run_alone(_MODULES, None))


def which_work(statements: Sequence[str]) -> list[bool]:
    """Whether each import statement works."""
    return list(run_alone(_STATEMENTS, list(statements)))
