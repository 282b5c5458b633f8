"""The script that distils the digit model: what it writes is what the package reads, all in one run."""

import shutil

from book import distil_digits
from mlsys_lab.benchmark import load
from mlsys_lab.diffusion import pretrained
from mlsys_lab.diffusion.schedules import edm_grid


def test_a_short_run_writes_students_and_record(tmp_path, monkeypatch):
    for name in (pretrained.MODEL, pretrained.CLASSIFIER):
        shutil.copy(pretrained.FOLDER / name, tmp_path)
    monkeypatch.setattr(pretrained, "FOLDER", tmp_path)
    monkeypatch.setattr(distil_digits, "RECORDS", tmp_path)
    monkeypatch.setattr(distil_digits, "STUDENTS", (1, 2))
    monkeypatch.setattr(distil_digits, "STEPS", 2)
    monkeypatch.setattr(distil_digits, "BATCH", 8)
    monkeypatch.setattr(distil_digits, "GRID", edm_grid(4, 0.02, 20))
    distil_digits.main()
    assert [len(pretrained.load_student(steps).grid) for steps in (1, 2)] == [2, 3]
    told = load(tmp_path / "distilled-digits.json").parameters
    assert told["rounds"] == 2 and told["steps"] == 2
    ways = [f"{way}, {steps} steps" for steps in (1, 2) for way in ("DDIM", "Heun", "student")]
    assert set(told["figures"]) == {"DDIM, 4 steps", *ways}
    assert told["figures"]["DDIM, 4 steps"]["off"] == 0 < told["figures"]["student, 1 steps"]["off"]
