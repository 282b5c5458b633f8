from __future__ import annotations

from pathlib import Path

import pytest

from book.assets import package_folder, stage
from mlsys_lab.errors import MissingToolError


def test_what_pages_load_is_staged_and_the_rest_goes(tmp_path: Path) -> None:
    stale = tmp_path / "widgets" / "old.js"
    stale.parent.mkdir()
    stale.write_text("")
    stage(tmp_path)
    files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert {"plotly.min.js", "mathjax/tex-chtml.js", "widgets/load.js", "widgets/roofline.js"} <= files
    assert any(name.startswith("mathjax/output/chtml/fonts/") for name in files)
    assert "mathjax/input/tex/extensions/boldsymbol.js" in files
    assert "widgets/old.js" not in files
    # The untrimmed MathJax is 24 MB.
    assert sum((tmp_path / name).stat().st_size for name in files if name.startswith("mathjax/")) < 3e6


def test_mathjax_is_the_version_that_sphinx_expects(tmp_path: Path) -> None:
    stage(tmp_path)
    assert '"3.2.2"' in (tmp_path / "mathjax" / "tex-chtml.js").read_text(encoding="utf-8")


def test_a_missing_package_is_named_with_the_remedy() -> None:
    with pytest.raises(MissingToolError, match=r"needs the package no-such-package.*pip install"):
        package_folder("no-such-package", "static")
    with pytest.raises(MissingToolError, match="plotly has no folder nowhere"):
        package_folder("plotly", "nowhere")
