"""The command that trains the pair, with a model as small as they come."""

import dataclasses

import numpy as np
import pytest

from book import pretrain
from mlsys_lab.benchmark import load
from mlsys_lab.inference.text import learn
from mlsys_lab.inference.text.chat import END, SPECIAL
from mlsys_lab.models import load as load_model

TINY = pretrain.Run("tiny", n_layers=1, d_model=32, steps=30, batch=1, rate=0.02, seed=3)


def test_a_run_leaves_a_model_and_a_record_with_its_curve(tmp_path, monkeypatch):
    monkeypatch.setattr(pretrain, "FOLDER", tmp_path)
    monkeypatch.setattr(pretrain, "RECORDS", tmp_path)
    ids = np.tile(np.arange(40), 60)
    pretrain.train(TINY, ids, ids[:1200])
    record = load(tmp_path / "pretrained-tiny.json")
    steps, losses, held_out = zip(*record.parameters["curve"], strict=True)
    assert list(steps) == list(range(2, 31, 2)) and losses[0] > losses[-1] and held_out[0] > held_out[-1]
    assert record.p50 == pytest.approx(np.exp(held_out[-1]), rel=0.02) and record.seed == 3
    assert dataclasses.replace(load_model(tmp_path / "tiny").config) == TINY.config


def test_every_text_that_is_trained_on_has_its_end():
    tokenizer = learn("a section " * 9, 300, SPECIAL)
    ids = pretrain.encode(tokenizer, ["first section", "second section"])
    asked = pretrain.questions()
    assert (ids == tokenizer.special_id(END)).sum() == 2 + 2 * len(asked)
    assert "first section" in tokenizer.decode(ids)
