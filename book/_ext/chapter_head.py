"""The lines under a chapter's title and at its end: what it builds on and gives, lab, notebook, what comes next.

Each chapter is written as a notebook beside its page. Colab opens it from the repository's branch of notebooks.
"""

from __future__ import annotations

import json
from ast import literal_eval
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import Any

import nbformat
import readings
from docutils import nodes
from front_page import prose_minutes
from sphinx.application import Sphinx

from book.chapter_notebooks import Shown, notebook
from book.files import write_if_changed
from book.project import BOOK, NOTEBOOKS, Address, read_address

CHEAT_SHEET = "cheat-sheet"
Relative = Callable[[str], str]
"""Turns a page's name into a link from the page at hand."""


def _link(page: str, words: str, relative: Relative) -> str:
    return f'<a href="{escape(relative(page))}">{escape(words)}</a>'


def _labs(chapter: readings.Chapter, titles: Mapping[str, str]) -> list[readings.Lab]:
    return [lab for lab in chapter.labs if lab.page in titles]


def head(
    chapter: readings.Chapter, minutes: int, address: Address, titles: Mapping[str, str], relative: Relative
) -> str:
    """HTML of a chapter's head.

    Args:
        chapter: the chapter of the syllabus.
        minutes: that its prose takes to read.
        address: the public repository, for Colab.
        titles: the title of every page of the book, by its name.
        relative: link to a page from this one.
    """
    name = chapter.page.removeprefix("chapters/")
    syllabus = readings.load_syllabus(labs=())
    before = [found for topic in chapter.after if (found := syllabus.chapter(topic)) and found.page in titles]
    facts = [f"<span>Chapter <b>{chapter.number}</b></span>", f"<span><b>{minutes}</b> min to read</span>"]
    if before:
        facts.append("<span>after " + ", ".join(_link(one.page, one.title, relative) for one in before) + "</span>")
    else:
        facts.append("<span>the first chapter: all you need is to have trained a model</span>")
    facts += [f"<span>{_link(lab.page, f'Lab {lab.number}', relative)}</span>" for lab in _labs(chapter, titles)]
    able = "".join(f"<li>{escape(one)}</li>" for one in chapter.able)
    return f"""
<div class="lab-header chapter-head">
  <p class="lab-facts">{"".join(facts)}</p>
  <div><p>You will be able to</p><ul>{able}</ul></div>
  <p class="lab-buttons" data-notebook="chapters/{escape(name)}.ipynb">
    <a class="lab-button" href="{escape(name)}.ipynb" download>Download as a notebook</a>
    <a class="lab-button lab-colab" href="{escape(address.colab(f"{name}.ipynb", branch=NOTEBOOKS))}">Open in Colab</a>
  </p>
</div>
"""


def foot(chapter: readings.Chapter, titles: Mapping[str, str], relative: Relative) -> str:
    """HTML of a chapter's end: its labs and the next chapter."""
    labs = [_link(lab.page, f"Lab {lab.number} · {lab.title}", relative) for lab in _labs(chapter, titles)]
    written = [one for one in readings.load_syllabus(labs=()).chapters if one.page in titles]
    later = written[[one.page for one in written].index(chapter.page) + 1 :]
    following = [_link(one.page, f"Chapter {one.number} · {one.title}", relative) for one in later[:1]]
    lines = [f"<span>Now do {one}</span>" for one in labs] + [f"<span>Next: {one}</span>" for one in following]
    if CHEAT_SHEET in titles:
        lines.append(f"<span>{_link(CHEAT_SHEET, 'Takeaways and formulas', relative)}</span>")
    return f'<p class="lab-facts chapter-foot">{"".join(lines)}</p>' if lines else ""


def shown(app: Sphinx, page: str, doctree: nodes.document, address: Address) -> Shown:
    """What the site's build has found for the roles of a page: values, numbers of figures, and cited works."""
    glued = Path(app.outdir).parent / "jupyter_execute" / f"{page}.glue.json"
    outputs = json.loads(glued.read_text("utf-8")) if glued.exists() else {}
    values = {name: literal_eval(output["data"]["text/plain"]) for name, output in outputs.items()}
    figures = {}
    for label, (where, anchor) in app.env.get_domain("std").anonlabels.items():  # type: ignore[attr-defined]
        if number := app.env.toc_fignumbers.get(where, {}).get("figure", {}).get(anchor):
            figures[label] = f"Fig. {'.'.join(map(str, number))}"
    keys = {citation.citation_id: citation.key for citation in app.env.get_domain("cite").citations}  # type: ignore[attr-defined]
    works = {}
    for link in doctree.findall(nodes.reference):
        target, _, anchor = link.get("refuri", "").partition("#")
        if target.endswith("references.html") and anchor in keys:
            works[keys[anchor]] = (link.astext(), f"{address.site.rstrip('/')}/references.html#{anchor}")
    return Shown(values, figures, works)


def add(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    """Put the head after a chapter's title and the foot at its end, and write its notebook beside it."""
    if doctree is None or not pagename.startswith("chapters/"):
        return
    chapter = readings.load_syllabus().chapter(pagename.removeprefix("chapters/").split("-")[0])
    if chapter is None:
        return
    source, address = BOOK / f"{pagename}.md", read_address()
    titles = {name: title.astext() for name, title in app.env.titles.items()}
    minutes = prose_minutes(source.read_text(encoding="utf-8"))
    before, end, rest = context["body"].partition("</h1>")
    html = head(chapter, minutes, address, titles, context["pathto"])
    context["body"] = before + end + html + rest + foot(chapter, titles, context["pathto"])
    written = nbformat.writes(notebook(source, address, shown(app, pagename, doctree, address))) + "\n"
    write_if_changed(Path(app.outdir) / f"{pagename}.ipynb", written.encode())


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the handler with Sphinx."""
    app.connect("html-page-context", add)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
