"""From notebook files to artifacts, well-formed and not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mlsys_checks.sides import find_provided
from mlsys_checks.trusted.artifact import (
    export_cells,
    parse_notebook,
    read_notebook,
    refuse_absent,
    refuse_topics,
    refuse_withheld,
)
from mlsys_lab.errors import InputError
from mlsys_lab.stack.labinfo import find_lab
from mlsys_lab.stack.loading import find_elsewhere, load


def _cell(source: object, kind: str = "code") -> dict[str, object]:
    return {"cell_type": kind, "source": source}


def _document(*cells: dict[str, object]) -> dict[str, object]:
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": list(cells)}


def test_only_cells_with_the_marker_are_exported() -> None:
    notebook = parse_notebook(
        _document(
            _cell("# title", "markdown"),
            _cell("#| export\nx = 1"),
            _cell(None),
            _cell("\n  #|export\nz = 3"),
            _cell("w = 1\n# export"),
            _cell("#| export\nmarkdown", "markdown"),
            _cell(["#| export\n", "v = 4"]),
        ),
        "n.ipynb",
    )
    artifact = export_cells(notebook)
    assert [cell.number for cell in artifact.cells] == [2, 4, 7]
    assert "v = 4" in artifact.source and "w = 1" not in artifact.source


def test_topics_are_read_from_code_only() -> None:
    notebook = parse_notebook(
        _document(
            _cell('lab("prose")', "markdown"),
            _cell('from mlsys_lab.checks import lab\ncheck = lab( "autograd" )\n# lab("comment")'),
            _cell("collab('x')\nlab('gpu-model')"),
        ),
        "n.ipynb",
    )
    assert notebook.topics == ("autograd", "gpu-model")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is damaged: got no JSON"),
        (b'{"cells": [', "is damaged: got no JSON"),
        (b"\xff\xfe\x00", "is damaged: got no JSON"),
        (b"[" * 100_000, "is damaged: got no JSON"),
        (b"[]", "not a notebook of format 4"),
        (b'{"worksheets": []}', "not a notebook of format 4"),
        (b'{"cells": {}}', "not a notebook of format 4"),
        (b'{"cells": [7]}', "cell 1 is damaged"),
        (b'{"cells": [{"cell_type": "code", "source": 7}]}', "cell 1 is damaged"),
        (b'{"cells": [{"cell_type": "code", "source": ["a", 7]}]}', "cell 1 is damaged"),
    ],
)
def test_a_damaged_file_is_one_clear_line(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "n.ipynb"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_notebook(path)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_missing_file_and_folder_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such notebook"):
        read_notebook(tmp_path / "n.ipynb")
    with pytest.raises(InputError, match="that is a folder"):
        read_notebook(tmp_path)


def test_a_notebook_that_exports_nothing(tmp_path: Path) -> None:
    path = tmp_path / "n.ipynb"
    path.write_text(json.dumps(_document(_cell("x = 1"))))
    with pytest.raises(InputError, match=r"n\.ipynb exports nothing.*#\| export"):
        export_cells(path)


def test_what_a_cell_without_the_marker_defines_is_found() -> None:
    notebook = parse_notebook(
        _document(_cell("#| export\na = 1"), _cell("def f(): pass\nclass C:\n    b = 1\nd = e = 2"), _cell("def (:")),
        "n.ipynb",
    )
    assert find_elsewhere(load(export_cells(notebook)), ["a", "b", "C", "d", "e", "f", "g"]) == {
        "C": 2,
        "d": 2,
        "e": 2,
        "f": 2,
    }


def test_an_artifact_knows_what_only_other_cells_seem_to_define() -> None:
    notebook = parse_notebook(
        _document(
            _cell("SIZE: int = 3\nimport numpy as np\nfrom math import ceil\nasync def wait(): 0\n  inner = 1\nf(x)\n"),
            _cell("#| export\ndef f(x): return SIZE\nclass Own: pass"),
            _cell("class Helper:\n    y = 1\nOwn = 4\nnp = 5\ndef (:"),
            _cell("MARKDOWN = 1", "markdown"),
        ),
        "n.ipynb",
    )
    assert dict(export_cells(notebook).elsewhere) == {"SIZE": 1, "np": 3, "ceil": 1, "wait": 1, "Helper": 3}


def test_names_of_other_cells_are_bounded() -> None:
    many = _cell("\n".join(f"x{i} = 1" for i in range(5_000)))
    assert len(export_cells(parse_notebook(_document(many, _cell("#| export")), "n.ipynb")).elsewhere) == 1_000


@pytest.mark.parametrize(
    "source",
    [
        "import mlsys_lab.autograd",
        "import mlsys_lab.autograd.nn as nn",
        "from mlsys_lab import flops, autograd",
        "from mlsys_lab.autograd import Tensor",
        "def f():\n    from mlsys_lab.autograd.value import Value",
    ],
)
def test_exported_cells_may_not_import_what_the_lab_asks_for(source: str) -> None:
    artifact = export_cells(parse_notebook(_document(_cell(f"#| export\n{source}")), "n.ipynb"))
    with pytest.raises(InputError, match=r"cell 1 imports mlsys_lab\.autograd, which this lab asks you to write"):
        refuse_withheld(artifact, ["mlsys_lab.autograd"])
    refuse_withheld(artifact, ["mlsys_lab.auto", "mlsys_lab.autograd_next"])


def test_exported_cells_may_load_only_the_topics_that_are_there_in_grading() -> None:
    source = "#| export\nfrom mlsys_lab import stack\n# stack.load('cuda')\nengine = stack.load('autograd')"
    artifact = export_cells(parse_notebook(_document(_cell(source)), "n.ipynb"))
    refuse_topics(artifact, ["autograd"])
    with pytest.raises(InputError, match="cell 1 loads autograd from the stack, which is not there where this lab"):
        refuse_topics(artifact, [])


def test_exported_cells_may_not_import_what_is_not_there_in_grading() -> None:
    lab = replace(find_lab("autograd"), checks_module="", provided=("mlsys_lab.comm.rank",))
    inside = find_provided(lab, ["mlsys_lab.comm.cost"])
    for absent in ("import mlsys_lab.models", "from mlsys_lab import widgets", "from mlsys_lab.comm import cost"):
        artifact = export_cells(parse_notebook(_document(_cell(f"#| export\n{absent}")), "n.ipynb"))
        with pytest.raises(
            InputError, match=r"cell 1 imports mlsys_lab\.[a-z.]+, which is not there where this lab is"
        ):
            refuse_absent(artifact, inside)
    there = (
        "from mlsys_lab import errors, stack\nfrom mlsys_lab.comm import Rank\nimport mlsys_lab.hardware, mlsys_labs"
    )
    refuse_absent(export_cells(parse_notebook(_document(_cell(f"#| export\n{there}")), "n.ipynb")), inside)
