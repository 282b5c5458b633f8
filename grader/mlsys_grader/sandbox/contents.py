"""What of the project is visible inside a sandbox, whichever program builds it.

Of `mlsys_lab` the modules that the lab's checks import or that lab.toml provides to exported cells, and none that the
lab withholds; the solved labs that it runs on; of `mlsys_checks` only the folder `sandboxed`, without other labs'
calls: neither inputs nor oracles nor comparisons, of this lab or any other. Of the grader only what runs next to the
submission.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from mlsys_checks.fresh import ONE_THREAD
from mlsys_checks.sides import find_provided, find_stack
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.paths import CHECKS, INSIDE, PACKAGE
from mlsys_lab.errors import InputError

HOME = Path("/course")
"""Path of the project inside the sandbox."""
PARTS = ("mlsys_lab", "mlsys_checks", "mlsys_grader")
SYSTEM = (
    *(
        f"/usr/{name}"
        for name in ("bin", "sbin", "lib", "lib32", "lib64", "libexec", "include", "local/lib", "share/zoneinfo")
    ),
    *map(str, sorted(Path("/usr/local").glob("cuda*"))),  # Numba's simulator reads the version of CUDA's runtime
    "/etc/ld.so.cache",
)
PREFIX_PARTS = ("bin", "lib", "lib64", "include", "pyvenv.cfg")
"""What Python needs of the folder that it, or a virtual environment, is installed in; Triton builds with Python's
headers.
"""
LIBRARIES, PACKAGES = ("lib", "lib64"), "*-packages"
"""Where packages are installed: lib/python3.12/site-packages, for Debian's Python dist-packages."""
Bind = tuple[str, str]
"""A file or folder of this machine and its read-only path inside."""


def make_environment(scratch: str) -> dict[str, str]:
    """Environment variables of a submission: none of the instructor's."""
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": scratch,
        "TMPDIR": scratch,
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        **ONE_THREAD,
    }


def bind_system() -> list[Bind]:
    """Bind programs, libraries, Python and its environment at their own paths.

    Each folder is listed by name, because a course may lie below an environment's prefix.
    """
    parts = [f"{prefix}/{part}" for prefix in (sys.base_prefix, sys.prefix) for part in PREFIX_PARTS]
    return [(path, path) for path in dict.fromkeys((*SYSTEM, *parts)) if Path(path).exists()]


def find_private() -> list[Path]:
    """Paths of this checkout or installation that no submission may read: its packages and the labs' solutions."""
    return [path for path in (PACKAGE, CHECKS, INSIDE.parents[1], PACKAGE.parent / "solutions") if path.exists()]


def refuse_readable(private: Iterable[Path]) -> None:
    """Raise `InputError` if one of these paths lies in what `bind_system` makes readable."""
    hidden = [Path(path).resolve() for path in find_hidden()]
    for path in private:
        real = path.resolve()
        for source, _ in bind_system():
            if real.is_relative_to(Path(source).resolve()) and not any(real.is_relative_to(at) for at in hidden):
                expected = f"a folder outside {source}, which submissions can read"
                raise InputError("submissions could read this folder", got=path, expected=expected, help="move it")


def bind_project(lab: GradedLab) -> list[Bind]:
    """Bind the visible parts of course and grader. Raises `InputError` if lab.toml names an unknown module."""
    found = [(INSIDE, HOME / "mlsys_grader" / "sandbox" / "inside")]
    for path in sorted(_find_inside(lab)):
        package = PACKAGE if path.is_relative_to(PACKAGE) else CHECKS
        found.append((path, HOME / path.relative_to(package.parent)))
    found += [(path, HOME / "mlsys_lab" / "_solved" / path.name) for path in find_stack(lab.info)]
    return [(str(source), str(target)) for source, target in [*found, *dict.fromkeys(_calls_elsewhere(lab))]]


def find_hidden() -> list[str]:
    """Folders that `bind_system` binds but that must stay invisible: the project itself, wherever it is installed.

    Under every name: in a virtual environment `lib64` links to `lib`.
    """
    libraries = [Path(target) for _, target in bind_system() if Path(target).name in LIBRARIES]
    found = [path for library in libraries for part in PARTS for path in library.glob(f"python*/{PACKAGES}/{part}")]
    return sorted(str(path) for path in found if path.is_dir())


def find_folders(binds: list[Bind]) -> list[str]:
    """All parent folders of the targets, outermost first."""
    return sorted({str(parent) for _, target in binds for parent in Path(target).parents} - {"/"})


def _find_inside(lab: GradedLab) -> Iterator[Path]:
    """Files of both packages that a submission sees: modules and their data files."""
    elsewhere = (path for path, _ in _calls_elsewhere(lab))
    others = (file for path in (INSIDE, *elsewhere) for file in (path.rglob("*.py") if path.is_dir() else [path]))
    modules = find_provided(lab.info, lab.withheld, others)
    yield from modules
    for folder in {module.parent for module in modules} - {PACKAGE}:
        for path in folder.iterdir():
            if path.suffix != ".py" and path.name != "__pycache__" and not any(path.rglob("*.py")):
                yield path


def _calls_elsewhere(lab: GradedLab) -> Iterator[tuple[Path, Path]]:
    """The call modules of a lab outside the course; a whole folder if the lab has one."""
    if lab.foreign_path is None:  # found without importing the checks, and torch with them
        return
    for name in lab.call_modules:
        *above, module = name.split(".")
        path = Path(str(sys.modules[name].__file__))
        if above and above[-1] == "calls":
            yield path.parent, HOME.joinpath(*above)
        else:
            yield path, HOME.joinpath(*above, f"{module}.py")
