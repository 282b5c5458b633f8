"""The script that makes the digit model: what it writes is what the package reads, all in one run."""

import torch

from book import pretrain_digits
from mlsys_lab.benchmark import load
from mlsys_lab.diffusion import pretrained
from mlsys_lab.diffusion.digits import Classifier
from mlsys_lab.diffusion.schedules import edm_grid


def test_a_short_run_writes_model_judge_record_and_picture(tmp_path, monkeypatch):
    monkeypatch.setattr(pretrained, "FOLDER", tmp_path)
    monkeypatch.setattr(pretrain_digits, "RECORDS", tmp_path)
    monkeypatch.setattr(pretrain_digits, "STEPS", 6)
    monkeypatch.setattr(pretrain_digits, "BATCH", 8)
    monkeypatch.setattr(pretrain_digits, "POINTS", 3)
    monkeypatch.setattr(pretrain_digits, "GRID", edm_grid(2))
    monkeypatch.setattr(pretrain_digits, "train_classifier", lambda digits: Classifier())
    pretrain_digits.main(["--sheet", str(tmp_path / "sheet.png")])
    assert [step for step, _ in pretrained.read_metadata()["curve"]] == [2, 4, 6]
    config = pretrained.read_config()
    assert config == pretrain_digits.CONFIG
    x = torch.zeros(2, 1, 8, 8)
    assert pretrained.load_digits_model()(x, torch.ones(2), torch.tensor([0, 10])).shape == x.shape
    assert pretrained.load_classifier()(x).shape == (2, 10)
    record = load(tmp_path / "pretrained-digits.json")
    assert set(record.parameters["figures"]) == {"held-out digits", "guidance 1", "guidance 2"}
    assert (tmp_path / "sheet.png").read_bytes().startswith(b"\x89PNG")
