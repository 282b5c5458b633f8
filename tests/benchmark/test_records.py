"""Measurement records: written, read back, and refused when they do not hold together."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlsys_lab.benchmark import Bound, Record, load, load_all, new_record
from mlsys_lab.errors import InputError


@pytest.fixture
def record() -> Record:
    return new_record(
        "copy-bandwidth",
        "device copy, read + write",
        [2.0, 4.0, 3.0, 5.0],
        unit="GB/s",
        better="higher",
        command="make bench",
        seed=0,
        bound=Bound(7.0, "data sheet"),
        parameters={"n": 3},
    )


def test_a_record_says_where_it_comes_from(record: Record) -> None:
    assert record.device and record.power_limit_w is None
    assert {"python", "system", "torch", "numpy"} <= set(record.versions)
    assert record.taken.startswith("20") and record.taken.endswith("+00:00")
    assert (record.p50, record.fraction_of_bound) == (3.5, 0.5)


def test_fraction_of_a_time_bound_is_the_other_way_round(record: Record) -> None:
    assert replace(record, better="lower", bound=Bound(1.75, "hand count")).fraction_of_bound == 0.5
    assert replace(record, bound=None).fraction_of_bound is None


def test_it_survives_the_file(record: Record, tmp_path: Path) -> None:
    path = record.save(tmp_path / "new" / "folder")
    assert load(path) == record
    unbounded = replace(record, name="other", bound=None, notes="µs – “odd” text")
    unbounded.save(path.parent)
    assert load_all(path.parent) == {"copy-bandwidth": record, "other": unbounded}
    assert [p.suffix for p in path.parent.iterdir()] == [".json", ".json"]
    assert json.loads(path.read_text())["p50"] == 3.5


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"p50": 9.0}, "'p50' does not follow from the samples: got 9.0, expected 3.5"),
        ({"p50": "3.5"}, "'p50' does not follow"),
        ({"fraction_of_bound": None}, "'fraction_of_bound' does not follow"),
        ({"samples": []}, "samples must be finite numbers"),
        ({"samples": [1, None]}, "samples must be finite numbers"),
        ({"samples": 3}, "is malformed"),
        ({"bound": {"value": 7}}, "is malformed"),
        ({"bound": {"value": 0, "how": "x"}}, "the bound needs a positive value"),
        ({"better": "bigger"}, "'better' is wrong: got bigger"),
        ({"command": " "}, "'command' is empty"),
        ({"name": "another"}, "has another name: got another, expected copy-bandwidth"),
        ({"name": "Copy Bandwidth"}, "misnamed"),
        ({"extra": 1}, "field 'extra' is unknown"),
        ({"seed": ...}, "field 'seed' is missing"),
    ],
)
def test_a_record_that_does_not_hold_together_is_refused(
    record: Record, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    path = record.save(tmp_path)
    document = json.loads(path.read_text()) | change
    path.write_text(json.dumps({key: value for key, value in document.items() if value is not ...}))
    with pytest.raises(InputError) as caught:
        load(path)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_files_that_are_no_records(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such measurement record"):
        load(tmp_path / "none.json")
    for content, said in [(b"{", "is not JSON"), (b"\xff", "is not JSON"), (b"[]", "is not a measurement record")]:
        (tmp_path / "bad.json").write_bytes(content)
        with pytest.raises(InputError, match=said):
            load(tmp_path / "bad.json")


def test_an_unwritable_folder_is_one_line(record: Record, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        record.save(tmp_path / "file")


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(InputError, match="expected 'cpu' or 'cuda'"):
        new_record("a", "b", [1.0], unit="s", better="lower", command="c", seed=0, device="tpu")
