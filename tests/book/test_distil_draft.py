"""The command that distils a draft, with models as small as they come."""

import sys

import pytest
import torch

from book import distil_draft
from book.pretrain import Run
from mlsys_lab.efficiency.distillation import distillation_loss
from mlsys_lab.inference.pretrained import load_pair, read_text
from mlsys_lab.models import load, training

DRAFT = Run("draft", n_layers=1, d_model=32, steps=20, batch=1, rate=0.02, seed=3)


def test_a_folder_gets_a_draft_that_is_nearer_to_the_target(tmp_path, monkeypatch, capsys):
    pair = load_pair()
    target = pair.draft  # quicker than the target
    monkeypatch.setattr(distil_draft, "load_pair", lambda: pair._replace(target=target))
    monkeypatch.setattr(distil_draft, "RUN", DRAFT)
    monkeypatch.setattr(sys, "argv", ["distil_draft.py", str(tmp_path / "draft")])
    distil_draft.main()
    assert capsys.readouterr().out.endswith(f"mlsys-lab serve --draft {tmp_path / 'draft'}\n")
    draft, tokens = load(tmp_path / "draft", dtype=torch.float32), pair.tokenizer.encode(read_text("held-out"))[:400]
    assert draft.config == DRAFT.config
    with torch.no_grad():
        before, after = (
            distillation_loss(model(torch.tensor([tokens])), target(torch.tensor([tokens])))
            for model in (training.new_model(DRAFT.config, DRAFT.seed), draft)
        )
    assert after < 0.7 * before


def test_the_draft_has_the_size_of_the_package_s():
    assert distil_draft.RUN.config == load_pair().draft.config


def test_a_command_without_a_folder_says_what_is_missing(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["distil_draft.py"])
    with pytest.raises(SystemExit):
        distil_draft.main()
    assert "folder" in capsys.readouterr().err
