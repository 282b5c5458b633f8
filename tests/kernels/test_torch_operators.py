"""Every operator that the kernels register with torch, within torch.compile and on fake tensors."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses import FakeTensorMode

from mlsys_lab.kernels import operation
from mlsys_lab.kernels.attention import attention
from mlsys_lab.kernels.cross_entropy import cross_entropy
from mlsys_lab.kernels.decode_attention import decode_attention
from mlsys_lab.kernels.matmul import matmul
from mlsys_lab.kernels.norms import layer_norm, rms_norm
from mlsys_lab.kernels.runtime import on_gpu, triton_interprets
from mlsys_lab.kernels.softmax import softmax
from mlsys_lab.kernels.vector_add import vector_add
from tests.kernels.operators import with_gradients

FOLDER = Path(operation.__file__).parent
DEVICE = "cuda" if on_gpu() and not triton_interprets() else "cpu"
"""Where kernels run in this process."""
TARGETS = torch.tensor([2, 0, 4], device=DEVICE)
TABLE, LENGTHS = torch.tensor([[0, 1], [2, 0]], device=DEVICE), torch.tensor([5, 3], device=DEVICE)

CALLS: dict[str, tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...], set[str]]] = {
    "vector_add": (lambda x, y: vector_add(x, y, language="triton"), ((3, 5), (3, 5)), {"vector_add"}),
    "matmul": (lambda a, b: matmul(a, b, language="triton"), ((3, 5), (5, 4)), {"matmul"}),
    "softmax": (softmax, ((3, 5),), {"softmax", "softmax_backward"}),
    "layer_norm": (layer_norm, ((3, 5), (5,), (5,)), {"norm", "norm_backward"}),
    "rms_norm": (rms_norm, ((3, 5), (5,)), {"norm", "norm_backward"}),
    "cross_entropy": (lambda x: cross_entropy(x, TARGETS), ((3, 5),), {"cross_entropy", "cross_entropy_backward"}),
    "cross_entropy in place": (
        lambda x: cross_entropy(1 * x, TARGETS, step="in_place"),
        ((3, 5),),
        {"cross_entropy_in_place"},
    ),
    "attention": (
        lambda q, k, v: attention(q, k, v, causal=True),
        ((1, 2, 4, 8), (1, 1, 6, 8), (1, 1, 6, 8)),
        {"attention", "attention_backward"},
    ),
    "decode_attention": (
        lambda q, k, v: decode_attention(q, k, v, TABLE, LENGTHS),
        ((2, 2, 8), (3, 4, 1, 8), (3, 4, 1, 8)),
        {"decode_attention"},
    ),
}
"""A function, the shapes of its differentiable arguments, and the operators that it and its gradient call."""


def drawn(shapes: tuple[tuple[int, ...], ...]) -> list[torch.Tensor]:
    return [torch.randn(shape, device=DEVICE) for shape in shapes]


def test_every_operator_is_here() -> None:
    for file in FOLDER.glob("*/triton_*.py"):
        importlib.import_module(f"mlsys_lab.kernels.{file.parent.name}.{file.stem}")
    registered = {
        name.removeprefix("mlsys_lab::")
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("mlsys_lab::")
    }
    assert registered == set().union(*(operators for _, _, operators in CALLS.values()))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch.compile does
@pytest.mark.parametrize("name", CALLS)
def test_one_graph_holds_the_operator_and_gives_the_same_numbers(name: str) -> None:
    function, shapes, operators = CALLS[name]
    seen = ""

    def keep(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        nonlocal seen
        seen += str(graph.graph)
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    whole = torch.compile(function, backend=aot_autograd(fw_compiler=keep, bw_compiler=keep), fullgraph=True)
    inputs = drawn(shapes)
    for mine, other in zip(with_gradients(whole, *inputs), with_gradients(function, *inputs), strict=True):
        assert torch.equal(mine, other)
    assert all(f"mlsys_lab.{one}.default" in seen for one in operators)


@pytest.mark.parametrize("name", CALLS)
def test_fake_tensors_have_the_shapes_of_true_ones(name: str) -> None:
    function, shapes, _ = CALLS[name]
    inputs = drawn(shapes)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = with_gradients(function, *(mode.from_tensor(one) for one in inputs))
    for mine, other in zip(fake, with_gradients(function, *inputs), strict=True):
        assert (mine.shape, mine.dtype, mine.stride()) == (other.shape, other.dtype, other.stride())
