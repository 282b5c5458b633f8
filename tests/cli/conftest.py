"""A released fake lab, and a folder of a learner's own to stand in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mlsys_lab.cli import main
from mlsys_lab.stack import labinfo

FAKES = Path(__file__).parents[1] / "checks" / "fakes"
STUB = "#| export\ndef add_one(x):\n    raise NotImplementedError\n\ndef twice(x):\n    raise NotImplementedError\n"
RIGHT = "def add_one(x):\n    return x + 1\n\ndef twice(x):\n    return x + x\n"


def notebook(export: str = STUB, topic: str = "fake") -> str:
    sources = [f'from mlsys_lab.checks import lab\ncheck = lab("{topic}")', export, 'check("add_one")']
    cells = [{"cell_type": "code", "source": source, "metadata": {}, "outputs": []} for source in sources]
    title = {"cell_type": "markdown", "source": "# Fake", "metadata": {}}
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [title, *cells]})


@pytest.fixture
def released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of released labs: `07-fake`, and `08-other`, whose checks are the same ones."""
    root = tmp_path / "released"
    for name in ("07-fake", "08-other"):
        folder = root / name
        folder.mkdir(parents=True)
        toml = f'title = "Lab {name}"\nsummary = "S"\nminutes = 90\npoints = 5\nchecks = "fake_checks"\n'
        (folder / "lab.toml").write_text(toml)
        (folder / f"{name}.ipynb").write_text(notebook(topic=name[3:]))
    (root / "07-fake" / "data.csv").write_text("1,2\n")
    monkeypatch.setattr(labinfo, "labs_root", lambda: root)
    monkeypatch.setenv("PYTHONPATH", str(FAKES))
    monkeypatch.syspath_prepend(str(FAKES))
    return root


@pytest.fixture
def here(tmp_path: Path, released: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The learner's current folder."""
    folder = tmp_path / "mine"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


Write = Callable[..., Path]


@pytest.fixture
def write() -> Write:
    """Save a notebook of the fake lab whose exported cell is `source`."""

    def save(path: Path, source: str = RIGHT, topic: str = "fake") -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(notebook(f"#| export\n{source}", topic))
        return path

    return save


Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run `mlsys-lab ARGUMENTS` in this process: exit code, stdout, stderr."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(arguments)
        out, err = capsys.readouterr()
        return code, out, err

    return run
