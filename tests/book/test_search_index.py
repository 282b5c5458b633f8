"""What a search of the site can find: places on pages with what a reader sees there, kept between builds."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace, patch_docutils

sys.path.insert(0, str(Path(__file__).parents[2] / "book" / "_ext"))

import readings  # a module of the book's extension folder

CUDA = r"""# CUDA

A block has $n$ threads in $\lceil n / 32 \rceil$ {term}`warps <warp>`.

```python
hidden = "code"
```

$$ \sum_i x_i $$

## Shared memory

It has **32** banks.

:::{note}
Mind the banks.
:::

### Conflicts

Lanes wait.
"""
GLOSSARY = """# Glossary

Terms as this course uses them.

```{glossary}
warp
  Threads that run in step. See {term}`lane`.

lane
thread slot
  One of a warp's.
```
"""
Index = dict[str, Any]


@pytest.fixture
def book(tmp_path: Path) -> Path:
    """A small book with one chapter and a glossary."""
    source = tmp_path / "book"
    (source / "chapters").mkdir(parents=True)
    (source / "chapters" / "05-cuda.md").write_text(CUDA)
    (source / "glossary.md").write_text(GLOSSARY)
    (source / "index.md").write_text("# Book\n\n```{toctree}\n:hidden:\n\nglossary\nchapters/05-cuda\n```\n")
    return source


@pytest.fixture
def build(book: Path, tmp_path: Path) -> Callable[[], Index]:
    """Builds the book; gives its index."""

    def run() -> Index:
        warnings = StringIO()
        with patch_docutils(str(book)), docutils_namespace():
            Sphinx(
                srcdir=str(book),
                confdir=None,
                outdir=str(tmp_path / "html"),
                doctreedir=str(tmp_path / "doctrees"),
                buildername="html",
                confoverrides={
                    "extensions": ["myst_parser", "search_index"],
                    "myst_enable_extensions": ["dollarmath", "colon_fence"],
                },
                status=None,
                warning=warnings,
            ).build()
        assert warnings.getvalue() == ""
        index: Index = json.loads((tmp_path / "html" / "search-index.json").read_text("utf-8"))
        return index

    return run


def test_sections_and_terms_are_places_with_what_a_reader_sees(build: Callable[[], Index]) -> None:
    index = build()
    assert index["pages"] == {"chapters/05-cuda": "Chapter 5 · CUDA", "glossary": "Glossary", "index": "Book"}
    assert index["hits"] == [
        ["chapters/05-cuda", "", "CUDA", "A block has n threads in … warps.", "section"],
        ["chapters/05-cuda", "shared-memory", "Shared memory", "It has 32 banks. Mind the banks.", "section"],
        ["chapters/05-cuda", "conflicts", "Conflicts", "Lanes wait.", "section"],
        ["glossary", "", "Glossary", "Terms as this course uses them.", "section"],
        ["glossary", "term-warp", "warp", "Threads that run in step. See lane.", "term"],
        ["glossary", "term-lane", "lane", "One of a warp’s.", "term"],
        ["glossary", "term-thread-slot", "thread slot", "One of a warp’s.", "term"],
        ["index", "", "Book", "", "section"],
    ]


def test_sphinx_makes_no_index_beside_ours(build: Callable[[], Index], tmp_path: Path) -> None:
    build()
    assert (tmp_path / "html" / "search.html").is_file()
    assert not (tmp_path / "html" / "searchindex.js").exists()


def test_a_page_that_is_not_written_again_stays_in_the_index(
    build: Callable[[], Index], book: Path, tmp_path: Path
) -> None:
    before = build()
    glossary = tmp_path / "html" / "glossary.html"
    written = glossary.stat().st_mtime_ns
    page = book / "chapters" / "05-cuda.md"
    page.write_text(CUDA.replace("Lanes wait.", "Lanes queue."))
    after = build()
    assert glossary.stat().st_mtime_ns == written
    assert [hit[3] for hit in after["hits"] if hit[1] == "conflicts"] == ["Lanes queue."]
    assert len(after["hits"]) == len(before["hits"])


def test_the_reading_list_is_in_the_index_where_the_book_has_it(build: Callable[[], Index], book: Path) -> None:
    (book / "readings.md").write_text("---\norphan: true\n---\n# Reading list\n")
    found = [hit for hit in build()["hits"] if hit[4] == "reading"]
    assert {hit[1] for hit in found} == {f"reading-{reading.id}" for reading in readings.load()}
    assert all(hit[0] == "readings" and hit[2] and hit[3] for hit in found)
