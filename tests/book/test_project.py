from __future__ import annotations

import re
from pathlib import Path

import pytest

from book.project import BOOK, ROOT, Address, read_address
from mlsys_lab.errors import InputError

ADDRESS = Address("https://github.com/owner/name", "https://owner.github.io/name/")


def test_colab_and_binder_open_a_file_of_the_repository() -> None:
    path = "labs/01-autograd/01-autograd.ipynb"
    assert ADDRESS.colab(path) == f"https://colab.research.google.com/github/owner/name/blob/main/{path}"
    assert ADDRESS.binder(path) == f"https://mybinder.org/v2/gh/owner/name/main?urlpath=lab/tree/{path}"


@pytest.mark.parametrize("url", ["https://gitlab.com/owner/name", "https://github.com/owner/name/", "owner/name"])
def test_an_address_that_colab_cannot_open_is_refused(url: str) -> None:
    with pytest.raises(InputError, match=r"expected https://github\.com/owner/name"):
        Address(url, "https://example.org/")


def test_a_missing_address_is_named(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text('[project.urls]\nRepository = "https://github.com/owner/name"\n', encoding="utf-8")
    with pytest.raises(InputError, match="expected an entry Site"):
        read_address(path)


def test_the_public_address_stands_in_one_place() -> None:
    slug = read_address().slug
    sources = [p for p in BOOK.rglob("*") if p.suffix in {".py", ".yml", ".md", ".js", ".css", ".html", ".toml"}]
    own = [p for p in sources if not {"_build", "labs"} & set(p.relative_to(BOOK).parts)]
    assert BOOK / "build.py" in own
    assert [p.relative_to(ROOT) for p in own if f"github.com/{slug}" in p.read_text(encoding="utf-8")] == []


def test_a_file_of_the_repository_that_a_page_names_is_there() -> None:
    named = [
        name for page in BOOK.rglob("*.md") for name in re.findall(r"\{source\}`[^<`]+<([^>]+)>`", page.read_text())
    ]
    assert "grader/README.md" in named
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_what_the_readme_points_to_is_there() -> None:
    named = re.findall(r"\]\((?!https?:)([^)#]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert "grader/README.md" in named
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_binder_has_what_the_labs_run_on() -> None:
    asked = (ROOT / ".binder/requirements.txt").read_text(encoding="utf-8")
    extras = re.search(r"^\.\[(.+)\]$", asked, re.MULTILINE)
    assert extras and set(extras[1].split(",")) == {"lab", "kernels"}
