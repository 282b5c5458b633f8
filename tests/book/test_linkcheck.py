from __future__ import annotations

from pathlib import Path

import pytest

from book.linkcheck import internal_problems, main

PAGE = """<html><body><h1 id="top">T</h1>
<a href="{link}">x</a><a href="https://example.org/nowhere">elsewhere</a><a href="mailto:a@example.org">a</a>
<img src="_static/logo.svg"></body></html>"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "_static").mkdir()
    (tmp_path / "_static" / "logo.svg").write_text("<svg/>")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "page.html").write_text('<p id="a-place"><a href="../index.html#top">up</a></p>')
    return tmp_path


@pytest.mark.parametrize(
    "link",
    ["sub/page.html", "sub/page.html#a-place", "#top", "sub/../index.html", "sub/page.html?x=1", "index.html#filter=a"],
)
def test_a_good_link_passes(site: Path, link: str) -> None:
    (site / "index.html").write_text(PAGE.format(link=link))
    assert internal_problems(site) == []
    assert main(["--site", str(site)]) == 0


@pytest.mark.parametrize(
    ("link", "why"),
    [
        ("sub/gone.html", "no such file"),
        ("sub", "no such file"),
        ("/sub/page.html", "leads out of the folder"),
        ("sub/page.html#gone", "no such place"),
        ("#gone", "no such place"),
    ],
)
def test_a_broken_link_is_reported_with_its_page(
    site: Path, link: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (site / "index.html").write_text(PAGE.format(link=link))
    (problem,) = internal_problems(site)
    assert problem.startswith(f"index.html: {link}: {why}")
    assert main(["--site", str(site)]) == 1
    assert "broken links (above): got 1, expected 0" in capsys.readouterr().err


def test_no_site_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--site", str(tmp_path)]) == 1
    assert capsys.readouterr().err.count("\n") == 1
