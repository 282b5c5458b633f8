import json
import os
import re

import nbformat
import pytest

from mlsys_grader.intake import submission as module
from mlsys_grader.intake.bounded import Worker
from mlsys_grader.intake.sanitise import sanitise
from mlsys_grader.intake.submission import (
    MAX_CELLS,
    MAX_FILE_BYTES,
    MAX_TEXT_CHARACTERS,
    hash_submission,
    parse_submission,
    read_submission,
)


@pytest.fixture
def read(tmp_path, tiny):
    """Reads a submission from what a notebook's file holds."""

    def from_content(content):
        path = tmp_path / "01-tiny.ipynb"
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return read_submission(path, tiny)

    return from_content


def fields(cell):
    return cell["metadata"].get("nbgrader", {})


def test_exported_cells_make_the_artifact(read, hand_in):
    submission = read(hand_in())
    assert submission.refusal is None
    assert "return 2 * x" in submission.artifact.source
    assert "check(" not in submission.artifact.source
    assert submission.notes == ()


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "the file is damaged"),
        (b'{"cells": [', "the file is damaged"),
        (b"\xff\xfe\x00", "the file is damaged"),
        (b"[" * 100_000, "the file is damaged"),
        (b"[1, 2]", "not a notebook"),
        (b'{"worksheets": []}', "not a notebook"),
        (b'{"cells": [7]}', "cell 1 is damaged"),
        (b'{"cells": [{"cell_type": "code", "source": {"a": 1}}]}', "cell 1 is damaged"),
        (b'{"cells": []}', "not a notebook of this course"),
        (b'{"cells": [{"cell_type": "code", "source": "check = lab(\\"autograd\\")"}]}', "the notebook of another lab"),
    ],
)
def test_what_is_no_submission_gets_a_reason(read, content, what):
    submission = read(content)
    assert submission.artifact is None
    assert what in submission.refusal.what


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b" \n", "an empty file"),
        (b'{"cells": [\n<<<<<<< HEAD\n1\n=======\n2\n>>>>>>> theirs\n]}', "a merge that was not finished"),
        (b"\n<!DOCTYPE html><html>", "a web page"),
        (b"PK\x03\x04...", "a zip archive"),
        (b"# %%\nx = 1", "a Python script"),
        (b'{"cells": [{"cell_type": "co', "a notebook that is cut off"),
        ('{"cells": ["é"]}'.encode("latin-1"), "something that is not JSON"),
    ],
)
def test_what_came_in_a_notebooks_place_is_named(read, content, what):
    assert what in read(content).refusal.got


def test_marked_cells_that_are_no_code_are_told(read, hand_in):
    notebook = hand_in()
    for kind in ("markdown", "raw"):
        notebook["cells"].insert(0, {"cell_type": kind, "metadata": {}, "source": "#| export\nx = 1"})
    submission = read(notebook)
    assert submission.refusal is None
    assert [note for note in submission.notes if "is no code" in note] == [
        "Cell 1 begins with `#| export` and is no code (raw): it does not count.",
        "Cell 2 begins with `#| export` and is no code (markdown): it does not count.",
    ]


def test_strange_metadata_does_no_harm(read, hand_in):
    notebook = hand_in()
    notebook["metadata"] = ["no", "dict"]
    notebook["cells"][0]["metadata"] = "text"
    notebook["cells"][1]["metadata"]["nbgrader"] = {"grade_id": ["a", "list"]}
    notebook["cells"][2].pop("metadata")
    notebook["cells"].append({"cell_type": "alien", "source": 7, "metadata": {}})
    notebook["cells"].append({"cell_type": "markdown", "source": "half of a pair: \ud83d", "metadata": {}})
    submission = read(notebook)
    assert submission.refusal is None


@pytest.mark.parametrize("make", ["missing", "folder", "link", "pipe"])
def test_what_is_no_file_is_not_read(tmp_path, tiny, make):
    path = tmp_path / "01-tiny.ipynb"
    match make:
        case "folder":
            path.mkdir()
        case "link":
            path.symlink_to("/etc/passwd")
        case "pipe":
            os.mkfifo(path)
    submission = read_submission(path, tiny)
    assert submission.artifact is None
    expected = "no notebook was handed in" if make == "missing" else "not a file"
    assert expected in submission.refusal.what


def test_a_file_that_is_too_large_is_not_read(tmp_path, tiny):
    path = tmp_path / "01-tiny.ipynb"
    with path.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    assert read_submission(path, tiny).refusal.what == "the file is too large"


def test_another_kernel_is_refused_another_python_is_not(read, hand_in):
    notebook = hand_in()
    notebook["metadata"]["kernelspec"] = {"name": "my-env", "display_name": "My env", "language": "python"}
    assert read(notebook).refusal is None
    notebook["metadata"]["language_info"] = {"name": "R"}
    assert read(notebook).refusal.what == "the notebook is for another kernel"


@pytest.mark.parametrize(
    "metadata",
    [
        {"kernelspec": {"name": "conda-env-ml-py", "language": ""}, "language_info": {}},
        {"kernelspec": {"name": "x", "language": "Python3"}},
        {"kernelspec": {"name": "x", "language": None}, "language_info": {"name": " "}},
        {},
    ],
)
def test_a_notebook_that_does_not_say_its_language_well_is_python(read, hand_in, metadata):
    assert read({**hand_in(), "metadata": metadata}).refusal is None


def test_the_exported_cells_in_a_notebook_of_ones_own_are_a_hand_in(read, hand_in):
    exported = [cell for cell in hand_in()["cells"] if "".join(cell["source"]).startswith("#| export")]
    bare = [{"cell_type": "code", "metadata": {}, "source": cell["source"], "outputs": []} for cell in exported]
    submission = read({"cells": bare, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    assert submission.refusal is None and "return 2 * x" in submission.artifact.source


def test_remarks_tell_what_happened_to_cells(read, hand_in):
    notebook = hand_in()
    first = next(cell for cell in notebook["cells"] if fields(cell).get("grade_id") == "task-double")
    notebook["cells"] = [cell for cell in notebook["cells"] if fields(cell).get("grade_id") != "total"] + [first]
    next(cell for cell in notebook["cells"] if fields(cell).get("grade_id") == "mean")["source"] = "print('ok')"
    notes = read(notebook).notes
    assert len(notes) == 3
    assert "`task-double` is in the notebook 2 times" in notes[0]
    assert "`mean` was changed" in notes[1]
    assert "`total` is missing" in notes[2]


def test_nbgrader_gets_the_frame_of_the_release_and_the_text_of_the_student(read, hand_in, tiny):
    notebook = hand_in(double="def double(x):\n    return x + x  # mine\n")
    graded = next(cell for cell in notebook["cells"] if fields(cell).get("grade_id") == "double")
    graded["source"], graded["outputs"] = "forged", [{"output_type": "stream", "name": "stderr", "text": "x"}]
    fields(graded)["points"] = 1000
    graded["metadata"]["tags"] = ["skip-execution"]
    notebook["cells"].append(json.loads(json.dumps(graded)))
    notebook["cells"] = [cell for cell in notebook["cells"] if fields(cell).get("grade_id") != "total"]
    rebuilt = sanitise(read(notebook), tiny)
    nbformat.validate(rebuilt)
    marked = {fields(cell)["grade_id"]: cell for cell in rebuilt.cells if fields(cell)}
    released = {
        fields(cell)["grade_id"]: cell for cell in json.loads(tiny.info.notebook.read_bytes())["cells"] if fields(cell)
    }
    assert set(marked) == set(released)
    assert {name: cell.metadata for name, cell in marked.items()} == {n: c["metadata"] for n, c in released.items()}
    assert marked["double"].source == 'check("double")'
    assert "# mine" in marked["task-double"].source
    assert all(cell.get("outputs", []) == [] for cell in rebuilt.cells)
    assert len({cell.id for cell in rebuilt.cells}) == len(rebuilt.cells)


def test_a_corrupt_submission_is_rebuilt_as_the_blank_release(read, tiny):
    rebuilt = sanitise(read(b"junk"), tiny)
    assert [fields(cell)["grade_id"] for cell in rebuilt.cells] == [
        "task-double", "double", "task-mean", "mean", "task-total", "total",
    ]  # fmt: skip


def test_a_notebook_that_would_take_nbgrader_for_ever_is_refused(read, hand_in):
    notebook = hand_in()
    cell = {"cell_type": "markdown", "metadata": {}, "source": ["a"]}
    many = read({**notebook, "cells": notebook["cells"] + [cell] * MAX_CELLS})
    assert "too many cells" in many.refusal.what and many.cells == ()
    long = [
        {**cell, "source": ["x" * (MAX_TEXT_CHARACTERS // 2)]},
        {**cell, "source": "x" * (MAX_TEXT_CHARACTERS // 2)},
    ]
    told = read({**notebook, "cells": notebook["cells"] + long})
    assert "text is too long" in told.refusal.what and told.cells == ()
    right = read({**notebook, "cells": notebook["cells"] + [cell] * 1000})
    assert right.refusal is None


def test_commas_in_the_text_of_an_output_are_no_values(read, hand_in):
    """Plotly's own code, which notebooks embed with each plot, has 300,000 of them."""
    notebook = hand_in()
    plots = {"output_type": "display_data", "metadata": {}, "data": {"text/html": '<script>"[{,"</script>' * 600_000}}
    notebook["cells"][1]["outputs"] = [plots]
    assert read(notebook).artifact is not None


def test_text_is_inert_in_what_nbgrader_gets(read, tiny, hand_in):
    notebook = hand_in(double="def double(x):\n    return 2 * x  # \u202e")
    notebook["cells"].append({"cell_type": "markdown", "metadata": {}, "source": "<script>alert(1)</script>"})
    notebook["cells"].append({"cell_type": "raw", "metadata": {}, "source": "<img src=x>"})
    submission = read(notebook)
    shown = [cell.source for cell in sanitise(submission, tiny).cells]
    assert shown[-2:] == ["< script>alert(1)< /script>", "< img src=x>"]
    assert any("# ⟨U+202E⟩" in source for source in shown)
    assert "\u202e" in submission.artifact.source, "what is judged is the text as handed in"


def test_a_notebook_that_no_parser_comes_to_the_end_of_is_refused(tmp_path, tiny, hand_in, monkeypatch):
    bounded = Worker(cpu_s=1)
    path = tmp_path / "01-tiny.ipynb"
    path.write_text(json.dumps(hand_in()))
    whole = read_submission(path, tiny)
    assert whole == parse_submission(path, tiny)
    monkeypatch.setattr(module, "run_bounded", lambda *_: bounded.call(re.fullmatch, "(a+)+b", "a" * 60))
    refused = read_submission(path, tiny)
    assert refused.refusal.what == "the notebook takes too much to be read"
    assert refused.refusal.got == "more than 1 s of processor time"
    assert refused.digest == whole.digest == hash_submission(path)
    bounded.stop()
