"""Settings and bundles are read back as they were written; anything else is one clear line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mlsys_lab.capstone import Stack
from mlsys_lab.capstone.bundle import Bundle
from mlsys_lab.capstone.job import Serving
from mlsys_lab.capstone.settings import MODELS, Settings
from mlsys_lab.capstone.sheet import predict
from mlsys_lab.configs import TrainConfig
from mlsys_lab.errors import InputError
from tests.capstone.calibrations import plain_calibration


@pytest.fixture
def bundle(stack: Stack) -> Bundle:
    """A bundle with one artifact."""
    settings = Settings(MODELS["tiny"], TrainConfig(4, 16, 3, 1e-2, seed=5), 2, Serving(7, 5), "abc")
    calibration = plain_calibration(settings.model, settings.train, settings.ranks)
    sheet = predict(stack, settings.model, settings.train, settings.ranks, calibration, serving=settings.serving)
    return Bundle({"autograd": "# mine\n"}, {"autograd": "0123456789ab"}, settings, calibration, sheet, 2.5)


def test_a_bundle_is_read_back_as_it_was_written(bundle: Bundle, tmp_path: Path) -> None:
    bundle.write(tmp_path / "bundle.json")
    assert Bundle.read(tmp_path / "bundle.json") == bundle


def test_anything_else_is_refused_in_one_line(bundle: Bundle, tmp_path: Path) -> None:
    fields = json.loads(bundle.to_json())
    del fields["sheet"]["parameters"]
    refused = {
        "an incomplete sheet: got no 'parameters'": fields,
        "not a bundle: got KeyError: 'format'": {},
        "another format: got 2, expected 1": {"format": 2},
        "not a bundle: got TypeError": [],
        "not settings of a run: got": fields | {"settings": {"model": {}}},
    }
    for message, document in refused.items():
        (tmp_path / "bundle.json").write_text(json.dumps(document))
        with pytest.raises(InputError, match=message) as error:
            Bundle.read(tmp_path / "bundle.json")
        assert "\n" not in str(error.value) and "bundle.json" in str(error.value)
    for message, change in {
        "bits_per_byte must be positive: got 0": {"bits_per_byte": 0},
        "versions of other topics than the artifacts': got none, expected autograd": {"versions": {}},
        "artifacts are no texts by topic": {"artifacts": {"autograd": 1}},
    }.items():
        with pytest.raises(InputError, match=message):
            replace(bundle, **change)  # type: ignore[arg-type]


def test_settings_that_cannot_be_trained_are_refused(bundle: Bundle) -> None:
    with pytest.raises(InputError, match="a rank without sequences"):
        replace(bundle.settings, ranks=5)
    with pytest.raises(InputError, match="LLaMA-like: got activation=gelu"):
        replace(bundle.settings, model=replace(MODELS["tiny"], activation="gelu"))
