"""`mlsys-lab export`: what training wrote is what `transformers` reads, and what the server serves."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import openai
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from mlsys_lab.inference.pretrained import FOLDER, TOKENIZER
from mlsys_lab.inference.text import Message, Tokenizer, encode_chat, load_tokenizer
from mlsys_lab.models import load
from mlsys_lab.parallel.train.__main__ import main as train
from mlsys_lab.parallel.train.checkpoint import load_model, newest
from tests.inference.huggingface_folder import save_llama, save_qwen
from tests.inference.server.serving import serving

Call = Callable[..., tuple[int, str, str]]
SMALL = [
    "--steps",
    "4",
    "--save-interval",
    "2",
    "--batch",
    "4",
    "--seq-len",
    "32",
    "--layers",
    "2",
    "--hidden-size",
    "32",
]
TEXTS = ["The memory of a GPU", "naïve 100 % — 你好\n\n  x", ""]


@pytest.fixture(scope="module", params=["data=2,tensor=2,zero=1", "data=2,expert=2"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of a short run on four ranks, or of one with experts on two."""
    folder = tmp_path_factory.mktemp("run")
    experts = ["--experts", "4"] if "expert" in request.param else []
    assert train([*SMALL, *experts, "--layout", request.param, "--checkpoints", str(folder)]) == 0
    return folder


@pytest.fixture
def exported(run: Path, tmp_path: Path, call: Call) -> Path:
    code, out, err = call("export", str(run), str(tmp_path / "exported"))
    assert (code, err) == (0, "") and "step-00000004 is now in" in out
    return tmp_path / "exported"


def test_transformers_computes_the_same_logits(run: Path, exported: Path) -> None:
    ids = torch.tensor([[5, 700, 33, 1020, 9]])
    with torch.no_grad():
        trained, loaded = (model(ids) for model in (load_model(newest(run, print)), load(exported).eval()))
        theirs = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32).eval()(ids).logits
    torch.testing.assert_close(loaded, trained, rtol=0, atol=0)
    torch.testing.assert_close(theirs, trained, rtol=1e-5, atol=1e-5)


def test_the_tokenizer_is_the_course_s(exported: Path) -> None:
    own, theirs = Tokenizer.load(FOLDER / TOKENIZER), PreTrainedTokenizerFast.from_pretrained(exported)
    served = load_tokenizer(exported)
    for text in TEXTS:
        assert theirs(text, add_special_tokens=False).input_ids == own.encode(text)
        assert served.encode_prompt(text) == load_tokenizer(FOLDER).encode_prompt(text)
    chat = [Message("system", "Be brief."), Message("user", "What is a cache?")]
    assert served.encode_chat(chat) == encode_chat(own, chat)
    assert served.stop_token_ids == load_tokenizer(FOLDER).stop_token_ids
    assert all(served.token_bytes(token) == own.token_bytes(token) for token in range(own.vocab_size))


def test_what_was_trained_is_served(exported: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32).eval()
    ids = load_tokenizer(exported).encode_prompt("The memory")
    expected = model.generate(torch.tensor([ids]), max_new_tokens=8, do_sample=False, eos_token_id=None)[0, len(ids) :]
    with serving("--model", str(exported)) as served:
        client: openai.OpenAI = served.client()
        options = {"model": "exported", "prompt": "The memory", "max_tokens": 8, "temperature": 0, "logprobs": 0}
        answer = client.completions.create(**options, extra_body={"ignore_eos": True})
        tokens = served.ask("POST", "/tokenize", {"model": "exported", "prompt": "The memory"})[1]["tokens"]
    assert tokens == ids
    own = Tokenizer.load(FOLDER / TOKENIZER)
    assert answer.choices[0].text == own.decode(expected.tolist())


@pytest.mark.parametrize("write", [save_qwen, save_llama], ids=["qwen2", "llama"])
def test_a_fine_tuned_model_keeps_its_tokenizer_and_architecture(
    write: Callable[[Path], Path], tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, checkpoints = write(tmp_path / "init"), str(tmp_path / "run")
    turns = [{"role": "user", "content": "What is a cache?"}, {"role": "assistant", "content": "It saves work."}]
    (tmp_path / "chat.jsonl").write_text("\n".join([json.dumps({"messages": turns})] * 8))
    argv = ["--init", str(folder), "--chat", str(tmp_path / "chat.jsonl"), "--steps", "6", "--batch", "4"]
    assert train([*argv, "--lr", "0.01", "--layout", "data=2,zero=2", "--checkpoints", checkpoints]) == 0
    said = capsys.readouterr().out
    first, last = re.search(r"step +1  loss ([\d.]+)", said), re.search(r"validation loss ([\d.]+)", said)
    assert first and last and float(last[1]) < float(first[1]) - 0.5
    assert call("export", checkpoints, str(tmp_path / "exported"))[0] == 0
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (tmp_path / "exported" / name).read_bytes() == (folder / name).read_bytes()
    theirs, before = (AutoModelForCausalLM.from_pretrained(one).eval() for one in (tmp_path / "exported", folder))
    assert type(theirs) is type(before)
    ids = torch.tensor([load_tokenizer(folder).encode_chat([Message("user", "What is a cache?")])])
    with torch.no_grad():
        trained, logits = load_model(newest(Path(checkpoints), print))(ids), theirs(ids).logits
    torch.testing.assert_close(logits, trained, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(logits, before(ids).logits, atol=1e-2)


def test_mistakes_are_one_line(tmp_path: Path, call: Call) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    code, out, err = call("export", str(tmp_path), str(tmp_path / "new"))
    assert (code, out) == (1, "") and "no complete checkpoint: got" in err and "train with --checkpoints" in err
    code, out, err = call("export", str(tmp_path), str(tmp_path / "full"))
    assert (code, out) == (1, "") and "the folder is not empty" in err and (tmp_path / "full" / "file").exists()
