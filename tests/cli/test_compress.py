"""`mlsys-lab compress`: its table holds against other libraries, and what it wrote is served, also as a draft."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest
import torch
from torch.distributions import Categorical, kl_divergence
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

from mlsys_lab.cli import main
from mlsys_lab.cli.calibration_text import HELD_OUT
from mlsys_lab.cli.compress import COURSE_MODELS
from mlsys_lab.efficiency.quantization import QuantizedLinear, load_checkpoint
from mlsys_lab.inference.engine import Engine, Request, SamplingParams
from mlsys_lab.inference.pretrained import DRAFT, FOLDER, TARGET, TOKENIZER, read_text
from mlsys_lab.inference.server.protocol import MODEL
from mlsys_lab.inference.speculative import ModelDrafter, make_drafter
from mlsys_lab.inference.speculative.compiled import CompiledDrafter
from mlsys_lab.inference.text import Tokenizer, load_tokenizer
from mlsys_lab.models import load
from tests.inference.huggingface_folder import TEXT, save_qwen
from tests.inference.server.serving import serving

Call = Callable[..., tuple[int, str, str]]
WINDOWS = 4
ROW = re.compile(r"^(\S.*?\S)  +(?:([\d.,]+)%? +)?([\d.,]+)%?$", re.MULTILINE)


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[None]:
    """Little text, few runs, and a bandwidth that is not measured."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mlsys_lab.cli.calibration_text.MAX_WINDOWS", WINDOWS)
        patch.setattr("mlsys_lab.cli.compress.RUNS", 1)
        patch.setattr("mlsys_lab.hardware.measure_copy_bandwidth", lambda: 1e10)
        yield


@pytest.fixture(scope="module")
def compressed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The course's target model in 4 bits, with GPTQ, and its draft model in the folder `draft` next to it."""
    folder = tmp_path_factory.mktemp("compressed")
    assert main(["compress", "mlsys-lab-target", str(folder / "target"), "--bits", "4", "--group", "32"]) == 0
    assert main(["compress", "mlsys-lab-draft", str(folder / "draft"), "--method", "rtn", "--bits", "8"]) == 0
    return folder / "target"


def read_table(out: str) -> dict[str, list[float]]:
    """Numbers of a table by the words of their row."""
    rows = (match.groups() for match in ROW.finditer(out))
    return {name: [float(value.replace(",", "")) for value in values if value] for name, *values in rows}


@torch.no_grad()
def test_the_table_holds_against_transformers(call: Call, tmp_path: Path) -> None:
    output, text = tmp_path / "deep" / "new", tmp_path / "text.txt"
    text.write_text(read_text("held-out")[:10_000])
    code, out, err = call("compress", "mlsys-lab-target", str(output), "--method", "rtn", "--text", str(text))
    assert (code, err) == (0, "") and f"serve it with: mlsys-lab serve --model {output}" in out
    assert sorted(path.name for path in output.parent.iterdir()) == ["new"]
    table = read_table(out)
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (FOLDER / TARGET, output)]
    assert table["size of the weights, bytes"] == sizes and sizes[1] < 0.4 * sizes[0]
    assert table["bits per weight, quantized layers with scales"] == [16, 4.5]
    ids = torch.tensor(load_tokenizer(FOLDER).encode_prompt(text.read_text()))
    windows = ids[: (len(ids) - 1) // 512 * 512 + 1].unfold(0, 513, 512)
    windows = windows[-(len(windows) // HELD_OUT) :]
    models = [AutoModelForCausalLM.from_pretrained(one, dtype=torch.float32) for one in (FOLDER / TARGET, output)]
    logits = [model(windows[:, :-1]).logits for model in models]
    losses = [F.cross_entropy(one.flatten(0, 1), windows[:, 1:].flatten()) for one in logits]
    assert table["perplexity, held-out text"] == [pytest.approx(loss.exp().item(), abs=2e-3) for loss in losses]
    divergence = kl_divergence(*(Categorical(logits=one) for one in logits)).mean().item()
    assert table["KL divergence, nats per token"] == [pytest.approx(divergence, rel=1e-2)]
    speeds, bounds = table["decoding on one thread, tokens/s"], table["its bound by memory bandwidth, tokens/s"]
    assert bounds[1] > 3 * bounds[0]
    assert table["fraction of the bound"] == [
        pytest.approx(100 * speed / bound, abs=0.06) for speed, bound in zip(speeds, bounds, strict=True)
    ]


@pytest.mark.parametrize("drafted", [False, True], ids=["alone", "drafted for"])
def test_what_was_compressed_is_served(compressed: Path, drafted: bool) -> None:
    tokenizer, model = load_tokenizer(compressed), load_checkpoint(compressed, dtype=torch.float32)
    assert isinstance(model.blocks[0].get_submodule("mlp.up"), QuantizedLinear)
    prompt = tokenizer.encode_prompt("The memory of a GPU")
    engine = Engine(model, num_blocks=8, compiled=True)
    engine.add_request(Request(prompt, 16, SamplingParams(temperature=0)))
    ((expected,),) = engine.run().values()
    draft = ["--draft", str(compressed.with_name("draft"))] if drafted else []
    with serving("--model", str(compressed), *draft) as served:
        client: openai.OpenAI = served.client()
        options = {"model": "target", "prompt": "The memory of a GPU", "max_tokens": 16, "temperature": 0}
        answer = client.completions.create(**options, extra_body={"ignore_eos": True})
        assert served.log.read_text() == ""
    assert answer.choices[0].text == Tokenizer.load(FOLDER / TOKENIZER).decode(expected.token_ids)


def test_a_compressed_draft_is_compiled(compressed: Path) -> None:
    draft = load_checkpoint(compressed.with_name("draft"), dtype=torch.float32)
    greedy, text = SamplingParams(temperature=0), load_tokenizer(FOLDER).encode_prompt("The memory of a GPU")
    drafter = make_drafter(draft)
    assert isinstance(drafter, CompiledDrafter)
    drafts = [one.propose(text, 8, greedy, torch.Generator()) for one in (drafter, ModelDrafter(draft))]
    assert drafts[0].token_ids == drafts[1].token_ids


def test_the_folder_has_the_course_s_tokenizer_and_is_compressed_from(compressed: Path, call: Call) -> None:
    ours = load_tokenizer(FOLDER)
    assert load_tokenizer(compressed).encode_prompt("naïve 100 %") == ours.encode_prompt("naïve 100 %")
    code, out, err = call("compress", str(compressed), str(compressed.with_name("twice")))
    assert (code, out) == (1, "") and "is quantised already" in err and not compressed.with_name("twice").exists()


def test_a_folder_of_another_family_with_its_own_text(tmp_path: Path, call: Call) -> None:
    folder, output = save_qwen(tmp_path / "qwen"), tmp_path / "new"
    (tmp_path / "text.txt").write_text("\n".join(TEXT))
    output.mkdir()  # an empty one is taken
    options = ["--bits", "8", "--int8-activations", "--transform", "smooth", "--text", str(tmp_path / "text.txt")]
    code, _, err = call("compress", str(folder), str(output), *options)
    assert (code, err) == (0, "")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (output / name).read_bytes() == (folder / name).read_bytes()
    layer = load_checkpoint(output).blocks[0].get_submodule("mlp.up")
    assert isinstance(layer, QuantizedLinear) and layer.activations is not None
    assert (
        load_checkpoint(output)(torch.tensor([[1, 2, 3]])) - load(folder)(torch.tensor([[1, 2, 3]]))
    ).abs().max() < 1


def test_the_names_of_the_course_s_models() -> None:
    assert list(COURSE_MODELS.values()) == [TARGET, DRAFT] and next(iter(COURSE_MODELS)) == MODEL


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--bits", "5"], "--bits: got 5, expected one of 2, 3, 4, 6, 8"),
        (["--group", "-1"], "--group: got -1, expected 1 or more inputs, or 0 for one scale per output"),
        (["--group", "48"], "groups do not divide the inputs: got groups of 48, 128 inputs"),
        (["--int8-activations"], "--int8-activations goes with int8 weights: expected --bits 8, one scale per output"),
        (["--seed", "-1"], "seed must not be negative: got -1"),
        (["--text", "missing.txt"], "no text to read: got missing.txt"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing_behind(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = call("compress", "mlsys-lab-target", "new", *options)
    assert (code, out) == (1, "") and words in err and err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_models_texts_and_folders_that_will_not_do(call: Call, tmp_path: Path) -> None:
    folder, new = save_qwen(tmp_path / "qwen"), str(tmp_path / "new")
    (tmp_path / "short.txt").write_text("What is a cache?")
    for arguments, words in (
        (["nowhere", new], "no such model: got nowhere, expected a folder with config.json and safetensors, or one of"),
        ([str(folder), new], "no text to calibrate and compare on: expected --text FILE"),
        ([str(folder), new, "--text", str(tmp_path / "short.txt")], "too little text: got"),
        ([str(folder), str(folder)], "the folder is not empty"),
    ):
        code, out, err = call("compress", *arguments)
        assert (code, out) == (1, "") and words in err and err.count("\n") == 1


def test_a_failure_after_writing_leaves_nothing_behind(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlsys_lab.cli.compress._measure_speeds", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["compress", "mlsys-lab-draft", str(tmp_path / "new"), "--method", "rtn"])
    assert not list(tmp_path.iterdir())
