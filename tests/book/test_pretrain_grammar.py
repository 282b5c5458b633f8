"""The script that trains lab 13's model: what it writes is what the package reads."""

from __future__ import annotations

import pytest
import torch

from book import pretrain_grammar
from mlsys_lab.efficiency import pretrained


def test_a_short_run_writes_a_model(tmp_path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    for module in (pretrained, pretrain_grammar):
        monkeypatch.setattr(module, "FILE", tmp_path / "grammar.safetensors")
    pretrain_grammar.main(steps=2)
    assert capsys.readouterr().out.startswith("held-out loss ")
    logits = pretrained.load_grammar_model()(torch.zeros(1, 5, dtype=torch.int64))
    assert logits.shape == (1, 5, 64)
