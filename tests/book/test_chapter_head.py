"""Each chapter says what it builds on and gives, names lab, next chapter and notebook, and the notebook runs."""

from __future__ import annotations

import linecache
import re
import sys
from base64 import b64decode
from pathlib import Path
from xml.etree import ElementTree

import jupytext
import nbformat
import pytest

from book.chapter_notebooks import Shown, notebook, prose
from book.project import BOOK, Address
from mlsys_lab.errors import InputError
from tests.sampling import keep

sys.path.insert(0, str(BOOK / "_ext"))

import chapter_head  # modules of the book's extension folder
import readings

ADDRESS = Address("https://github.com/owner/course", "https://site.org/course")
PAGES = sorted((BOOK / "chapters").glob("*.md"))
QUICK = BOOK / "chapters" / "08-scaling-laws.md"
SYLLABUS = readings.load_syllabus()
CHAPTERS = [chapter for chapter in SYLLABUS.chapters if chapter.page]
TITLES = (
    {"cheat-sheet": "Cheat sheet"}
    | {chapter.page: chapter.title for chapter in CHAPTERS}
    | {lab.page: lab.title for chapter in CHAPTERS for lab in chapter.labs if lab.page}
)


def relative(page: str) -> str:
    return f"../{page}.html"


def test_every_page_is_a_chapter_of_the_syllabus() -> None:
    assert sorted(chapter.page for chapter in CHAPTERS) == [f"chapters/{path.stem}" for path in PAGES]


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.topic)
def test_a_head_says_what_comes_before_and_what_one_will_be_able_to_do(chapter: readings.Chapter) -> None:
    html = chapter_head.head(chapter, 21, ADDRESS, TITLES, relative)
    name = chapter.page.removeprefix("chapters/")
    assert f"Chapter <b>{chapter.number}</b>" in html and "<b>21</b> min" in html
    assert html.count("<li>") == len(chapter.able) >= 3
    assert len(chapter.after) == html.count('"../chapters/') and (chapter.after or chapter.number == 1)
    assert all(f'"../{lab.page}.html"' in html for lab in chapter.labs if lab.page)
    assert f'href="{name}.ipynb" download' in html
    assert f"colab.research.google.com/github/owner/course/blob/notebooks/{name}.ipynb" in html


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.topic)
def test_a_chapter_ends_with_its_lab_and_the_next_chapter(chapter: readings.Chapter) -> None:
    html = chapter_head.foot(chapter, TITLES, relative)
    assert html.count("Now do") == sum(bool(lab.page) for lab in chapter.labs)
    following = CHAPTERS[CHAPTERS.index(chapter) + 1 :][:1]
    assert [f'"../{one.page}.html"' in html for one in following] == [True] * len(following)
    assert '"../cheat-sheet.html"' in html


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_notebook_has_all_cells_and_no_directive_or_role(path: Path) -> None:
    made = notebook(path, ADDRESS)
    nbformat.validate(made)
    first, *code = [cell.source for cell in made.cells if cell.cell_type == "code"]
    assert "pip" in first and "git+https://github.com/owner/course" in first and "def glue(" in first
    source = [cell.source for cell in jupytext.read(path).cells if cell.cell_type == "code"]
    assert [
        one.replace("from myst_nb import glue\n\n", "").replace("from myst_nb import glue\n", "") for one in source
    ] == code
    text = "\n".join(cell.source for cell in made.cells if cell.cell_type == "markdown")
    assert not re.findall(r"\{[\w:]+\}`|^```\{|^:::|^:class:|\.md\b", text, re.M)
    assert text.startswith("# ")
    folded = [cell.source for cell in made.cells if cell.metadata.get("jupyter", {}).get("source_hidden")]
    assert any("glue(" in source for source in folded)
    assert not any("glue(" in source for source in code if source not in folded)


def test_numbers_citations_and_drawings_are_those_of_the_site() -> None:
    shown = Shown(
        {"n": 12, "x": "4.05"},
        {"ring": "Fig. 46"},
        {"a2020": ("A, 2020", "https://s.org/references.html#id1")},
    )
    text = "{glue:text}`n:d` and {glue:text}`x` of {cite}`a2020, b2021`, {numref}`ring`"
    cited = "[[A, 2020](https://s.org/references.html#id1), b2021]"
    assert prose(text, "", shown) == f"12 and 4.05 of {cited}, Fig. 46"
    drawing = "```{drawing} model_parallel.mesh\n:name: ring\nA ring.\n```\n"
    made = prose(drawing, "https://s.org/p.html", shown)
    assert made.endswith("**[Fig. 46](https://s.org/p.html#ring)** A ring.")
    images = re.findall(r"!\[(.*?)\]\(data:image/svg\+xml;base64,(.*?)\)", made)
    assert [words for words, _ in images] == ["tensor groups", "data groups", "pipeline groups"]
    svg = ElementTree.fromstring(b64decode(images[0][1]))
    assert svg.get("viewBox") == "0 0 210 140" and "circle.blue" in svg[0].text


def test_a_role_a_box_and_a_drawing_become_markdown() -> None:
    text = (
        "{glue:text}`n:d` of {term}`warps <warp>` {cite}`a2020`, {numref}`ring`, "
        "[next](05-cuda.md#x), [lab](../labs/01-a.ipynb)\n\n"
        "::::{admonition} Box\n:class: note\nIn it.\n:::{dropdown} Answer\nB.\n:::\n::::\n"
    )
    assert prose(text, "https://s.org/chapters/04-gpu-model.html", Shown()) == (
        "`n` of warps [a2020], the figure “ring”, [next](https://s.org/chapters/05-cuda.html#x), "
        "[lab](https://s.org/labs/01-a.html)\n\n**Box**\n\nIn it.\n"
        "<details><summary>Answer</summary>\n\nB.\n\n</details>"
    )


@pytest.mark.parametrize("path", keep(PAGES, [QUICK]), ids=lambda path: path.stem)
def test_a_notebook_runs_from_its_first_cell_to_its_last(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a reader has it anywhere
    names = {"__name__": path.stem}
    for number, cell in enumerate(notebook(path, ADDRESS).cells):
        if cell.cell_type == "code":
            file, source = f"{path.stem}.ipynb, cell {number}", cell.source + "\n"
            linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)  # Triton reads it
            exec(compile(source, file, "exec"), names)


def test_a_chapter_may_not_build_on_a_later_one(tmp_path: Path) -> None:
    text = (BOOK / "data" / "syllabus.yml").read_text(encoding="utf-8")
    wrong = tmp_path / "syllabus.yml"
    wrong.write_text(text.replace("after: [automatic-differentiation]", "after: [serving]", 1), encoding="utf-8")
    with pytest.raises(InputError, match="field 'after': got 'serving', expected topics of chapters before it"):
        readings.load_syllabus(wrong)
