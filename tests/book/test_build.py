"""The builder on a small book of its own, in processes of their own: Sphinx keeps state."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from book import build

CONFIG = f"""title: T
only_build_toc_files: true
execute:
  execute_notebooks: cache
  stderr_output: warn
  show_tb: true
sphinx:
  local_extensions:
    cheat_sheet: {Path(build.__file__).parent / "_ext"}
    execution: {Path(build.__file__).parent / "_ext"}
"""
HEADER = """---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  name: python3
---
"""
DRIVER = """
import sys
from pathlib import Path
from book import assets, build, lab_pages
from book.project import Address
from mlsys_lab.errors import CourseError
root = Path(sys.argv[1])
build.BOOK, build.BUILD, build.STATIC = root / "book", root / "build", root / "build" / "static"
lab_pages.stage = assets.stage = lambda *folders: folders[0].mkdir(parents=True, exist_ok=True)
try:
    build.build(root / "out", Address("https://github.com/owner/name", "https://example.org/"), quiet=True)
except CourseError as error:
    sys.exit(f"error: {error}")
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "book" / "_static").mkdir(parents=True)
    (tmp_path / "book" / "_config.yml").write_text(CONFIG)
    write(tmp_path, index="# Front", page=f"{HEADER}\n# Page\n\n```{{code-cell}}\nprint('com' + 'puted')\n```\n")
    return tmp_path


def write(root: Path, **pages: str) -> None:
    for name, text in pages.items():
        (root / "book" / f"{name}.md").write_text(text)
    found = sorted(path.relative_to(root / "book").with_suffix("").as_posix() for path in root.glob("book/**/*.md"))
    chapters = [name for name in found if name != "index"]
    toc = {"format": "jb-book", "root": "index", "chapters": [{"file": name} for name in chapters]}
    (root / "book" / "_toc.yml").write_text(json.dumps(toc))


def run(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", DRIVER, str(root)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=800)


def test_a_page_is_executed_and_an_old_one_goes(root: Path) -> None:
    write(root, old="# Old")
    assert run(root).returncode == 0
    html = root / "out" / "html"
    assert "computed" in (html / "page.html").read_text()
    assert "https://github.com/owner/name/edit/main/book/page.md" in (html / "page.html").read_text()
    assert (html / "old.html").is_file()
    (root / "book" / "old.md").unlink()
    write(root)
    assert run(root).returncode == 0
    assert not (html / "old.html").exists() and (html / "page.html").is_file()


@pytest.mark.parametrize(
    ("page", "said"),
    [
        (f"{HEADER}\n# Page\n\n```{{code-cell}}\n1 / 0\n```\n", "ZeroDivisionError"),
        pytest.param(
            f"{HEADER}\n# Page\n\n```{{code-cell}}\nimport sys; print('oops', file=sys.stderr)\n```\n",
            "stderr",
            marks=pytest.mark.weekly,
        ),
    ],
)
def test_a_faulty_page_fails_the_build_and_leaves_no_half_site(root: Path, page: str, said: str) -> None:
    write(root, page=page)
    result = run(root)
    assert result.returncode == 1
    assert said in result.stderr
    assert "error: the book has warnings" in result.stderr
    assert not (root / "out" / "html").exists()


@pytest.mark.weekly
def test_pages_are_executed_side_by_side(root: Path) -> None:
    """Each of two pages waits for what the other writes: one after the other, they would wait for ever."""
    for name, other in (("one", "two"), ("two", "one")):
        cell = f"""import pathlib, time
pathlib.Path("{name}.here").touch()
while not pathlib.Path("{other}.here").exists():
    time.sleep(0.05)
print("{name} has met {other}")"""
        write(root, **{name: f"{HEADER}\n# {name}\n\n```{{code-cell}}\n{cell}\n```\n"})
    assert run(root).returncode == 0
    html = root / "out" / "html"
    assert "one has met two" in (html / "one.html").read_text() and "two has met one" in (html / "two.html").read_text()


def test_the_cheat_sheet_follows_the_takeaways_of_a_chapter(root: Path) -> None:
    (root / "book" / "chapters").mkdir()
    for number in ("41", "43"):
        glued = f"from myst_nb import glue\nglue('number', {number}, display=False)"
        box = ":::{admonition} Takeaway\n:class: takeaway\nIt is {glue:text}`number`, see [it](../page.md).\n:::\n"
        chapter = f"{HEADER}\n# Why\n\n```{{code-cell}}\n{glued}\n```\n\n{box}"
        write(root, **{"chapters/01-introduction": chapter, "sheet": "# Sheet\n\n```{cheat-sheet}\n```\n"})
        built = run(root)
        assert built.returncode == 0, built.stderr
        sheet = (root / "out" / "html" / "sheet.html").read_text()
        assert f'It is <span class="pasted-text">{number}</span>, see ' in sheet
        assert 'href="chapters/01-introduction.html"' in sheet and "../page" not in sheet


@pytest.mark.weekly
def test_an_unmended_page_fails_again(root: Path) -> None:
    write(root, page="# Page\n\n[nowhere](gone.md)\n")
    assert [run(root).returncode for _ in range(2)] == [1, 1]


def test_the_cache_follows_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mlsys_lab").mkdir()
    source = tmp_path / "mlsys_lab" / "a.py"
    source.write_text("x = 1")
    record = tmp_path / "book" / "data" / "measurements" / "a.json"
    record.parent.mkdir(parents=True)
    record.write_text("{}")
    (tmp_path / "constraints.txt").write_text("a==1")
    monkeypatch.setattr(build, "ROOT", tmp_path)
    monkeypatch.setattr(build, "BOOK", tmp_path / "book")
    keys = [build.cache_key()]
    for path in (source, record, tmp_path / "constraints.txt"):
        path.write_text("changed")
        keys.append(build.cache_key())
    assert len(set(keys)) == 4


def test_old_caches_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "BUILD", tmp_path)
    (tmp_path / "book-cache" / "old").mkdir(parents=True)
    (tmp_path / "book-cache" / "now").mkdir()
    assert build.execution_cache("now") == tmp_path / "book-cache" / "now"
    assert [path.name for path in (tmp_path / "book-cache").iterdir()] == ["now"]
