"""Lab 04: figures in its text, messages that name a cause, kernels that compile for a GPU, and what is timed there."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from mlsys_checks.live import LiveChecks
from mlsys_checks.runner import run_check
from mlsys_checks.sandboxed import triton as calls
from mlsys_checks.sandboxed.performance import Performance
from mlsys_checks.sandboxed.spec import Mismatch
from mlsys_checks.trusted.compare import tolerance
from mlsys_checks.trusted.traced import SLACK
from mlsys_checks.trusted.triton import FLASH_SPEED, LAB, MATMUL_SPEED, SOFTMAX_SPEED
from mlsys_lab import hardware
from mlsys_lab.errors import CourseError
from mlsys_lab.flops.bounds import machine
from mlsys_lab.kernels.trace.sectors import SECTOR_BYTES
from tests.kernels.compiled import compiled
from tests.labs.figures import assert_held
from tests.labs.harness import kernels_of, labs, live_names, module_of

TRITON = next(lab for lab in labs() if lab.info.topic == "triton")
SOURCE = TRITON.reference
H100 = machine(hardware.device("H100"), "bf16")
TIMED = {check.name: check.performance for check in LAB.checks if check.performance is not None}

IN_CODE = (
    "on arrays of 70 elements, 32 lanes at a time",
    "Eight rows of 37 floats",
    "A row of 40 floats takes",
    "Rows of 37 floats move more than rows of 40",
    "With 16 rows of 24 floats",
    "with 16 programs as with 1?",
    "C has 16 × 16 tiles",
    "What the first 16 programs request",
    "at 256 tokens, with D = 16 and blocks of 16",
    "two sequences of 37 and 20 tokens, blocks of 16, D = 16",
    "give as eight KV heads",
)
GIVEN = (
    "is a wave of 16 programs",
    "There are 16 waves and 8 colours",
    "105 for part 1 and 185 for part 2",
    "(15 accesses: two loads and a store for each of 5 elements",
    "in two requests, of 32 lanes and of 5",
    "multiples of 8 or 64",
    "programs 0 to 15 run at once",
    "3 × 4 tiles of 16 × 16, the last ones cut off",
    "at least 16",
    "to 10 bits of mantissa",
    "(02-gpu-model.ipynb)",
    "(../chapters/06-triton.md)",
    "(11-serving.ipynb)",
    "how does it follow from 1.135",
    "(17 tokens in blocks 2 and 0;",
    "(16 tokens of block 2 have value 1, the first of block 0 has 18: (16 + 18) / 17 = 2. The 100s are in slots",
    "rows of some ten thousand elements",
    "Tiles of 128 are fast",
    "at 8,192 tokens?",
)


def computed() -> Iterator[str]:
    heads, tokens, D = 32, 8192, 128
    flops = 4 * D * heads * tokens * (tokens + 1) / 2
    scores = 4 * heads * tokens**2
    yield f"attention of {heads} heads over {tokens:,} tokens, with head dimension {D}"
    yield f"needs {1e3 * flops / H100.peak_flops_per_s:.1f} ms of arithmetic on an H100"
    yield f"stores its scores, {scores / 1e9:.1f} GB in float32"
    yield f"loads those again: {1e3 * 4 * scores / H100.memory_bytes_per_s:.0f} ms for the memory alone"
    yield f"allows {SLACK} times the minimum"
    yield f"sectors of {SECTOR_BYTES} bytes, {SECTOR_BYTES // 4} floats"
    yield f"({1 / math.sqrt(25 / 3):.4f} is"
    yield f"With {tokens:,} rows and one program for each of an H100's 132 SMs, the extra traffic is less than 2 %"
    assert 3 * 132 / (3 * tokens) < 0.02
    first_deaf = next(2**k for k in range(20) if torch.tensor(2.0**k, dtype=torch.float16) + 1 == 2**k)
    yield f"a float16 that has grown to {first_deaf:,} stays there"
    yield f"{4 * 100_000**2 // 10**9} GB each, in float32, for one head at S = 100,000"
    tile = 4 * 16 * 16
    yield f"({8 * tile:,} bytes are 8 tiles of 16 × 16 floats"
    yield f"{4 * tile + 4 * 16:,} are 4 such tiles, and 16 log-sum-exps"
    ridge = H100.peak_flops_per_s / H100.memory_bytes_per_s
    yield f"where an H100 needs about {100 * round(ridge / 100)}"
    yield f"The ridge point is about {ridge:.0f} FLOPs per byte, so n must be about {10 * round(2 * ridge / 10)}"
    yield f"has {65_536:,} registers"
    yield f"there are {8 * 8} programs for 132 SMs"
    yield f"{SOFTMAX_SPEED.points} points for a softmax at {SOFTMAX_SPEED.target} of torch's speed"
    yield f"{MATMUL_SPEED.points} for a product at {MATMUL_SPEED.target} of cuBLAS"
    yield f"{FLASH_SPEED.points} for attention at {FLASH_SPEED.target} (softmax in float32, the others in float16)"
    yield f"partial points start at {SOFTMAX_SPEED.start}, {MATMUL_SPEED.start} and {FLASH_SPEED.start}"
    yield "with tiles of 128 × 128 × 32 for the product, and 128 queries by 64 keys for attention"


def test_figures_are_computed_or_given() -> None:
    assert_held(TRITON, computed=computed(), in_code=IN_CODE, given=GIVEN)


def judged(check: str, right: str, wrong: str) -> Mismatch | None:
    """What a check says of the reference with one piece changed."""
    assert right in SOURCE
    return run_check(LAB[check], kernels_of(module_of(SOURCE.replace(right, wrong, 1), "mistake.ipynb"))).mismatch


def test_a_mistake_in_the_order_of_tiles_costs_points_once() -> None:
    right = "    return group * GROUP_M + within % height, within // height"
    wrong = "    return within // height, group * GROUP_M + within % height"
    lost = [name for name in ("tile_order", "matmul", "matmul_traffic") if judged(name, right, wrong)]
    assert lost == ["tile_order"]


@pytest.mark.parametrize(
    ("right", "wrong", "is_named"),
    [
        ("v = tl.load(v_ptr + kv_offsets, mask=mask, other=0.0)", "v = tl.load(v_ptr + kv_offsets)", True),
        ("filled = i * BLOCK_SIZE + slots < length", "filled = i * BLOCK_SIZE + slots <= length", True),
        ("range(0, tl.cdiv(length, BLOCK_SIZE))", "range(0, length // BLOCK_SIZE)", False),
    ],
)
def test_slots_without_a_token_are_named_where_they_were_read(right: str, wrong: str, is_named: bool) -> None:
    mismatch = judged("decode", right, wrong)
    assert mismatch is not None and ("slots and blocks without a token hold NaN" in mismatch.what) == is_named


HEAD = "@triton.jit\ndef silu_mul_kernel"


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("tl.sigmoid(gate)", "TABLE[0]", "`TABLE` is nothing that kernel"),
        (HEAD, "def silu_mul_kernel", "is a plain function, no kernel"),
        ("(gate_ptr,", "(gate_ptr: int,", "annotated with a type that its argument does not have"),
        ("gate * tl.sigmoid(gate)", "ONE * gate * tl.sigmoid(gate)", "`ONE` is a plain number, which Triton"),
    ],
)
def test_what_loses_for_the_grader_loses_in_the_notebook_for_the_same_cause(right: str, wrong: str, said: str) -> None:
    source = SOURCE.replace(right, wrong, 1).replace(HEAD, f"TABLE = [1.0, 2.0]\nONE = 1.0\n{HEAD}")
    with pytest.raises(CourseError, match=said):
        LiveChecks(LAB, live_names(source))("silu_mul")
    mismatch = run_check(LAB["silu_mul"], kernels_of(module_of(source, "mistake.ipynb"))).mismatch
    assert mismatch is not None and said in mismatch.what


SUMS = "accumulator = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)"


@pytest.mark.parametrize(
    ("check", "right", "wrong", "got", "expected"),
    [
        ("matmul", SUMS, SUMS.replace("float32", "float16"), "a sum that `tl.dot` cannot add to", "float32"),
        ("matmul", "accumulator = tl.dot(a, b, accumulator)", "accumulator += a @ b", "for @", "tl.dot(a, b)"),
        ("softmax", "tl.max(x, axis=0)", "max(x)", "used as a list", "tl.max(x, axis=0)"),
        ("silu_mul", "n, BLOCK: tl.constexpr", "n, BLOCK", "must be of type tl.constexpr", ": tl.constexpr`"),
        ("silu_mul", "mask=mask)", "mask=mask and offsets >= 0)", "as one: blocks take &", ""),
        ("tile_order", "within // height\n", "within / height\n", "pointer<int32> and", "`//` divides"),
        ("tile_order", "within // height\n", "(within / height).to(tl.int32)\n", "type f32", "integers only"),
    ],
)
def test_what_stops_a_kernel_is_reported_with_its_cause_and_what_to_write(
    check: str, right: str, wrong: str, got: str, expected: str
) -> None:
    mismatch = judged(check, right, wrong)
    assert mismatch is not None and got in mismatch.got and expected in mismatch.expected, mismatch


LOADED = f"""
import torch
from mlsys_checks.sandboxed import triton as calls
from mlsys_checks.sandboxed.kernels.loading import load_kernels
from mlsys_lab.stack.artifact import Artifact

k = load_kernels(Artifact.parse("lab.ipynb", {SOURCE!r}))
"""
LAUNCHES = """
h, f = (dict(dtype=kind) for kind in (torch.bfloat16, torch.float32))
x, w, r, partials = torch.empty(64, 1024, **h), torch.empty(1024, **h), torch.empty(64), torch.empty(8, 1024)
ids = torch.empty(64, dtype=torch.int32)
k.silu_mul_kernel[(64,)](x, x, x, 65536, BLOCK=1024)
k.softmax_kernel[(64,)](x, x, 1024, BLOCK=1024)
k.rms_norm_kernel[(64,)](x, w, x, r, 1024, 1e-6, BLOCK=1024)
k.rms_norm_backward_kernel[(8,)](x, x, w, r, x, partials, 64, 1024, BLOCK=1024)
k.sum_rows_kernel[(8,)](partials, w, 8, 1024, BLOCK=128)
k.order_kernel[(64,)](ids, 128, 128, BLOCK_M=16, BLOCK_N=16, GROUP_M=4)
a, sizes = torch.empty(256, 256, **h), dict(BLOCK_M=64, BLOCK_N=64, BLOCK_K=32, GROUP_M=4)
k.matmul_kernel[(16,)](a, a, a, 256, 256, 256, 256, 1, 256, 1, **sizes)
q, lse = torch.empty(2, 256, 64, **h), torch.empty(2, 256)
k.flash_kernel[(4, 2)](q, q, q, q, lse, 256, 64, 0.125, BLOCK_M=64, BLOCK_N=64, BLOCK_D=64)
one, cache = torch.empty(4, 32, 64, **h), torch.empty(64, 16, 2, 64, **h)
k.decode_kernel[(4, 2)](one, cache, cache, ids, ids, one, 16, 0.125, D=64, GROUP=16, BLOCK_SIZE=16)
"""
TIMED_LAUNCHES = """
half = dict(dtype=torch.float16, device="meta")
calls.timed_softmax(k, torch.empty(calls.ROWS, calls.COLUMNS, device="meta"))
calls.timed_matmul(k, *(torch.empty(calls.SIDE, calls.SIDE, **half) for _ in "ab"))
calls.timed_flash(k, *(torch.empty(calls.HEADS, calls.TOKENS, calls.WIDTH, **half) for _ in "qkv"))
"""


def test_every_kernel_compiles_for_an_h100_and_what_is_timed_fits_small_gpus() -> None:
    made, timed = compiled(LOADED + LAUNCHES), compiled(LOADED + TIMED_LAUNCHES)
    assert len({one.kernel for one in made}) == 9
    assert [one.kernel for one in timed] == ["softmax_kernel"] * calls.REPEATS + ["matmul_kernel", "flash_kernel"]
    assert [one.kernel for one in made + timed if one.stack_bytes] == []
    assert all(one.shared_bytes <= 64 * 1024 for one in timed)
    products = {"matmul_kernel", "flash_kernel"}
    assert products <= {one.kernel for one in made if "mma" in one.ptx}
    assert products == {one.kernel for one in timed if "mma" in one.ptx}


@pytest.mark.parametrize("name", TIMED)
def test_what_is_timed_gives_what_the_library_gives_on_inputs_from_the_seed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for size, value in {"ROWS": 5, "COLUMNS": 37, "SIDE": 48, "HEADS": 2, "TOKENS": 70, "WIDTH": 16}.items():
        monkeypatch.setattr(calls, size, value)
    performance: Performance = TIMED[name]
    inputs, again, other = (performance.make(seed, "cpu") for seed in (7, 7, 8))
    assert all(torch.equal(one, same) for one, same in zip(inputs, again, strict=True))
    assert not any((one == another).float().mean() > 0.1 for one, another in zip(inputs, other, strict=True))
    got: Any = performance.call(module_of(SOURCE, "triton"), *inputs)
    want = performance.library(*inputs)
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    error = (got.double() - want.double()).norm() / want.double().norm()
    assert error < tolerance(str(want.dtype).removeprefix("torch."))


def test_work_is_what_no_kernel_can_do_without() -> None:
    softmax, product, flash = SOFTMAX_SPEED.work, MATMUL_SPEED.work, FLASH_SPEED.work
    assert softmax is not None and softmax.size_bytes == 16 * 8192 * 4096 * 8
    assert product is not None and product.flops == 2 * 8192**3
    pairs = sum(query + 1 for query in range(calls.TOKENS))
    assert flash is not None and flash.flops == 4 * calls.WIDTH * pairs * calls.HEADS
