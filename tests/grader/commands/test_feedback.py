"""`mlsys-grader feedback`: a page for each student, copied to where the instructor wants it."""

import shutil

import pytest

from tests.grader.command_line import LAB


@pytest.mark.sandbox
def test_feedback_is_written_anew_and_copied_out(graded, call, tmp_path):
    shutil.rmtree(graded.root / "feedback")
    code, out, err = call("feedback", "tiny", "--to", "new/pages")
    assert (code, out, err) == (0, "3 pages in new/pages\n", "")
    pages = {path.name: path.read_text() for path in (tmp_path / "new" / "pages").iterdir()}
    assert sorted(pages) == ["ada.html", "bob.html", "cy.html"]
    assert "3 of 6 points" in pages["bob.html"]
    assert pages == {f"{name}.html": graded.feedback(name, LAB).read_text() for name in ("ada", "bob", "cy")}
