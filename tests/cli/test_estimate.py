"""`mlsys-lab estimate`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlsys_lab.configs.presets import preset
from mlsys_lab.flops.bounds import machine
from mlsys_lab.flops.estimate import estimate_serving, estimate_training
from mlsys_lab.flops.layout import Layout
from mlsys_lab.flops.memory import RECIPES
from mlsys_lab.hardware import device

Call = Callable[..., tuple[int, str, str]]
LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 256,
}


def figures(call: Call, *arguments: str) -> dict[str, Any]:
    code, out, err = call("estimate", *arguments, "--json")
    assert (code, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


def test_training_is_the_pure_function_s_answer(call: Call) -> None:
    found = figures(
        call, "llama3-8b", "--data", "8", "--tensor", "2", "--zero", "3", "--recompute", "selective",
        "--sequence-parallel", "--micro-batch", "2", "--batch", "64", "--sequence", "4096", "--recipe", "mixed18",
        "--price", "2.5", "--network", "25",
    )  # fmt: skip
    layout = Layout(data=8, tensor=2, zero_stage=3, recomputation="selective", sequence_parallel=True, micro_batch=2)
    on = machine(device("H100"), "bf16", network_bytes_per_s=25e9)
    wanted = estimate_training(
        preset("llama3-8b"), on, layout, RECIPES["mixed18"], batch=64, tokens=4096, price_per_hour=2.5
    )
    assert found == wanted.as_dict() | {"fix": "", "not_counted": []}


def test_serving_too_with_narrow_formats(call: Call) -> None:
    found = figures(
        call, "mixtral-8x7b", "--serve", "--device", "h200", "--weights", "fp8", "--cache", "int8", "--batch", "16",
        "--sequence", "1024",
    )  # fmt: skip
    on = machine(device("H200"), "fp8")
    wanted = estimate_serving(
        preset("mixtral-8x7b"), on, Layout(), batch=16, tokens=1024, weight_bytes=1, cache_bytes=1
    )
    assert found == wanted.as_dict() | {"fix": "", "not_counted": []}


def test_what_is_left_out_is_the_context_and_one_sequence_a_rank(call: Call) -> None:
    assert figures(call, "gpt2", "--data", "4") == figures(
        call, "gpt2", "--data", "4", "--batch", "4", "--sequence", "1024"
    )
    long = figures(call, "llama3-405b", "--tensor", "8", "--pipeline", "2")
    assert long == figures(call, "llama3-405b", "--tensor", "8", "--pipeline", "2", "--sequence", "8192")


def test_the_table_says_what_binds_and_what_it_costs(call: Call) -> None:
    code, out, err = call("estimate", "llama3-8b", "--serve", "--batch", "16", "--price", "2")
    assert (code, err) == (0, "")
    assert "llama3-8b serving on 1 × H100\n" in out
    assert "parameters 8.03 billion; on a device 8.03" in out
    assert "fits, with" in out and "of 85.90 to spare" in out
    assert "decode: bound by memory" in out and "prefill: bound by compute" in out
    assert "cost of a million tokens" in out
    training = call("estimate", "mixtral-8x7b", "--data", "8", "--expert", "8", "--zero", "3")[1]
    assert "on 8 × H100 (data 8, expert 8)" in training and "of which a token uses 12.88" in training
    assert "links in the node" in training and "highest possible MFU" in training


def test_what_does_not_fit_comes_with_the_smallest_change_that_does(call: Call) -> None:
    _, out, _ = call("estimate", "llama2-7b", "--data", "8", "--batch", "8", "--recompute", "full")
    assert "does not fit" in out and "most of it moments; it fits with ZeRO stage 1, on 8 devices" in out
    found = figures(call, "llama2-7b", "--data", "8", "--batch", "8", "--recompute", "full")
    assert (found["fits"], found["fix"]) == (False, "ZeRO stage 1, on 8 devices")
    assert figures(call, "llama2-7b", "--data", "8", "--batch", "8", "--recompute", "full", "--zero", "1")["fits"]
    _, out, _ = call("estimate", "llama3-405b", "--device", "T4")
    assert "no three changes of the layout make it fit" in out
    # Sequence parallelism is the first change that is tried, where the sequence divides.
    long = ("llama3-8b", "--tensor", "2", "--data", "4", "--zero", "3", "--batch", "4", "--sequence")
    assert figures(call, *long, "22528")["fix"] == "sequence parallelism, on 8 devices"
    assert figures(call, *long, "22529")["fix"] == "full recomputation, on 8 devices"


def test_a_config_json_and_its_folder(call: Call, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    by_file = figures(call, str(tmp_path / "config.json"))
    assert by_file == figures(call, str(tmp_path))
    assert by_file["parameters"] == 2 * 100 * 64 + 2 * (64 * (64 + 32 + 32 + 64) + 3 * 64 * 128 + 2 * 64) + 64


def test_what_a_config_json_asks_for_beyond_the_arithmetic_is_said(call: Call, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"model_type": "mistral", "sliding_window": 64}))
    code, out, _ = call("estimate", str(tmp_path))
    assert code == 0 and "not counted: " in out
    assert len(figures(call, str(tmp_path))["not_counted"]) == 1


def test_a_preset_s_name_is_not_taken_for_a_folder(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt2").mkdir()
    assert figures(call, "gpt2")["parameters"] == 124_439_808
    (tmp_path / "gpt2" / "config.json").write_text(json.dumps(LLAMA))
    assert figures(call, "gpt2")["parameters"] < 10**6


def test_this_machine_s_cpu(call: Call) -> None:
    found = figures(call, "gpt2", "--device", "cpu", "--recipe", "fp32")
    assert 1e-3 < found["bounds"]["step"]["time_s"] < 1e3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["lama3-8b"], "no such preset: got 'lama3-8b'"),
        (["lama3-8b"], "help: did you mean 'llama3-8b'?"),
        (["gpt2", "--device", "H10"], "did you mean 'H100'?"),
        (["gpt2", "--tensor", "5"], "query heads do not divide evenly: got 12 among 5 tensor-parallel ranks"),
        (["gpt2", "--pipeline", "13"], "a model chunk without a layer: got 12 layers for 13 model chunks"),
        (["gpt2", "--serve", "--pipeline", "2", "--interleave", "2"], "--interleave means nothing when serving"),
        (["gpt2", "--interleave", "2"], "a model of one stage has no chunks to interleave: got 2 of them"),
        (["gpt2", "--data", "-1"], "Layout.data out of range: got -1"),
        (["gpt2", "--batch", "-1"], "the batch does not divide evenly: got -1 sequences"),
        (["gpt2", "--sequence", "0"], "tokens of a sequence out of range: got 0"),
        (
            ["gpt2", "--tensor", "2", "--sequence-parallel", "--sequence", "1023"],
            "sequence parallelism does not divide evenly: got 1023 tokens among 2 tensor-parallel ranks",
        ),
        (["gpt2", "--sequence", "2048"], "gpt2 has no positions for that many tokens"),
        (["gpt2", "--zero", "4"], "unknown ZeRO stage: got 4"),
        (["gpt2", "--recompute", "fulll"], "did you mean 'full'?"),
        (["gpt2", "--recipe", "mixed"], "unknown precision recipe: got 'mixed'"),
        (["gpt2", "--serve", "--weights", "int3"], "unknown format: got 'int3'"),
        (["gpt2", "--serve", "--sequence-parallel"], "--sequence-parallel means nothing when serving"),
        (["gpt2", "--serve", "--zero", "3"], "it belongs to training"),
        (["gpt2", "--cache", "int8"], "--cache means nothing when training"),
        (["gpt2", "--serve", "--cache", "bf17"], "did you mean 'bf16'?"),
        (["gpt2", "--price", "-3"], "a price cannot be so: got -3.0"),
        (["gpt2", "--network", "0"], "network_bytes_per_s must be positive: got 0.0"),
        (["gpt2", "--node", "0"], "--node out of range: got 0"),
        (["gpt2", "--device", "TPU v5e", "--recipe", "fp32"], "TPU v5e has no fp32 peak"),
        (["gpt2", "--data", "1" + 200 * "0", "--batch", "1" + 400 * "0"], "sizes too large to compute with"),
        (["no/such/config.json"], "cannot read no/such/config.json: got No such file or directory"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_1(call: Call, arguments: list[str], said: str) -> None:
    code, out, err = call("estimate", *arguments)
    assert code == 1 and not out
    assert said in err and err.startswith("mlsys-lab: ") and err.count("\n") == 1


def test_an_unknown_architecture_is_one_line(call: Call, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    code, _, err = call("estimate", str(tmp_path))
    assert code == 1 and "unknown architecture: got model_type 't5'" in err and err.count("\n") == 1


def test_active_parameters_come_with_their_convention_and_the_publisher_s_own(call: Call) -> None:
    _, out, _ = call("estimate", "deepseek-v3")
    assert "a token uses 37.55 (embedding and head counted whole; published: 37, without the embedding)" in out
    assert "a token uses" not in call("estimate", "llama3-8b")[1]


def test_expected_figures_stand_next_to_the_bound(call: Call) -> None:
    step = figures(call, "llama3-8b", "--data", "8", "--zero", "1", "--batch", "64")
    bound = step["bounds"]["step"]
    in_turn = sum(bound[f"{part}_s"] for part in ("compute", "memory", "link", "network"))
    assert step["expected_s"]["step"] == pytest.approx(in_turn / 0.65)
    assert step["expected_mfu"] == pytest.approx(step["mfu"] * bound["time_s"] * 0.65 / in_turn)
    served = figures(call, "llama3-8b", "--serve")
    assert served["expected_s"]["decode"] == pytest.approx(served["bounds"]["decode"]["time_s"] / 0.6)
    _, out, _ = call("estimate", "llama3-8b", "--data", "8", "--zero", "1", "--batch", "64")
    assert f"highest possible MFU {step['mfu']:.1%}, expected {step['expected_mfu']:.1%}" in out
    assert "expected time" in out
