"""The directive {cheat-sheet}: the takeaway boxes of every chapter under its title, in the syllabus's order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from docutils import nodes
from readings import load_syllabus
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective

TAKEAWAY = "takeaway"


class cheat_sheet(nodes.General, nodes.Element):
    """Where the takeaways will stand once every chapter has been read."""


class CheatSheetDirective(SphinxDirective):
    """The place of the takeaways; no arguments."""

    def run(self) -> list[nodes.Node]:
        """Return the place, and remember the page that has it."""
        self.env.cheat_sheet_page = self.env.docname  # type: ignore[attr-defined]
        return [cheat_sheet()]


def takeaways(chapter: nodes.document) -> Iterator[nodes.list_item]:
    """The takeaways of a chapter as list items, without the links and anchors that hold only on its own page."""
    for box in chapter.findall(nodes.Admonition):
        if TAKEAWAY not in box["classes"]:
            continue
        copied = box.deepcopy()
        for reference in list(copied.findall(addnodes.pending_xref)):
            reference.replace_self(reference.children)
        for node in copied.findall(nodes.Element):
            node["ids"] = []
        yield nodes.list_item("", *(child for child in copied.children if not isinstance(child, nodes.title)))


class FillCheatSheet(SphinxPostTransform):
    """Puts every chapter's takeaways in place, before references are resolved."""

    default_priority = 1

    def run(self, **kwargs: Any) -> None:
        """Replace the place by a rubric and a list for each chapter that has takeaways."""
        for place in list(self.document.findall(cheat_sheet)):
            found: list[nodes.Node] = []
            for chapter in load_syllabus().chapters:
                if chapter.page not in self.env.found_docs:
                    continue
                if items := list(takeaways(self.env.get_doctree(chapter.page))):
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
                    found += [nodes.rubric("", "", target), nodes.bullet_list("", *items)]
            place.replace_self(found)


def write_again(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """The page is written after any change, since a takeaway may have changed."""
    page = getattr(env, "cheat_sheet_page", None)
    return [page] if page in env.found_docs else []


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_node(cheat_sheet)
    app.add_directive("cheat-sheet", CheatSheetDirective)
    app.add_post_transform(FillCheatSheet)
    app.connect("env-updated", write_again)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
