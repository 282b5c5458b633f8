"""Adapters as further models: one is trained here, and requests of one batch choose among it, another and the base."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np
import openai
import pytest

from mlsys_lab.cli import main
from mlsys_lab.inference.adapters import apply_adapter, load_adapter, new_adapter, save_adapter, train_adapter
from mlsys_lab.inference.engine import Request, SamplingParams
from mlsys_lab.inference.generate import generate
from mlsys_lab.inference.pretrained import load_pair
from mlsys_lab.inference.server.protocol import MODEL
from mlsys_lab.inference.text import Detokenizer, Stream
from mlsys_lab.inference.text.chat import END
from tests.inference.adapters.making import strong
from tests.inference.making import build
from tests.inference.server.serving import COMMAND, events, serving

PAIR = load_pair()
SAYING = "A cache is a promise that somebody will ask again. "
PROMPTS = (
    "A cache is a",
    "A cache is a promise that somebody will",
    "The memory of a GPU is not the memory of a",
    "def",
)
ASKED = [(model, prompt) for prompt in PROMPTS for model in (MODEL, "parrot", "odd")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two adapters on disk: one has learnt a saying by heart, one says nothing in particular."""
    parrot = new_adapter(PAIR.target, 4, lora_alpha=8, targets=("query", "value", "up", "down"), seed=0)
    ids = np.array(PAIR.tokenizer.encode(SAYING) * 20, dtype=np.int64)
    losses = train_adapter(PAIR.target, parrot, ids, batch_size=4, seq_len=48, steps=40, lr=0.01, seed=0)
    assert losses[-1] < losses[0] / 4
    odd = strong(PAIR.target, 2, 1, ("key", "out"), alpha=0.5)
    made = {name: tmp_path_factory.mktemp("adapters") / name for name in ("parrot", "odd")}
    for name, adapter in (("parrot", parrot), ("odd", odd)):
        save_adapter(adapter, made[name])
    return made


@pytest.fixture(scope="module")
def served(folders):
    """A server of both, with less room than a batch asks for: somebody is always preempted or waits."""
    options = [word for name, folder in folders.items() for word in ("--adapter", f"{name}={folder}")]
    with serving(*options, "--blocks", "20", "--sequences", "6") as running:
        yield running
        running.wait_until_idle()
        assert running.end() == 0 and running.log.read_text() == ""


@pytest.fixture(scope="module")
def client(served):
    with served.client() as made:
        yield made


def write(folders, model, prompt, most):
    """What `generate` writes, under one adapter and for nobody else."""
    end = PAIR.tokenizer.special_id(END)
    request = Request(
        [end, *PAIR.tokenizer.encode(prompt)],
        most,
        SamplingParams(temperature=0),
        stop_token_sequences=[[end]],
        make_detokenizer=lambda: Detokenizer(Stream(PAIR.tokenizer)),
    )
    under = nullcontext() if model == MODEL else apply_adapter(PAIR.target, load_adapter(folders[model], PAIR.target))
    with under:
        return generate(PAIR.target, [request])[0][0].text


def test_requests_of_one_batch_get_what_each_adapter_writes_alone(client, folders):
    def complete(asked):
        model, prompt = asked
        answer = client.completions.create(model=model, prompt=prompt, max_tokens=40, temperature=0)
        assert answer.model == model
        return answer.choices[0].text

    with ThreadPoolExecutor(len(ASKED)) as pool:
        together = list(pool.map(complete, ASKED * 2))  # the second time, prefixes may be in the cache
    expected = [write(folders, model, prompt, 40) for model, prompt in ASKED]
    assert together == expected * 2
    assert all(len(set(expected[first : first + 3])) > 1 for first in range(0, len(expected), 3))
    assert (PROMPTS[0] + expected[1]).startswith(SAYING.strip())


def test_models_are_the_base_and_its_adapters(client):
    listed = client.models.list().data
    assert [(one.id, getattr(one, "parent", None)) for one in listed] == [
        (MODEL, None),
        ("parrot", MODEL),
        ("odd", MODEL),
        ("mlsys-lab-digits", None),
    ]
    assert client.models.retrieve("odd").object == "model"
    said = f"no such model: got 'even', expected one of '{MODEL}', 'parrot', 'odd'"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("even")
    assert caught.value.body["message"] == f"{said}, 'mlsys-lab-digits'"
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="even", messages=[{"role": "user", "content": "?"}])
    assert (caught.value.body["message"], caught.value.body["code"]) == (said, "model_not_found")


def test_a_stream_names_its_adapter_and_metrics_say_what_adapters_take(served, folders):
    *chunks, last = events(served.stream({"model": "parrot", "prompt": "A cache", "max_tokens": 3, "temperature": 0}))
    assert last == "[DONE]" and {chunk["model"] for chunk in chunks} == {"parrot"}
    # Two adapters, filled up to rank 4 beside every matrix that one of them is beside, in fp32.
    config = PAIR.target.config
    sides = {"query": 256, "key": 192, "value": 192, "out": 256, "up": 512, "down": 512}
    assert served.metrics()["mlsys_lora_adapter_bytes"] == 2 * 4 * 4 * config.n_layers * sum(sides.values())


@pytest.mark.parametrize(
    "given, said",
    [
        (["parrot"], "--adapter: got parrot, expected NAME=FOLDER, each name once"),
        (["a=.", "a=."], "--adapter: got a=., expected NAME=FOLDER, each name once"),
        (["a=nowhere"], "no such adapter: got nowhere, expected a folder in PEFT's format"),
        ([f"{MODEL}=."], f"invalid adapter name: got '{MODEL}', expected 1 to 64 letters"),
        (["a/b=."], "invalid adapter name: got 'a/b', expected 1 to 64 letters"),
    ],
)
def test_options_that_cannot_be_are_said_in_one_line(given, said, capsys):
    assert main(["serve", *(word for one in given for word in ("--adapter", one))]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"mlsys-lab: {said}") and error.count("\n") == 1


@pytest.mark.parametrize("engine", ["process", "ray"])
def test_an_adapter_of_another_model_ends_the_server_before_it_answers(engine, tmp_path):
    save_adapter(strong(build(), 2, 0, ("query",)), tmp_path)
    command = [COMMAND, "serve", "--port", "0", "--engine", engine, "--adapter", f"other={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = (
        f"mlsys-lab: {tmp_path}: A and B of blocks.0.attention.query have other shapes: got (2, 16) and (16, 2), "
        "expected (2, 128) and (128, 2); help: it may be an adapter of another model\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)
