"""Matrix products: the ladder in CUDA C++, the tensor cores, and Triton's."""

from __future__ import annotations

from functools import partial

import torch

from mlsys_lab.kernels.matmul import cost
from mlsys_lab.kernels.matmul import cuda_steps as ladder
from tests.bench.kernels.entries import Case, Entry, Machine

LAST_FP32, TENSOR_CORES, TRITON = 0.85, 0.5, 0.92
"""Of cuBLAS's speed, asked of the ladder's last step in fp32, of its step in bf16, of the matmul in Triton."""
SLOW = {"naive": 5, "coalesced": 10}
"""Rounds of steps that take long."""
TUNED = {"warp_tile": ladder.TUNED_FP32, "tensor_cores": ladder.TUNED_BF16}


def factors(machine: Machine, n: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = machine.several(2, n, n, dtype=dtype)
    return a, b


def cuda_product(machine: Machine, n: int, step: str) -> Case:
    """A step with the fastest of its tiles on this machine."""
    dtype = torch.bfloat16 if step == "tensor_cores" else torch.float32
    a, b = factors(machine, n, dtype)
    choices = {
        str(tiles): partial(ladder.run, step, a, b, tiles=tiles, launch=machine.launch)
        for tiles in TUNED.get(step, (None,))
    }
    tiles, ours = machine.fastest(choices) if len(choices) > 1 else next(iter(choices.items()))
    return Case(
        ours,
        {"cublas": lambda: a @ b},
        lambda: (a.double() @ b.double()).to(dtype),
        cost.flops(n, n, n),
        "TFLOP/s",
        {"dtype": str(dtype), "tiles": tiles},
    )


def triton_product(machine: Machine, n: int, step: str) -> Case:
    from mlsys_lab.kernels.matmul import triton_steps

    a, b = factors(machine, n, torch.bfloat16)
    ours, expected = partial(triton_steps.matmul, a, b, step=step), lambda: a @ b
    return Case(ours, {"cublas": expected}, expected, cost.flops(n, n, n), "TFLOP/s", {"dtype": "torch.bfloat16"})


ENTRIES = [
    *(
        Entry(
            f"gpu-matmul-triton-{step}-{n}",
            f"{n}³ in bf16, Triton, {step}",
            partial(triton_product, step=step),
            (n,),
            (40,),
            {"cublas": TRITON} if step == "descriptors" else {},
        )
        for step in ("descriptors", "persistent", "autotuned")
        for n in (2048, 4096, 8192)
    ),
    *(
        Entry(
            f"gpu-matmul-cuda-{step}".replace("_", "-"),
            f"4096³ in CUDA C++, {step}",
            partial(cuda_product, step=step),
            (4096,),
            (72,),
            {"warp_tile": {"cublas": LAST_FP32}, "tensor_cores": {"cublas": TENSOR_CORES}}.get(step, {}),
            SLOW.get(step, 30),
        )
        for step in ladder.STEPS
    ),
]
