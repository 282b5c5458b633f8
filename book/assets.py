"""Everything the site loads that is not written in book/_static: MathJax, Plotly, and the course's own widgets.

All of it comes out of installed, pinned packages: a build needs no network, and the pages ask no other host.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from book.files import remove_others, write_if_changed
from mlsys_lab.errors import MissingToolError
from mlsys_lab.widgets import write_modules

# What Sphinx's maths needs of MathJax: the combined component, its fonts, and the TeX macros that load on first use.
MATHJAX_PARTS = ("tex-chtml.js", "output/chtml/fonts/woff-v2/*.woff", "input/tex/extensions/*.js")


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


def stage(static: Path) -> None:
    """Put the vendored scripts and the widgets' modules under `static`; drop what no longer belongs there."""
    wanted = {
        static / "plotly.min.js": (package_folder("plotly", "plotly/package_data") / "plotly.min.js").read_bytes()
    }
    mathjax = package_folder("sphinx-mathjax-offline", "sphinx-mathjax-offline/static/mathjax")
    for pattern in MATHJAX_PARTS:
        for source in mathjax.glob(pattern):
            wanted[static / "mathjax" / source.relative_to(mathjax)] = source.read_bytes()
    for path, content in wanted.items():
        write_if_changed(path, content)
    modules = write_modules(static / "widgets")
    remove_others(static, {*wanted, *modules})
