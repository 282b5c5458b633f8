"""A chapter as a notebook: its cells as they stand, its prose without what only the site can show.

Cells that the site hides come along, folded, since others build on what they make. The prose has the numbers, citations
and drawings that the site shows.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import jupytext
from bs4 import BeautifulSoup
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

from book.drawings import draw
from book.project import BOOK, Address
from book.stylesheet import prune

SETUP = """\
# On Colab this installs the course package; anywhere else it does nothing.
import importlib.util
import subprocess
import sys

if "google.colab" in sys.modules and importlib.util.find_spec("mlsys_lab") is None:
    course = "mlsys-lab[kernels] @ git+{repository}"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", course], check=True)


def glue(name, value, display=True):
    \"\"\"Compute a number of the text. You read it there as it was when this notebook was made.\"\"\"
"""
HIDDEN = {"remove-cell", "remove-input", "hide-input"}
"""Tags of cells whose code the site does not show at first."""
_GLUE = re.compile(r"^from myst_nb import glue\n+", re.M)
_BLOCK = re.compile(
    r"^```\{(?P<kind>[\w-]+)\} ?(?P<what>[^\n]*)\n(?::name: (?P<label>\S+)\n)?(?P<inside>.*?)^```$", re.S | re.M
)
_FENCE = re.compile(r"^:{3,}(?:\{[\w-]+\} ?(?P<title>[^\n]*))?\n(?::class: [^\n]+\n)?", re.M)
_FOLDED = re.compile(r"^(?P<fence>:{3,})\{dropdown\} ?(?P<title>[^\n]*)\n(?P<inside>.*?)^(?P=fence)$", re.S | re.M)
_GLUED = re.compile(r"\{glue:text\}`([^`:]+)(?::([^`]*))?`")
_CITED = re.compile(r"\{cite(?::\w+)?\}`([^`]+)`")
_NUMBERED = re.compile(r"\{numref\}`([^`]+)`")
_ROLES = (re.compile(r"\{\w+\}`([^`<]+?) *<[^`>]*>`"), re.compile(r"\{[\w:]+\}`([^`]+)`"))


@dataclass(frozen=True)
class Shown:
    """What a build of the site has found for a chapter's roles.

    values: of {glue:text}, by name; figures: "Fig. 46" by label; works: label and address of a citation by its key.
    """

    values: Mapping[str, object] = field(default_factory=dict)
    figures: Mapping[str, str] = field(default_factory=dict)
    works: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def value(self, found: re.Match[str]) -> str:
        """A glued value in its format; its name where the build has none."""
        name, form = found[1], found[2] or ""
        return format(self.values[name], form) if name in self.values else f"`{name}`"

    def citation(self, found: re.Match[str]) -> str:
        """Citations as links in brackets; keys of works that the build does not know stay as they are."""
        works = [(key, *self.works.get(key, ("", ""))) for key in found[1].replace(" ", "").split(",")]
        return "[" + ", ".join(f"[{label}]({address})" if label else key for key, label, address in works) + "]"

    def figure(self, found: re.Match[str]) -> str:
        """A figure's number."""
        return self.figures.get(found[1], f"the figure “{found[1]}”")


def pictures(name: str) -> str:
    """A drawing of book/drawings in Markdown: each panel's title, and its SVG as an image on white ground."""
    css = (BOOK / "_static" / "drawings.css").read_text("utf-8")
    drawn = BeautifulSoup(str(draw(name)), "html.parser")
    parts = []
    for panel in drawn.select(".drawing-panel"):
        svg, title = panel.select_one("svg"), panel.select_one(".drawing-title")
        assert svg is not None
        svg.attrs = {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": svg["viewbox"],
            "width": svg["width"],
            "class": "drawing",
            "style": "background: #fff; --pst-font-family-base: sans-serif",
        }
        style = drawn.new_tag("style")
        style.string = prune(css, set(re.findall(r"[\w-]+", str(svg))))
        svg.insert(0, style)
        words = title.get_text() if title else ""
        image = b64encode(svg.decode(formatter="minimal").encode()).decode()
        parts.append((f"*{words}*\n\n" if words else "") + f"![{words}](data:image/svg+xml;base64,{image})")
    return "\n\n".join(parts)


def prose(markdown: str, page: str, shown: Shown) -> str:
    """A chapter's Markdown as any notebook shows it; `page` is the address of the chapter on the site."""

    def block(found: re.Match[str]) -> str:
        if found["kind"] == "drawing":
            number = shown.figures.get(found["label"], "Figure")
            caption = f"**[{number}]({page}#{found['label']})** {found['inside'].strip()}"
            return f"{pictures(found['what'].strip())}\n\n{caption}"
        if found["kind"] == "readings":
            return f"[The list, on the site]({page}#read-next)"
        return found["inside"].strip()

    text = _BLOCK.sub(block, markdown)
    text = _FOLDED.sub(r"<details><summary>\g<title></summary>\n\n\g<inside>\n</details>\n", text)
    text = _FENCE.sub(lambda found: f"**{found['title'].strip()}**\n\n" if found["title"] else "\n", text + "\n")
    text = _NUMBERED.sub(shown.figure, _CITED.sub(shown.citation, _GLUED.sub(shown.value, text)))
    for role in _ROLES:
        text = role.sub(r"\1", text)
    text = re.sub(r"\]\((\d\d-[\w-]+)\.md", lambda link: f"]({page.rsplit('/', 1)[0]}/{link[1]}.html", text)
    text = re.sub(r"\]\(\.\./([\w/-]+)\.(?:md|ipynb)", lambda link: f"]({page.rsplit('/', 2)[0]}/{link[1]}.html", text)
    return text.strip()


def notebook(chapter: Path, address: Address, shown: Shown | None = None) -> NotebookNode:
    """The notebook of the chapter's source, a MyST-NB file: what it needs first, then cells and prose in order."""
    made: NotebookNode = jupytext.read(chapter)
    page = f"{address.site.rstrip('/')}/chapters/{chapter.stem}.html"
    for number, cell in enumerate(made.cells):
        cell["id"] = f"{chapter.stem[:2]}-{number}"
        if cell.cell_type == "code":
            cell.source = _GLUE.sub("", cell.source)
            if HIDDEN.intersection(cell.metadata.get("tags", ())):
                cell.metadata["jupyter"] = {"source_hidden": True}  # JupyterLab shows a bar to click in its place
        else:
            cell.source = prose(cell.source, page, shown or Shown())
    first = new_code_cell(SETUP.format(repository=address.repository), id=f"{chapter.stem[:2]}-setup")
    made.cells = [*made.cells[:1], first, *made.cells[1:]]
    made.metadata.pop("jupytext", None)
    return made
