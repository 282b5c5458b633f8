"""The checks of a lab are found by its lab.toml and its topic, and by notebooks through an entry point."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

import mlsys_checks
import mlsys_lab.checks
from mlsys_checks import labs, load_checks, sides, topics
from mlsys_lab.errors import InputError, MissingToolError
from mlsys_lab.stack.labinfo import LabInfo


def test_checks_are_loaded_from_the_module_that_lab_toml_names(fakes: ModuleType) -> None:
    lab = LabInfo(Path("07-fake"), "fake", "fake", 1, 3, checks_module="fake_checks")
    assert load_checks(lab) is fakes.LAB
    for module in ("no_such_module", "mlsys_checks.no_such", "json"):
        with pytest.raises(InputError, match=f"has no checks: expected LAB in a module {module}"):
            load_checks(replace(lab, checks_module=module))


def test_registry_finds_modules_and_packages_that_define_a_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "__init__.py").touch()
    (tmp_path / "one_topic.py").write_text("LAB = 1\n")
    (tmp_path / "two.py").write_text("x = 'LAB = 1'\nLABEL = 2\n")
    (tmp_path / "three").mkdir()
    (tmp_path / "three" / "__init__.py").write_text("LAB: Lab = 1\n")
    monkeypatch.setattr(sides, "TRUSTED", tmp_path)
    assert topics() == ("one-topic", "three")


def test_every_topic_that_is_found_loads() -> None:
    assert {topic: found.topic for topic, found in labs().items()} == {topic: topic for topic in topics()}


def test_notebooks_take_lab_from_the_entry_point_of_the_package_of_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert mlsys_lab.checks.lab is mlsys_checks.lab
    assert not hasattr(mlsys_lab.checks, "labs")
    monkeypatch.setattr(mlsys_lab.checks, "entry_points", lambda **_: ())
    with pytest.raises(MissingToolError, match="no checks are installed; help: pip install"):
        _ = mlsys_lab.checks.lab
