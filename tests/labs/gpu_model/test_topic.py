"""Lab 02: where figures in the text come from, what is in its sandbox, and that one mistake costs its own check."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

import mlsys_lab.kernels
from mlsys_checks.runner import run_check
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.sandbox.contents import bind_project
from mlsys_lab.flops import roofline
from mlsys_lab.hardware import device
from mlsys_lab.kernels.trace.occupancy import occupancy
from tests.labs.figures import assert_held
from tests.labs.harness import kernels_of, module_of
from tests.labs.slips import double, lab_of, leave_unwritten, load_reference

LAB = lab_of("gpu-model")
KERNELS = Path(mlsys_lab.kernels.__file__).parent
IN_CODE = (
    "16 sequences of 8,192 tokens, 32 query heads, 8 key/value heads of width 128",
    "negations that move 128 bytes to 128 MiB",
    "The product of 16 rows by a matrix of 4,096 × 4,096",
    "each 24 numbers after the one before",
    "a load takes about 500 clock cycles",
    "blocks of 256 threads and 128 registers per thread",
)
GIVEN = (
    "A server generates one token for each of 16 sequences of 8,192 tokens",
    "(about 110 minutes)",
    "`size_bytes` is at most 16",
    "[Lab 01](01-autograd.ipynb)",
    "Why 80: softmax does a maximum, a subtraction, an exponential, an addition and a division for each of 16 elements",
    "Why 64 bytes: 16 elements of 2 bytes come in, and 16 go out",
    "exact beyond 64 bits",
    "matrix that is 24 numbers wide",
    "whether it moves 128 bytes or a few thousand",
    "predicts eight operations of PyTorch",
    "predictions for eight operations of PyTorch",
    "with the same loads differ by a factor of eight",
    "three numbers and your counts",
    "How many of these eight will be explained",
    "an eighth of it",
    "Why 5: 128 bytes again",
    "Why 3: words 0, 32 and 64 are all in bank 0",
    "all three lanes want word 16",
    "A stride of 24 hits only every eighth bank: 24 and 32 have 8 as their greatest common divisor",
    "(Why 4 warps: 4096 · 0.5 = 2048 bytes must be in flight, 512 on each SM, and a warp has 32 · 4 = 128. Why 2 "
    "blocks: a warp takes 4,096 registers, 4 warps fit into each quarter of 16,384, and these 16 warps make 2 blocks",
    "Threads 0 to 31 of a block are its first warp",
    "a load of 16 bytes per lane",
    "Which of the eight operations move",
    "with loads of 16 bytes per lane",
    "reaches only 30 % of the bandwidth",
    "occupancy rises from 25 % to 50 %",
)


@pytest.fixture
def module() -> ModuleType:
    return load_reference(LAB)


def computed(module: ModuleType) -> Iterator[str]:
    h100, t4 = device("H100"), device("T4")
    peak, bandwidth = h100.peak("bf16"), h100.memory_bandwidth_bytes_per_s
    flops, size_bytes = module.decode_attention_work(16, 8192, 32, 8, 128)
    yield f"attention then does {flops / 1e9:.1f} billion FLOPs"
    yield f"which an H100 could finish in {1e6 * flops / peak:.0f} µs"
    yield f"at least {1e6 * size_bytes / bandwidth:.0f} µs: {size_bytes / 1e9:.1f} GB of keys and values"
    yield f"An H100 does {peak / 1e12:.0f} TFLOP/s and reads {bandwidth / 1e12:.2f} TB/s"
    ridges = [round(one.ridge_point("fp16")) for one in (h100, t4)]
    yield f"where the H100 needs {ridges[0]} to keep its arithmetic units busy"
    warp, sector = 32, 32
    yield f"The threads of a block run in warps of {warp} lanes"
    yield f"read in **sectors** of {sector} bytes"
    yield f"Shared memory has {warp} **banks** of words"
    yield f"active lane: up to {warp} ints"
    strides = {stride: module.bank_passes(range(0, 4 * warp * stride, 4 * stride)) for stride in range(1, 41)}
    assert [stride for stride, passes in strides.items() if passes == 1] == list(range(1, 41, 2))
    yield f"{strides[24]} lanes share each bank"
    yield f"{warp} lanes read numbers of 4 bytes"
    yield f"a tile of {warp} columns in shared memory is often stored with {warp + 1}"
    assert module.sectors_touched(range(0, 4 * warp * 8, 4 * 8), 4) == warp
    assert h100.clock_hz and h100.warps_per_unit
    yield f"On an H100 at {h100.clock_hz / 1e9:.2f} GHz"
    yield f"bandwidth of {bandwidth / 1e12:.2f} TB/s, spread over {h100.units} SMs"
    held = module.occupancy(h100, 256, registers=128)
    memory = bandwidth, 500 / h100.clock_hz, h100.units
    yield f"{held.warps} of {h100.warps_per_unit} warps are an occupancy of {held.occupancy:.0%}".replace("%", " %")
    assert 0.3 < module.bandwidth_fraction(held.warps, *memory, 4) < 0.36
    assert module.bandwidth_fraction(held.warps, *memory, 16) == 1
    yield f"With {16} bytes per lane the same warps are enough"
    yield f"of `bytes_per_lane` bytes per lane has {warp} ·"
    yield f"All {warp} lanes of a warp take part"
    apart = [module.sectors_touched(range(0, 8 * lanes, 8), 4) for lanes in (warp, 16)]
    yield f"{warp} lanes that are two elements apart touch {apart[0]} sectors per request"
    yield f"where 16 such lanes touched {apart[1]}"
    four = module.sectors_touched(range(0, 4 * 4 * warp, 4 * 4), 4)
    yield f"makes each request touch {four} sectors for {4 * warp} bytes"
    each = round(4 * h100.ridge_point("bf16"), -1)
    yield f"the ridge is at {ridges[0]} FLOP/byte: about {each:,.0f} FLOPs per element"
    rows = [least_compute_bound_rows(module, one.ridge_point("fp16")) for one in (h100, t4)]
    yield f"reaches the ridge of the H100 at {rows[0]} rows and that of the T4 at {rows[1]}"
    yield f"the ridge itself, {ridges[0]} and {ridges[1]}"
    yield f"move $2 \\cdot (4096^2 + 2B \\cdot 4096)$ bytes in {16} bits"


def least_compute_bound_rows(module: ModuleType, ridge: float) -> int:
    for rows in range(1, 1000):
        flops, size_bytes = module.matmul_work(rows, 4096, 4096)
        if flops / size_bytes >= ridge:
            return rows
    raise AssertionError(ridge)


def test_figures_are_computed_in_code_or_given(module: ModuleType) -> None:
    assert_held(LAB, computed=computed(module), in_code=IN_CODE, given=GIVEN)


def test_the_package_has_the_same_names_and_results(module: ModuleType) -> None:
    roof = {"peak_flops_per_s": 8e12, "bandwidth_bytes_per_s": 3e11}
    for flops in (0.0, 1e9, 1e12):
        assert vars(module.bound(flops, 2e8, **roof)) == pytest.approx(vars(roofline.bound(flops, 2e8, **roof)))
    assert module.matmul_work(3, 5, 7, 4) == roofline.matmul_work(3, 5, 7, 4)
    for name in ("H100", "RTX 4090"):
        for threads, registers, shared_bytes in ((256, 128, 0), (96, 33, 13_500), (1024, 128, 0)):
            sizes = {"registers": registers, "shared_bytes": shared_bytes}
            own, theirs = (one(device(name), threads, **sizes) for one in (module.occupancy, occupancy))
            assert vars(own).items() <= vars(theirs).items()
            assert own.limits == theirs.limits


def test_no_cost_of_a_kernel_lies_in_the_sandbox() -> None:
    costs, used = list(KERNELS.glob("*/cost.py")), KERNELS / "runtime.py"
    inside = [source for source, _ in bind_project(GradedLab(LAB.info))]
    assert costs
    assert [path for path in (*costs, used) if any(path.is_relative_to(source) for source in inside)] == [used]


def test_sectors_are_counted_where_only_kernels_are() -> None:
    sectors, lab = KERNELS / "trace" / "sectors.py", GradedLab(LAB.info)
    for seen, is_there in ((lab, True), (replace(lab, untraced=True), False)):
        assert any(sectors.is_relative_to(source) for source, _ in bind_project(seen)) == is_there


@pytest.mark.parametrize("slip", [double, leave_unwritten])
def test_a_mistake_in_bound_costs_its_own_check(slip: object, module: ModuleType) -> None:
    vars(module).update(vars(module_of(LAB.with_definitions(LAB.alternatives[0]), "arrays.ipynb")))
    assert callable(slip)
    slip(module, "bound")
    assert not run_check(LAB.checks["bound"], module).passed
    assert run_check(LAB.checks["regime"], module).passed


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("a multiply-add is one FLOP", "a multiplication and an addition are two FLOPs"),
        ("the times are added", "both times were added"),
        ("the mean", "this is the mean"),
        ("making the arguments is timed", "making the arguments was timed too"),
        ("the same arguments for all calls", "arguments were used again"),
        ("errors in seconds", "here errors count in seconds"),
        ("where a lane's bytes end is not looked at", "only the first byte of each lane"),
        ("warps are rounded down", "a part of a warp takes a whole one"),
        ("the branch stays within warps", "a warp diverges"),
        ("chunks of neighbouring columns", "lies scattered"),
    ],
)
def test_a_common_mistake_is_named(name: str, says: str) -> None:
    (variant,) = (one for one in LAB.mutants if one.name == name)
    check, module = LAB.checks[variant.fails[0]], module_of(LAB.substituted(variant), "mutant.ipynb")
    mismatch = run_check(check, kernels_of(module) if check.traced else module).mismatch
    assert mismatch is not None and says in mismatch.what
    if name == "the branch stays within warps":
        assert mismatch.got.startswith("cell ") and "`y[at] = max(value, float32(0))`: 16 of 32 lanes" in mismatch.got
