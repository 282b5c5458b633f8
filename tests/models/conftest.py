"""Models of `transformers` in memory and as checkpoints, for every test of loading."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.models.families import FAMILIES, build

Folders = Callable[..., Path]


@pytest.fixture(scope="session")
def theirs() -> dict[str, Any]:
    """The model of each family, by name."""
    return {family: build(family) for family in FAMILIES}


@pytest.fixture
def saved(theirs: dict[str, Any], tmp_path: Path) -> Folders:
    """Writes a family's model into this test's folder and returns that."""

    def save(family: str, shard: str = "1GB") -> Path:
        theirs[family].save_pretrained(tmp_path, max_shard_size=shard)
        return tmp_path

    return save
