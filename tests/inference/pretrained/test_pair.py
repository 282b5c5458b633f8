"""The trained pair: what its records say is what its weights do; damaged and missing files are one line."""

import shutil
from math import exp
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from mlsys_lab.benchmark import load
from mlsys_lab.errors import InputError, MissingToolError
from mlsys_lab.inference import pretrained
from mlsys_lab.inference.engine import Request, SamplingParams
from mlsys_lab.inference.generate import generate
from mlsys_lab.inference.pretrained import FOLDER, load_pair, read_text
from mlsys_lab.inference.text import Message, encode_chat
from mlsys_lab.models import training

RECORDS = Path(__file__).parents[3] / "book" / "data" / "measurements"
MODELS = ("target", "draft")


@pytest.fixture(scope="module")
def pair():
    return load_pair()


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """A copy of the pair's files that a test may damage."""
    folder = tmp_path / "pretrained"
    shutil.copytree(FOLDER, folder)
    monkeypatch.setattr(pretrained, "FOLDER", folder)
    return folder


def perplexity(pair, name):
    ids = np.array(pair.tokenizer.encode(read_text("held-out")))
    return exp(training.mean_loss(getattr(pair, name), ids, pair.target.config.context))


def test_both_models_have_the_tokenizer_s_vocabulary_and_one_context(pair):
    sizes = {(model.config.vocab_size, model.config.context) for model in (pair.target, pair.draft)}
    assert sizes == {(pair.tokenizer.vocab_size, 512)}
    count = {name: sum(p.numel() for p in getattr(pair, name).parameters()) for name in MODELS}
    assert count["draft"] < count["target"] / 5
    assert count == {name: load(RECORDS / f"pretrained-{name}.json").parameters["parameters"] for name in MODELS}


def test_the_files_are_a_few_megabytes_and_in_16_bits(pair):
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < 4e6
    assert all(p.dtype == torch.bfloat16 for p in load_pair(dtype=torch.bfloat16).target.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_the_recorded_perplexity_is_that_of_the_weights(pair, name):
    record = load(RECORDS / f"pretrained-{name}.json")
    assert perplexity(pair, name) == pytest.approx(record.p50, rel=1e-3)
    losses = [held_out for _, _, held_out in record.parameters["curve"]]
    assert losses[0] > losses[-1] > 0 and exp(losses[-1]) == pytest.approx(record.p50, rel=0.02)
    assert record.p50 < pair.tokenizer.vocab_size / 10


def test_the_target_is_better_than_the_draft(pair):
    assert perplexity(pair, "target") < 0.9 * perplexity(pair, "draft")


@torch.no_grad()
def test_transformers_reads_the_same_model(pair):
    theirs = LlamaForCausalLM.from_pretrained(FOLDER / "target", dtype=torch.float32).eval()
    prompt = pair.tokenizer.encode("The memory of a GPU is")
    torch.testing.assert_close(theirs(torch.tensor([prompt])).logits, pair.target(torch.tensor([prompt])))
    ours = generate(pair.target, [Request(prompt, 20, SamplingParams(temperature=0))])[0][0].token_ids
    whole = theirs.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False, eos_token_id=None)
    assert whole[0, len(prompt) :].tolist() == list(ours)


def test_an_answer_ends(pair):
    question = encode_chat(pair.tokenizer, [Message("user", "What is bandwidth?")])
    end = pair.tokenizer.special_id("<|end|>")
    answer = generate(
        pair.target, [Request(question, 300, SamplingParams(seed=0, top_p=0.9), stop_token_sequences=[[end]])]
    )[0][0]
    assert answer.finish_reason == "stop" and len(answer.token_ids) > 5


def test_texts_are_held_out_and_for_calibration():
    assert len(read_text("held-out")) > 15_000 and len(read_text("calibration")) > 15_000
    paragraphs = [part for part in read_text("held-out").split("\n\n") if len(part) > 100]
    assert not [part for part in paragraphs if part in read_text("calibration")]


@pytest.mark.parametrize("name", ["tokenizer.json", "target", "draft"])
def test_a_missing_file_is_one_line(copied, name):
    shutil.move(copied / name, copied / "away")
    with pytest.raises(MissingToolError, match=f"a file of the trained models is missing: got .*{name}; help: install"):
        load_pair()


def test_a_damaged_file_is_one_line(copied):
    (copied / "draft" / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(InputError, match="is not safetensors") as caught:
        load_pair()
    assert "\n" not in str(caught.value)


def test_a_missing_text_is_one_line(copied):
    (copied / "held-out.txt").unlink()
    with pytest.raises(MissingToolError, match="a file of the trained models is missing"):
        read_text("held-out")
