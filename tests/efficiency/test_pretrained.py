"""The small model that comes with the package: what it knows of its grammar, and what a damaged file says."""

from __future__ import annotations

import pytest
from safetensors.torch import load_file, save_file

from mlsys_lab.efficiency import pretrained
from mlsys_lab.efficiency.grammar import Grammar
from mlsys_lab.errors import InputError, MissingToolError
from mlsys_lab.models import training


def test_the_model_s_loss_is_near_the_entropy_of_its_grammar() -> None:
    entropy = Grammar.random(pretrained.GRAMMAR_SEED).entropy
    found = training.loss(pretrained.load_grammar_model(), pretrained.sample_windows(64, seed=5)).item()
    assert entropy < found < 1.1 * entropy


def test_windows_follow_each_other_and_overlap_by_a_token() -> None:
    windows = pretrained.sample_windows(3, seed=5)
    assert windows.shape == (3, pretrained.CONTEXT + 1)
    assert (windows[1:, 0] == windows[:-1, -1]).all()


def test_a_missing_or_damaged_file_is_one_line(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, path = load_file(pretrained.FILE), tmp_path / "grammar.safetensors"
    assert pretrained.FILE.stat().st_size <= 200_000
    monkeypatch.setattr(pretrained, "FILE", path)
    with pytest.raises(MissingToolError, match=r"grammar\.safetensors is missing"):
        pretrained.load_grammar_model()
    save_file({name: weight for name, weight in weights.items() if name != "norm.weight"}, path)
    with pytest.raises(InputError, match=r"grammar\.safetensors is damaged"):
        pretrained.load_grammar_model()
    path.write_bytes(b"12345678")
    with pytest.raises(InputError, match=r"grammar\.safetensors is damaged"):
        pretrained.load_grammar_model()
