"""Directives that collect from every chapter, in the syllabus's order.

{cheat-sheet} has the takeaway boxes under the chapters' titles; {lecture-outlines} the question of each chapter, and
its sections with their predictions and takeaways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from docutils import nodes
from readings import load_syllabus
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective

TAKEAWAY, PREDICTION = "takeaway", "predict"
WITHOUT_OUTLINE = ("worked problems", "in practice", "read next")
"""Sections, by their titles, that a lecture leaves to its readers."""


class collected(nodes.General, nodes.Element):
    """Where something of every chapter will stand once all have been read, by the directive's name."""


class CollectDirective(SphinxDirective):
    """The place of what is collected, by the directive's name; no arguments."""

    def run(self) -> list[nodes.Node]:
        """Return the place, and remember the page that has it."""
        pages = getattr(self.env, "collecting_pages", set())
        self.env.collecting_pages = pages | {self.env.docname}  # type: ignore[attr-defined]
        return [collected(kind=self.name)]


def takeaways(part: nodes.Element) -> Iterator[nodes.list_item]:
    """The takeaways of a chapter or a section as list items."""
    for box in part.findall(nodes.Admonition):
        if TAKEAWAY in box["classes"]:  # type: ignore[index]
            yield nodes.list_item("", *_portable(box))


def outline(chapter: nodes.document) -> list[nodes.Node]:
    """The question of a chapter, and a list of its sections with the predictions and takeaways of each."""
    items = []
    for section in chapter.next_node(nodes.section).children:  # type: ignore[union-attr]
        title = section.next_node(nodes.title) if isinstance(section, nodes.section) else None
        if title is None or title.astext().lower() in WITHOUT_OUTLINE:
            continue
        below = []
        for box in section.findall(nodes.Admonition):
            if PREDICTION in box["classes"]:  # type: ignore[index]
                question = _portable(box)[0]
                question.insert(0, nodes.strong("", "Predict: "))  # type: ignore[attr-defined]
                below.append(nodes.list_item("", question))
        below += takeaways(section)
        words = nodes.paragraph("", "", *(child.deepcopy() for child in title.children))
        items.append(nodes.list_item("", words, *([nodes.bullet_list("", *below)] if below else [])))
    quoted = chapter.next_node(nodes.block_quote)
    question = [quoted] if quoted is not None else []
    return [*(node for one in question for node in _portable(one)), nodes.enumerated_list("", *items)]


def _portable(box: nodes.Element) -> list[nodes.Node]:
    """What is in a box, without its title, and without the links and anchors that hold only on its own page."""
    copied = box.deepcopy()
    for reference in list(copied.findall(addnodes.pending_xref)):
        reference.replace_self(reference.children)
    for node in copied.findall(nodes.Element):
        node["ids"] = []
    return [child for child in copied.children if not isinstance(child, nodes.title)]


MAKE: dict[str, Callable[[nodes.document], list[nodes.Node]]] = {
    "cheat-sheet": lambda chapter: [nodes.bullet_list("", *found)] if (found := list(takeaways(chapter))) else [],
    "lecture-outlines": outline,
}
"""What each directive has of a chapter."""


class FillPlaces(SphinxPostTransform):
    """Puts what is collected of every chapter in place, before references are resolved."""

    default_priority = 1

    def run(self, **kwargs: Any) -> None:
        """Replace each place by a rubric and what is below it, for each chapter that has something."""
        for place in list(self.document.findall(collected)):
            found: list[nodes.Node] = []
            for chapter in load_syllabus().chapters:
                if chapter.page not in self.env.found_docs:
                    continue
                if below := MAKE[place["kind"]](self.env.get_doctree(chapter.page)):
                    target = addnodes.pending_xref(
                        "",
                        nodes.inline("", chapter.title),
                        refdomain="std",
                        reftype="doc",
                        reftarget=f"/{chapter.page}",
                        refexplicit=True,
                        refwarn=True,
                        refdoc=self.env.docname,
                    )
                    found += [nodes.rubric("", "", target), *below]
            place.replace_self(found)


def write_again(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """The pages are written after any change, since what they collect may have changed."""
    return sorted(getattr(env, "collecting_pages", set()) & env.found_docs)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_node(collected)
    for name in MAKE:
        app.add_directive(name, CollectDirective)
    app.add_post_transform(FillPlaces)
    app.connect("env-updated", write_again)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
