"""The line under a lab page's title: minutes, points, prerequisites, where to open the notebook; its readings as links.

The notebook itself stays as released, so that the page, its download and Colab show the same file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from typing import Any

import readings
from docutils import nodes
from sphinx.application import Sphinx

from book.project import LABS, Address, read_address
from mlsys_lab.stack.labinfo import LabInfo, read_lab


def duration(minutes: int) -> str:
    """Format minutes as a person says them.

    >>> duration(45), duration(60), duration(150)
    ('45 min', '1 h', '2 h 30 min')
    """
    hours, rest = divmod(minutes, 60)
    return " ".join(part for part in (f"{hours} h" * bool(hours), f"{rest} min" * bool(rest)) if part)


def before(lab: LabInfo, titles: Mapping[str, str], relative: Callable[[str], str]) -> str:
    """Prerequisites of a lab as HTML: a link where the book has such a page, the name otherwise."""
    pages = [f"chapters/{name}" for name in lab.prerequisite_chapters] + [
        f"labs/{name}" for name in lab.prerequisite_labs
    ]
    return ", ".join(
        f'<a href="{escape(relative(page))}">{escape(titles[page])}</a>'
        if page in titles
        else escape(page.split("/")[1])
        for page in pages
    )


def header(
    lab: LabInfo, address: Address, titles: Mapping[str, str], relative: Callable[[str], str], source: str
) -> str:
    """HTML of a lab's header.

    Args:
        lab: what lab.toml says.
        address: the public repository, for Colab and Binder.
        titles: the title of every page of the book, by its name.
        relative: turns a page's name into a link from this page.
        source: link to the released notebook from this page.
    """
    notebook = f"{lab.name}/{lab.notebook.name}"
    facts = [f"<span><b>{duration(lab.minutes)}</b></span>", f"<span><b>{lab.points:g}</b> points</span>"]
    if first := before(lab, titles, relative):
        facts.append(f"<span>after {first}</span>")
    return f"""
<div class="lab-header">
  <p>{escape(lab.summary)}</p>
  <p class="lab-facts">{"".join(facts)}</p>
  <p class="lab-buttons" data-notebook="{escape(notebook)}">
    <a class="lab-button lab-colab" href="{escape(address.colab(f"labs/{notebook}"))}">Open in Colab</a>
    <a class="lab-button lab-binder" href="{escape(address.binder(f"labs/{notebook}"))}">Open on Binder</a>
    <a class="lab-button lab-download" href="{escape(source)}" download>Download the notebook</a>
  </p>
</div>
"""


def add_header(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Insert the header after the title."""
    folder = LABS / pagename.removeprefix("labs/")
    if doctree is None or not pagename.startswith("labs/") or not folder.is_dir():
        return
    titles = {name: title.astext() for name, title in app.env.titles.items()}
    source = f"{context['pathto']('_sources', 1)}/{context['sourcename']}"
    html = header(read_lab(folder), read_address(), titles, context["pathto"], source)
    head, end, rest = context["body"].partition("</h1>")
    context["body"] = head + end + html + rest


def link_readings(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Make the titles of a lab's readings links into the reading list, in place of their ids after them."""
    if not page.startswith("labs/") or "readings" not in app.env.found_docs:
        return
    ids = {reading.id for reading in readings.load(readings.READINGS)}
    target = app.builder.get_relative_uri(page, "readings")
    for paragraph in doctree.findall(nodes.paragraph):
        for title, between, key in zip(
            paragraph.children[:], paragraph.children[1:], paragraph.children[2:], strict=False
        ):
            if key.astext() in ids and isinstance(title, nodes.emphasis) and between.astext().strip() == "(":
                after = paragraph[paragraph.index(key) + 1]
                paragraph.replace(
                    title, nodes.reference("", "", title.deepcopy(), refuri=f"{target}#reading-{key.astext()}")
                )
                paragraph.replace(after, nodes.Text(after.astext().removeprefix(")")))
                paragraph.remove(between)
                paragraph.remove(key)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the handler with Sphinx."""
    app.connect("doctree-resolved", link_readings)
    app.connect("html-page-context", add_header)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
