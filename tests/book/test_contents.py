"""The table of contents is the syllabus as far as it is written."""

from __future__ import annotations

import sys
from pathlib import Path

BOOK = Path(__file__).parents[2] / "book"
sys.path.insert(0, str(BOOK / "_ext"))

import contents  # noqa: E402  # modules of the book's extension folder
import readings  # noqa: E402

from mlsys_lab.stack.labinfo import LabInfo  # noqa: E402


def pages(toc: dict) -> dict[str, list[str]]:
    return {part["caption"]: [page["file"] for page in part["chapters"]] for part in toc["parts"]}


def test_every_chapter_that_is_written_is_in_it_once() -> None:
    listed = [page for part in pages(contents.contents(readings.load_syllabus())).values() for page in part]
    assert len(listed) == len(set(listed))
    chapters = [page for page in listed if page.startswith("chapters/")]
    assert sorted(chapters) == [f"chapters/{path.stem}" for path in sorted((BOOK / "chapters").glob("*.md"))]
    assert all((BOOK / f"{page}.md").is_file() for page in listed if not page.startswith("labs/"))


def test_a_lab_stands_behind_its_chapter_written_or_not(tmp_path: Path) -> None:
    for page in ("chapters/01-introduction.md", "chapters/08-scaling-laws.md", "labs/06-a.ipynb", "labs/07-b.ipynb"):
        (tmp_path / page).parent.mkdir(exist_ok=True)
        (tmp_path / page).touch()
    labs = [
        LabInfo(Path(name), "T", "S", 60, 10, prerequisite_chapters=(chapter,))
        for name, chapter in (
            ("06-a", "08-scaling-laws"),
            ("07-b", "09-collectives"),
            ("08-not-here", "12-inference"),
        )
    ]
    toc = pages(contents.contents(readings.load_syllabus(labs=labs), tmp_path))
    assert list(toc) == ["The course", "Why", "Arithmetic", "Scale out", "Reference"]
    assert (toc["Arithmetic"], toc["Scale out"]) == (["chapters/08-scaling-laws", "labs/06-a"], ["labs/07-b"])
