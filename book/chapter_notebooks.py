"""A chapter as a notebook: its cells as they stand, its prose without what only the site can show.

Cells that the site hides come along, since others build on what they make. A value that they put into the site's prose
is printed under its name, and the notebook's prose names it.
"""

from __future__ import annotations

import re
from pathlib import Path

import jupytext
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

from book.project import Address

SETUP = """\
# On Colab this installs the course package; anywhere else it does nothing.
import importlib.util
import subprocess
import sys

if "google.colab" in sys.modules and importlib.util.find_spec("mlsys_lab") is None:
    course = "mlsys-lab[kernels] @ git+{repository}"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", course], check=True)


def glue(name, value, display=True):
    \"\"\"Print a value that the text names.\"\"\"
    print(f"{{name}} = {{value}}")
"""
_GLUE = re.compile(r"^from myst_nb import glue\n+", re.M)
_BLOCK = re.compile(
    r"^```\{(?P<kind>[\w-]+)\} ?(?P<what>[^\n]*)\n(?::name: (?P<label>\S+)\n)?(?P<inside>.*?)^```$", re.S | re.M
)
_FENCE = re.compile(r"^:{3,}(?:\{[\w-]+\} ?(?P<title>[^\n]*))?\n(?::class: [^\n]+\n)?", re.M)
_ROLES = (
    (re.compile(r"\{glue:text\}`([^`:]+)(?::[^`]*)?`"), r"**`\1`**"),
    (re.compile(r"\{cite(?::\w+)?\}`([^`]+)`"), r"[\1]"),
    (re.compile(r"\{\w+\}`([^`<]+?) *<[^`>]*>`"), r"\1"),
    (re.compile(r"\{numref\}`([^`]+)`"), r"the drawing “\1”"),
    (re.compile(r"\{[\w:]+\}`([^`]+)`"), r"\1"),
)


def prose(markdown: str, page: str) -> str:
    """A chapter's Markdown as any notebook shows it; `page` is the address of the chapter on the site."""

    def block(found: re.Match[str]) -> str:
        if found["kind"] == "drawing":
            return f"> Drawing “{found['label']}” ([on the site]({page}#{found['label']})): {found['inside'].strip()}"
        if found["kind"] == "readings":
            return f"[The list, on the site]({page}#read-next)"
        return found["inside"].strip()

    text = _BLOCK.sub(block, markdown)
    text = _FENCE.sub(lambda found: f"**{found['title'].strip()}**\n\n" if found["title"] else "\n", text + "\n")
    for role, shown in _ROLES:
        text = role.sub(shown, text)
    text = re.sub(r"\]\((\d\d-[\w-]+)\.md", lambda link: f"]({page.rsplit('/', 1)[0]}/{link[1]}.html", text)
    text = re.sub(r"\]\(\.\./([\w/-]+)\.(?:md|ipynb)", lambda link: f"]({page.rsplit('/', 2)[0]}/{link[1]}.html", text)
    return text.strip()


def notebook(chapter: Path, address: Address) -> NotebookNode:
    """The notebook of the chapter's source, a MyST-NB file: what it needs first, then cells and prose in order."""
    made: NotebookNode = jupytext.read(chapter)
    page = f"{address.site.rstrip('/')}/chapters/{chapter.stem}.html"
    for number, cell in enumerate(made.cells):
        cell["id"] = f"{chapter.stem[:2]}-{number}"
        if cell.cell_type == "code":
            cell.source = _GLUE.sub("", cell.source)
        else:
            cell.source = prose(cell.source, page)
    first = new_code_cell(SETUP.format(repository=address.repository), id=f"{chapter.stem[:2]}-setup")
    made.cells = [*made.cells[:1], first, *made.cells[1:]]
    made.metadata.pop("jupytext", None)
    return made
