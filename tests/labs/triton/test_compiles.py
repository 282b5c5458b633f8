"""The kernels of lab 04 are no toys of the interpreter: they compile for a GPU, and spill nothing."""

from __future__ import annotations

from tests.kernels.compiled import compiled
from tests.labs.harness import labs

LAB = next(lab for lab in labs() if lab.info.topic == "triton")
KERNELS = [
    "silu_mul_kernel",
    "softmax_kernel",
    "rms_norm_kernel",
    "rms_norm_backward_kernel",
    "sum_shares_kernel",
    "order_kernel",
    "matmul_kernel",
    "flash_kernel",
    "decode_kernel",
]
LAUNCHES = """
import torch
from mlsys_lab.stack.artifact import Artifact
from mlsys_checks.sandboxed.kernels.loading import load_kernels

k = load_kernels(Artifact.parse("lab.ipynb", SOURCE))
h, f = (dict(dtype=kind) for kind in (torch.bfloat16, torch.float32))
x, w, r = torch.empty(64, 1024, **h), torch.empty(1024, **h), torch.empty(64, **f)
share = torch.empty(8, 1024, **f)
numbers = torch.empty(64, dtype=torch.int32)
k.silu_mul_kernel[(64,)](x, x, x, 65536, BLOCK=1024)
k.softmax_kernel[(64,)](x, x, 1024, BLOCK=1024)
k.rms_norm_kernel[(64,)](x, w, x, r, 1024, 1e-6, BLOCK=1024)
k.rms_norm_backward_kernel[(8,)](x, x, w, r, x, share, 64, 1024, BLOCK=1024)
k.sum_shares_kernel[(8,)](share, w, 8, 1024, BLOCK=128)
k.order_kernel[(64,)](numbers, numbers, 8, 8, GROUP=4)
a = torch.empty(256, 256, **h)
sizes = dict(BLOCK_M=64, BLOCK_N=64, BLOCK_K=32, GROUP=4)
k.matmul_kernel[(16,)](a, a, a, 256, 256, 256, 256, 1, 256, 1, **sizes)
q, lse = torch.empty(2, 256, 64, **h), torch.empty(2, 256, **f)
k.flash_kernel[(4, 2)](q, q, q, q, lse, 256, 64, 0.125, BLOCK_M=64, BLOCK_N=64, BLOCK_D=64)
one, cache = torch.empty(4, 32, 64, **h), torch.empty(64, 16, 2, 64, **h)
k.decode_kernel[(4, 2)](one, cache, cache, numbers, numbers, one, 16, 0.125, GROUP=16, PAGE=16, D=64)
"""


def test_every_kernel_compiles_for_an_h100_and_products_run_on_its_tensor_cores() -> None:
    made = compiled(f"SOURCE = {LAB.reference!r}\n{LAUNCHES}")
    assert [one.kernel for one in made] == KERNELS
    assert [one.kernel for one in made if one.stack_bytes] == []
    assert {"matmul_kernel", "flash_kernel"} <= {one.kernel for one in made if "mma" in one.ptx}
