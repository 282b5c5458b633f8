"""The notebooks as people run them, top to bottom in a kernel: solved, and as released."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.labs.harness import labs, released_notebook
from tests.sampling import keep, sample

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]  # a cell that trains, on a busy machine
LABS = {lab.info.topic: lab for lab in labs()}
SHORTENED = {
    "scaling-laws": """from mlsys_lab.scaling import runs

whole = runs.tokens_for
runs.tokens_for = lambda size, flops, corpus: whole(size, flops / 8, corpus)
"""
}
"""By lab that trains for minutes: a first cell, with which it trains an eighth. Once a week it trains all."""
ALWAYS = ("gpu-model", "serving")
"""Labs whose solved notebook runs every time, next to autograd's in `e2e/test_learner_journey.py`; the judge grades the
solved notebooks of all labs every time (`grader/judging/test_references.py`)."""


@pytest.fixture(autouse=True)
def warm(jupyter_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels have imported torch."""
    monkeypatch.setenv("JUPYTER_PATH", str(jupyter_path))


def executed(notebook: dict[str, Any], folder: Path, *, allow_errors: bool) -> Any:
    node = nbformat.reads(json.dumps(notebook), as_version=4)
    client = NotebookClient(
        node,
        timeout=None,
        allow_errors=allow_errors,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()
    return node


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def shortened(notebook: dict[str, Any], before: str) -> dict[str, Any]:
    """The notebook with one more cell, its first, that changes how much is trained."""
    cell = {"cell_type": "code", "metadata": {}, "source": before, "outputs": [], "execution_count": None, "id": "less"}
    return notebook | {"cells": [cell, *notebook["cells"]]}


RUNS = {topic: (topic, SHORTENED.get(topic, "")) for topic in LABS}
RUNS |= {f"{topic} in full": (topic, "") for topic in SHORTENED}


@pytest.mark.parametrize("name", keep([*RUNS], ALWAYS))
def test_the_solved_notebook_runs_top_to_bottom_and_earns_all_points(name: str, tmp_path: Path) -> None:
    topic, before = RUNS[name]
    lab = LABS[topic]
    notebook = shortened(lab.reference_notebook, before) if before else lab.reference_notebook
    shown = outputs(executed(notebook, tmp_path, allow_errors=False))
    texts = [str(output.get("data", {}).get("text/plain", "")) for output in shown]
    assert sum("✓ passed" in text for text in texts) == len(lab.checks.checks)
    total = f"{lab.checks.points:g}"
    assert any(f"{total} of {total} points" in text for text in texts)
    kinds = {kind for output in shown for kind in output.get("data", {})}
    pictures = {"application/vnd.plotly.v1+json", "application/vnd.jupyter.widget-view+json"}
    assert kinds & pictures, f"{lab.info.topic}: no picture is drawn from the learner's own code"
    assert not [output.text for output in shown if output.output_type == "stream" and output.name == "stderr"]


@pytest.mark.parametrize("topic", sample([*LABS], 6))
def test_every_cell_of_the_release_runs_or_names_the_task_still_to_do(topic: str, tmp_path: Path) -> None:
    lab = LABS[topic]
    notebook = executed(released_notebook(lab), tmp_path, allow_errors=True)
    errors = [output for output in outputs(notebook) if output.output_type == "error"]
    assert len(errors) >= len(lab.checks.checks)
    for error in errors:
        assert error.ename in ("CheckFailed", "NotImplementedError", "UnfinishedError"), error.evalue
        expected = "still to do: " if error.ename == "CheckFailed" else r"Task \d+, `"
        assert re.match(expected, error.evalue), error.evalue
