import shutil
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[3]
SOLUTIONS = Path(__file__).parents[1] / "fixtures" / "solutions"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small course of its own, in a folder that may be changed."""
    shutil.copytree(SOLUTIONS, tmp_path / "solutions")
    shutil.copy(PROJECT / "pyproject.toml", tmp_path)
    return tmp_path
