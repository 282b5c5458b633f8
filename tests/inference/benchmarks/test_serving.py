"""The serving programs of `make bench-gpu`, on tiny sizes and a CPU, and at their own on a stand-in for a GPU."""

from __future__ import annotations

import pytest
import torch

from mlsys_lab.flops.parameters import parameters
from mlsys_lab.kernels import cuda_cpp
from tests.bench import gpu
from tests.bench.kernels.entries import Machine
from tests.bench.workloads import serving
from tests.pretended_gpu import DEVICE, pretended_gpu

CPU = Machine("cpu", cuda_cpp.launch)
GOALS = {"gpu-serving-batch": {"transformers": 10.0}, "gpu-serving-ragged": {"ideal": 0.9}}


def written(answers) -> int:
    """Tokens of completions, of lists of them, or of rows."""
    if isinstance(answers, torch.Tensor):
        return answers.numel()
    return sum(len(one.token_ids) if hasattr(one, "token_ids") else written(one) for one in answers)


@pytest.mark.parametrize("entry", serving.ENTRIES, ids=lambda entry: entry.name)
def test_each_program_writes_what_it_is_to_write(entry):
    case = entry.make(CPU, *entry.tiny)
    assert case.wrong() == ""
    for name, call in {"ours": case.ours, **case.against}.items():
        assert written(call()) == case.amount_of(name), name
    lines = gpu.measured(entry, case, device="cpu")
    assert {line.record.name: line.asked for line in lines if line.asked} == {
        f"{entry.name}-against-{name}": asked for name, asked in GOALS[entry.name].items()
    }


def test_another_text_is_noticed():
    layers, width, *_ = serving.ENTRIES[0].tiny
    model = serving.make_model(CPU, layers, width)
    theirs = serving.make_theirs(model)
    checked, expected = serving.check(model, theirs)
    assert len({tuple(text.tolist()) for text in checked()}) == len(serving.CHECKED)
    with torch.no_grad():
        theirs.model.layers[-1].self_attn.q_proj.weight.mul_(-3)
    assert any(not torch.equal(*both) for both in zip(checked(), expected(), strict=True))


def test_the_ragged_load_has_the_ideal_s_means():
    entry = serving.ENTRIES[1]
    _, _, slots, prompt, writes, count = entry.sizes
    lengths = serving.ragged_lengths(prompt, writes, count)
    assert [sum(kind) / count for kind in zip(*lengths, strict=True)] == [prompt, writes]
    assert len(set(lengths)) > count / 2 and min(lengths)[0] == prompt // 8 and count >= 10 * slots


def test_at_full_size_a_step_stays_on_the_device_and_waits_twice():
    layers, width, slots, prompt, *_ = serving.ENTRIES[0].sizes
    config = serving.config(layers, width)
    assert round(parameters(config).total / 1e9, 1) == 1.1
    with pretended_gpu() as reads:
        model = serving.make_model(Machine(DEVICE, cuda_cpp.launch), layers, width)
        answers = serving.serve(model, serving.ask([(prompt, 2)] * slots, config.vocab_size), slots)
    assert written(answers) == 2 * slots and reads["tolist"] == reads["__bool__"] <= 6
