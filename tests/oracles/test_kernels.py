"""Published figures on fused kernels, from the package's own kernels and their costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mlsys_lab.configs.transformer import TransformerConfig
from mlsys_lab.flops.compute import training
from mlsys_lab.flops.roofline import bound_on
from mlsys_lab.hardware import device
from mlsys_lab.kernels.attention import cost
from mlsys_lab.kernels.softmax import cost as softmax_cost
from mlsys_lab.kernels.softmax import reference, softmax
from mlsys_lab.kernels.trace.traffic import total
from mlsys_lab.kernels.trace.triton_interpreter import record_launches
from tests.oracles.catalogue import oracles


class Passes(TorchDispatchMode):
    """Counts the numbers that torch's operations read and write, each of them a pass over its arguments and result."""

    read = written = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.read += sum(one.numel() for one in args if isinstance(one, torch.Tensor))
        self.written += result.numel()
        return result


def softmaxes(i):
    itemsize = 4
    read, written = softmax_cost.unfused(i["M"], i["N"], itemsize)
    _, fused = softmax_cost.forward(i["M"], i["N"], itemsize)
    return [read / itemsize, written / itemsize, (read + written) / fused]


def attention_ratios(i):
    """Memory limits both on the source's A100, so that traffic is their ratio at the roofline; the rest is printed."""
    sizes = zip(reversed(i["GFLOPs"]), i["hbm_GB"], strict=True)
    standard, fused = (bound_on(device("A100 40GB"), "fp16", flops * 1e9, size * 1e9) for flops, size in sizes)
    assert standard.limit == fused.limit == "memory"
    return [standard.time_s / fused.time_s, i["runtime_ms"][0] / i["runtime_ms"][1], i["GFLOPs"][0] / i["GFLOPs"][1]]


def attention_numbers(i):
    """Of one head in float32, with the constants of the package's counts divided out: 4, and 2 for keys and values."""
    itemsize, N, d = 4, i["N"], i["d"]
    square = cost.Shape(batch=1, heads=1, kv_heads=1, queries=N, keys=N, head_dim=d)
    naive = (cost.naive_bytes(square, block_m=N, itemsize=itemsize) - square.lse_bytes) / itemsize
    # Fast memory holds a block of queries. As many sequences of queries as fill whole blocks, then one's share.
    block = i["M_elems"] // d
    many = replace(square, queries=block * N)
    keys = (
        cost.flash_bytes(many, block, block_n=N, itemsize=itemsize)
        - many.lse_bytes
        - 2 * itemsize * many.query_elements
    )
    return [naive / 4, keys / itemsize / 2 / block]


COMPUTED = {"GP10": softmaxes, "FA01": attention_ratios, "FA02": attention_numbers}


@pytest.mark.parametrize("name", COMPUTED)
def test_published_figure(name: str) -> None:
    oracle = oracles()[name]
    oracle.check(*COMPUTED[name](oracle.inputs))


def test_gp10_is_what_torch_s_operations_and_the_fused_kernel_move() -> None:
    rows, width = 16, oracles()["GP10"].inputs["N"]
    x = torch.zeros(rows, width)
    with Passes() as steps:
        reference(x)
    with record_launches() as traces:
        softmax(x, step="one_pass")
    assert (4 * steps.read, 4 * steps.written) == softmax_cost.unfused(rows, width, 4)
    assert sum(total(trace).asked_bytes for trace in traces) == softmax_cost.forward(rows, width, 4)[1]


def test_fa01_contradicts_its_own_shape() -> None:
    oracle = oracles()["FA01"]
    i = oracle.inputs
    width = i["heads"] * i["head_dim"]
    config = TransformerConfig("attention", 1, width, i["heads"], 4 * width, 50_257, i["tokens"])
    with_attention, without = (training(config, tokens, batch) for tokens, batch in ((1024, 64), (1, 64 * 1024)))
    # One token attends to itself: the same matrices, a 1024th of the pairs.
    forward = (with_attention.forward - without.forward) * 1024 / 1023 / 1e9
    both = (with_attention.model - without.model) * 1024 / 1023 / 1e9
    assert forward == pytest.approx(oracle.arithmetic["forward_GFLOPs"], rel=0.001)
    assert both == pytest.approx(oracle.arithmetic["forward_and_backward_GFLOPs"], rel=0.001)
    assert forward > 4 * oracle.printed["standard_GFLOPs"]
