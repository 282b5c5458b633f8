"""Operations whose time is that of moving their arrays."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType

import torch

from mlsys_lab.kernels import norms, softmax
from mlsys_lab.kernels.grey import cost as grey_cost
from mlsys_lab.kernels.grey import cuda_steps as grey
from mlsys_lab.kernels.grey import reference as grey_reference
from mlsys_lab.kernels.norms import cost as norms_cost
from mlsys_lab.kernels.reduction import cost as reduction_cost
from mlsys_lab.kernels.reduction import cuda_steps as reduction
from mlsys_lab.kernels.softmax import cost as softmax_cost
from mlsys_lab.kernels.transpose import cost as transpose_cost
from mlsys_lab.kernels.transpose import cuda_steps as transpose
from mlsys_lab.kernels.vector_add import cost as vector_add_cost
from mlsys_lab.kernels.vector_add import cuda_steps as vector_add
from tests.bench.kernels.entries import Call, Case, Entry, Machine

COPY = 0.90
"""Of the bandwidth of a copy, asked of what only moves memory."""
COPY_BACKWARD = 0.80


def moving(machine: Machine, ours: Call, expected: Call, size_bytes: float, **parameters: object) -> Case:
    return Case(ours, {"copy": machine.copy(int(size_bytes))}, expected, size_bytes, "TB/s", parameters)


def triton_add(machine: Machine, elements: int) -> Case:
    from mlsys_lab.kernels.vector_add import triton_steps

    x, y = machine.several(2, elements, dtype=torch.float32)
    ours = partial(triton_steps.run, "blocks", x, y)
    return moving(machine, ours, lambda: x + y, vector_add_cost.min_bytes(elements), dtype="float32")


def cuda_add(machine: Machine, elements: int, step: str) -> Case:
    x, y = machine.several(2, elements, dtype=torch.float32)
    ours = partial(vector_add.run, step, x, y, launch=machine.launch)
    return moving(machine, ours, lambda: x + y, vector_add_cost.min_bytes(elements), dtype="float32")


def cuda_grey(machine: Machine, rows: int, columns: int, step: str) -> Case:
    picture = machine.randn(rows, columns, 3, dtype=torch.float32)
    given = picture.permute(2, 0, 1).contiguous() if step == "planar" else picture
    ours = partial(grey.run, step, given, launch=machine.launch)
    size_bytes = grey_cost.min_bytes(rows * columns)
    return moving(machine, ours, lambda: grey_reference(picture), size_bytes, dtype="float32")


def cuda_sum(machine: Machine, elements: int, step: str) -> Case:
    x = machine.randn(elements, dtype=torch.float32).abs()
    ours = partial(reduction.run, step, x, launch=machine.launch)
    return moving(machine, ours, x.sum, reduction_cost.min_bytes(elements), dtype="float32")


def cuda_transpose(machine: Machine, rows: int, columns: int, step: str) -> Case:
    x = machine.randn(rows, columns, dtype=torch.float32)
    ours = partial(transpose.run, step, x, launch=machine.launch)
    size_bytes = transpose_cost.min_bytes(rows, columns)
    return moving(machine, ours, x.T.contiguous, size_bytes, dtype="float32")


def softmax_forward(machine: Machine, rows: int, width: int) -> Case:
    x = machine.randn(rows, width, dtype=torch.bfloat16)
    _, size_bytes = softmax_cost.forward(rows, width, x.itemsize)
    return moving(machine, lambda: softmax.softmax(x), lambda: x.softmax(-1), size_bytes, dtype="bfloat16")


def norm_inputs(machine: Machine, rows: int, width: int, bias: bool) -> list[torch.Tensor]:
    shapes = [(rows, width), (width,)] + [(width,)] * bias
    return [machine.randn(*shape, dtype=torch.bfloat16).requires_grad_() for shape in shapes]


def norm_calls(name: str, inputs: list[torch.Tensor]) -> tuple[Call, Call]:
    """Ours and torch's own."""
    x, *weights = inputs
    ours = partial(getattr(norms, name), *inputs, eps=1e-5)
    return ours, partial(getattr(torch.nn.functional, name), x, (x.shape[-1],), *weights, eps=1e-5)


def norm_forward(machine: Machine, rows: int, width: int, name: str) -> Case:
    inputs = [one.detach() for one in norm_inputs(machine, rows, width, name == "layer_norm")]
    ours, expected = norm_calls(name, inputs)
    _, size_bytes = norms_cost.forward(rows, width, 2, centred=name == "layer_norm")
    return moving(machine, ours, expected, size_bytes, dtype="bfloat16")


def norm_backward(machine: Machine, rows: int, width: int, name: str) -> Case:
    inputs = norm_inputs(machine, rows, width, name == "layer_norm")
    ours, expected = (call() for call in norm_calls(name, inputs))
    dy = torch.ones_like(ours) + inputs[0].detach().roll(1, 0)
    _, size_bytes = norms_cost.backward(rows, width, 2, centred=name == "layer_norm")
    gradients = [partial(torch.autograd.grad, y, inputs, dy, retain_graph=True) for y in (ours, expected)]
    return moving(machine, *gradients, size_bytes, dtype="bfloat16")


def steps(
    operation: str,
    module: ModuleType,
    make: Callable[..., Case],
    sizes: tuple[int, ...],
    tiny: tuple[int, ...],
    asked: float | None = COPY,
) -> list[Entry]:
    """All CUDA C++ steps of an operation; of the last, this share of copy bandwidth is asked."""
    last = list(module.STEPS)[-1]
    return [
        Entry(
            f"gpu-{operation}-cuda-{step}".replace("_", "-"),
            f"{operation} in CUDA C++, {step}",
            partial(make, step=step),
            sizes,
            tiny,
            {"copy": asked} if asked is not None and step == last else {},
        )
        for step in module.STEPS
    ]


ENTRIES = [
    Entry("gpu-add-triton", "x + y in Triton, fp32", triton_add, (2**27,), (1021,), {"copy": COPY}),
    *(
        Entry(
            f"gpu-softmax-{rows}x{width}",
            f"softmax of {rows}×{width} in bf16",
            softmax_forward,
            (rows, width),
            (3, width // 128 + 1),
            {"copy": COPY},
        )
        for rows, width in ((8192, 1024), (8192, 8192), (4096, 32768))
    ),
    *(
        Entry(
            f"gpu-{name.replace('_', '-')}-{direction}",
            f"{name} {direction} of 8192×8192 in bf16",
            partial(make, name=name),
            (8192, 8192),
            (5, 67),
            {"copy": asked},
        )
        for name in ("layer_norm", "rms_norm")
        for direction, make, asked in (("forward", norm_forward, COPY), ("backward", norm_backward, COPY_BACKWARD))
    ),
    *steps("add", vector_add, cuda_add, (2**27,), (1021,)),
    *steps("grey", grey, cuda_grey, (8192, 8192), (13, 17), asked=None),
    *steps("reduction", reduction, cuda_sum, (2**28,), (5003,)),
    *steps("transpose", transpose, cuda_transpose, (16384, 8192), (67, 131)),
]
