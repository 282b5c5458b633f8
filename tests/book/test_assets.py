from __future__ import annotations

from pathlib import Path

import pytest

from book.assets import package_folder, stage
from book.project import BOOK
from mlsys_lab.errors import MissingToolError


def test_what_pages_load_is_staged_and_the_rest_goes(tmp_path: Path) -> None:
    stale = tmp_path / "widgets" / "old.js"
    stale.parent.mkdir()
    stale.write_text("")
    stage(tmp_path)
    files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert {"mathjax/MathJax_Main-Regular.woff", "widgets/load.js", "widgets/roofline.js"} <= files
    assert "widgets/old.js" not in files
    # Of MathJax, which is 24 MB, pages need the fonts.
    assert {Path(name).suffix for name in files if name.startswith("mathjax/")} == {".woff"}


def test_a_missing_package_is_named_with_the_remedy() -> None:
    with pytest.raises(MissingToolError, match=r"needs the package no-such-package.*pip install"):
        package_folder("no-such-package", "static")
    with pytest.raises(MissingToolError, match="plotly has no folder nowhere"):
        package_folder("plotly", "nowhere")


def test_the_faces_of_text_and_code_are_small_and_keep_their_licences() -> None:
    fonts = sorted((BOOK / "_static" / "fonts").glob("*.woff2"))
    assert [font.name for font in fonts] == ["inter.woff2", "jetbrains-mono.woff2"]
    assert sum(font.stat().st_size for font in fonts) <= 100_000
    for font in fonts:
        assert font.read_bytes()[:4] == b"wOF2"
        licence = font.with_name(f"{font.stem}-LICENSE.txt").read_text(encoding="utf-8")
        assert "SIL Open Font License, Version 1.1" in licence and "Copyright" in licence
