"""Numbers in the text of lab 02."""

from __future__ import annotations

from collections.abc import Iterator

from mlsys_checks.trusted.gpu_model.requests import BANKS, SECTOR, WARP, WORD
from mlsys_checks.trusted.gpu_model.residency import OWN_SHARED, REGISTERS_AT_ONCE, SHARED_AT_ONCE
from mlsys_lab.hardware import device
from tests.labs.figures import assert_held
from tests.labs.harness import labs

GPU_MODEL = next(lab for lab in labs() if lab.info.topic == "gpu-model")
SECTORS = GPU_MODEL.checks["sectors"]
IN_CODE = (
    "negations that move 128 bytes to 128 MiB",
    "at 500 clocks of latency, if a lane waits for one load of 4 or 16 bytes",
    "A batch of 16 made the product of Task 1 memory-bound",
)
GIVEN = ("predict eight real operations", "that lie 1 to 40 numbers apart")


def computed() -> Iterator[str]:
    h100 = device("H100")
    yield f"a device that can do {int(h100.peak('bf16') / h100.memory_bandwidth_bytes_per_s)} for a byte waits"
    yield f"Its threads run in warps of {WARP}"
    yield f"sectors of {SECTOR} bytes: bytes 0 to {SECTOR - 1}, {SECTOR} to {2 * SECTOR - 1}, and so on"
    yield f"Shared memory has {BANKS} banks. Words of {WORD} bytes go to the banks in turn"
    yield f"word 0 to bank 0, word {BANKS - 1} to bank {BANKS - 1}, word {BANKS} to bank 0 again"
    size_bytes = WARP * WORD
    yield f"what {size_bytes} bytes of a warp cost: {size_bytes // SECTOR} sectors at best, {WARP} at worst"
    yield f"1 pass at best, {WARP} at worst"
    drawn = [case.params.get(kind, ()) for case in SECTORS.cases for kind in ("strides", "random")]
    widths = [width for rows in drawn for width, *_ in rows]
    yield f"asks for `size_bytes` bytes, {max(widths)} at most"
    yield f"{WARP} lanes read numbers of {WORD} bytes"
    yield f"often given {BANKS + 1} columns where {BANKS} would do"
    yield f"A warp gets {WARP} · `registers`, rounded up to a multiple of {REGISTERS_AT_ONCE}"
    yield f"gets `shared_bytes` and {OWN_SHARED:,} bytes more for itself, rounded up to a multiple of {SHARED_AT_ONCE}"
    yield f"if each of the {WARP} lanes of a warp waits"
    yield f"so that all {WARP} lanes of a warp take part"
    yield f"{WARP} threads in a row are a warp"


def test_figures_are_computed_or_given() -> None:
    assert_held(GPU_MODEL, computed=computed(), in_code=IN_CODE, given=GIVEN)
