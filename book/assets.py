"""Everything the site loads that is not written in book/_static: formulas' fonts, the course's widgets, live cells.

All of it comes out of installed, pinned packages, and of npm for what runs cells; the pages ask no other host.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from book.files import remove_others, write_if_changed
from book.live import runtime
from mlsys_lab.errors import MissingToolError
from mlsys_lab.widgets import write_modules

FONTS = "mathjax"
"""Folder of the formulas' fonts, beside the site's style sheets."""
WOFF = "output/chtml/fonts/woff-v2"  # in MathJax's folder


def package_folder(package: str, folder: str) -> Path:
    """Path of a folder inside an installed package.

    Raises:
        MissingToolError: the package is not installed, or has no such folder.
    """
    help = "python -m pip install -c constraints.txt -e '.[book]'"
    try:
        path = Path(str(distribution(package).locate_file(folder)))
    except PackageNotFoundError:
        raise MissingToolError(f"the site needs the package {package}", help=help) from None
    if not path.is_dir():
        raise MissingToolError(f"{package} has no folder {folder}", got=path, help=help)
    return path


def mathjax_folder() -> Path:
    """Path of the whole MathJax: a build sets formulas with it, and pages have its fonts."""
    return package_folder("sphinx-mathjax-offline", "sphinx-mathjax-offline/static/mathjax")


def stage(static: Path) -> None:
    """Put fonts, the widgets' modules and what runs cells under `static`; drop what no longer belongs there."""
    fonts = {static / FONTS / font.name: font.read_bytes() for font in (mathjax_folder() / WOFF).glob("*.woff")}
    for path, content in fonts.items():
        write_if_changed(path, content)
    modules = write_modules(static / "widgets")
    remove_others(static, {*fonts, *modules, *runtime.stage(static)})
