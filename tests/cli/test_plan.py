"""`mlsys-lab plan`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from mlsys_lab.configs.presets import preset
from mlsys_lab.flops.bounds import machine
from mlsys_lab.flops.memory import RECIPES
from mlsys_lab.flops.planner import plan
from mlsys_lab.hardware import device

Call = Callable[..., tuple[int, str, str]]
LLAMA = ("llama3-8b", "--devices", "16", "--batch", "32")
H100 = machine(device("H100"), "bf16")


def test_layouts_are_those_of_the_planner(call: Call) -> None:
    code, out, err = call(
        "plan", *LLAMA, "--sequence", "4096", "--recipe", "mixed18", "--network", "25", "--reserve", "5", "--all-pairs",
        "--json",
    )  # fmt: skip
    assert (code, err) == (0, "")
    on = replace(machine(device("H100"), "bf16", network_bytes_per_s=25e9), memory_bytes=H100.memory_bytes - 5e9)
    wanted = plan(preset("llama3-8b"), on, RECIPES["mixed18"], devices=16, batch=32, tokens=4096, causal=False)
    found = json.loads(out)
    assert found["not_counted"] == []
    losses = [one.pop("loss") for one in found["plans"]]
    assert found["plans"] == [one.as_dict() for one in wanted]
    assert losses[0] is None
    assert [(loss["part"], loss["time_s"]) for loss in losses[1:]] == [one.loss(wanted[0]) for one in wanted[1:]]


def test_what_is_given_of_a_layout_stays(call: Call) -> None:
    given = ("--tensor", "2", "--zero", "3", "--recompute", "full", "--no-sequence-parallel", "--micro-batch", "2")
    found = json.loads(call("plan", *LLAMA, *given, "--json")[1])["plans"]
    wanted = {
        "tensor": 2, "zero_stage": 3, "recomputation": "full", "sequence_parallel": False, "micro_batch": 2,
    }  # fmt: skip
    assert found
    for one in found:
        assert {name: one["layout"][name] for name in wanted} == wanted


def test_the_table_says_what_each_loses_by(call: Call) -> None:
    code, out, err = call("plan", *LLAMA, "--top", "3")
    assert (code, err) == (0, "") and len(out.splitlines()) == 9
    found = plan(preset("llama3-8b"), H100, RECIPES["mixed18"], devices=16, batch=32, tokens=8192)
    assert out.startswith("llama3-8b training on 16 × H100, 32 sequences of 8192 tokens\n")
    assert out.count("best,") == 1 and f"--top {len(found)} prints all" in out
    every = call("plan", *LLAMA, "--top", "100")[1]
    for line, one in zip(every.splitlines()[3:-3], found, strict=True):
        layout = one.layout
        assert line.split()[:3] == [str(layout.data), str(layout.tensor), str(layout.pipeline)]
        assert (
            f"{100 * one.best_mfu:.0f}, {100 * one.expected_mfu:.0f}" in line
            and f"{one.memory.total / 1e9:.1f}" in line
        )
    assert "--top" not in every
    words = {"bubble": "bubble +", "network": "network +", "link": "links +", "memory": "memory +"}
    for part in {one.loss(found[0])[0] for one in found[1:] if not one.missing_bytes} & set(words):
        assert words[part] in every


def test_what_does_not_fit_says_by_how_much(call: Call) -> None:
    code, out, _ = call("plan", "llama3-405b", "--devices", "8", "--batch", "8", "--top", "1")
    (best, *_) = plan(preset("llama3-405b"), H100, RECIPES["mixed18"], devices=8, batch=8, tokens=8192)
    assert code == 0
    assert f"nothing fits: {best.missing_bytes / 1e9:.2f} GB too much on a device, at least" in out
    assert f"{best.missing_bytes / 1e9:.1f} GB too much\n" in out and "best," not in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["lama3-8b", "--devices", "8", "--batch", "8"], "help: did you mean 'llama3-8b'?"),
        (["gpt2", "--devices", "0", "--batch", "8"], "devices out of range: got 0"),
        (["gpt2", "--devices", "8", "--batch", "-8"], "batch out of range: got -8"),
        (["gpt2", "--devices", "8", "--batch", "8", "--sequence", "4096"], "gpt2 has no positions for that many"),
        (["gpt2", "--devices", "13", "--batch", "8"], "no layout divides gpt2 so: got 13 devices, 8 sequences"),
        (["gpt2", "--devices", "8", "--batch", "8", "--tensor", "5"], "8 sequences of 1024 tokens, tensor 5"),
        (["gpt2", "--devices", "8", "--batch", "8", "--zero", "4"], "unknown ZeRO stage: got 4"),
        (["gpt2", "--devices", "8", "--batch", "8", "--recompute", "fulll"], "did you mean 'full'?"),
        (
            ["gpt2", "--devices", "8", "--batch", "8", "--reserve", "100"],
            "--reserve out of range: got 100.0, expected 0",
        ),
        (["gpt2", "--devices", "8", "--batch", "8", "--top", "0"], "--top out of range: got 0"),
        (["gpt2", "--devices", "8", "--batch", "8", "--network", "0"], "network_bytes_per_s must be positive: got 0.0"),
        (["gpt2", "--devices", "8", "--batch", "1" + 400 * "0"], "sizes too large to compute with"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_1(call: Call, arguments: list[str], said: str) -> None:
    code, out, err = call("plan", *arguments)
    assert code == 1 and not out
    assert said in err and err.startswith("mlsys-lab: ") and err.count("\n") == 1
