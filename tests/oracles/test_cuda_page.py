"""What chapter 05 counts and concludes, against published figures and against arithmetic written out here."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest
import triton

from mlsys_lab.kernels.matmul.cost import tiled_bytes
from mlsys_lab.kernels.trace.faults import UNWRITTEN
from mlsys_lab.kernels.trace.traffic import reads_each_once, total, writes_each_once
from tests.oracles.catalogue import oracles

PAGE = "05-cuda"

PEAK, BANDWIDTH = 66.9e12, 3350e9  # of an H100, in fp32


def exactly(value):
    return pytest.approx(value, rel=1e-12)


def test_the_bound_of_an_addition(page) -> None:
    assert page.added.time_s == exactly(3 * 4 * 2**26 / BANDWIDTH)
    assert page.added.limit == "memory"


def test_threads_without_a_guard(page) -> None:
    found = page.report(page.unguarded)
    assert [one.buffer for one in found.faults] == ["x", "y", "z"]
    assert {one.threads for one in found.faults} == {2 * 64 - 100}
    assert not found.races and not found.divergences


def test_a_grid_stride_reads_and_writes_everything_once(page) -> None:
    trace = page.stride_trace
    assert all(reads_each_once(trace, name) for name in "xy") and writes_each_once(trace, "z")
    turns = -(-300 // 128)
    assert turns == 3  # "two full turns, then a third"
    steps = page.stride_data["steps"]
    before = {thread // 32 for step in steps[: page.cut_off] for thread in step["threads"]}
    assert before == {0, 1}  # "lets one warp run ahead of the others"
    threads = steps[page.cut_off]["threads"]
    assert threads == list(range(32, 300 - 2 * 128))  # the warp at which the figure opens
    assert total(trace).asked_bytes == page.adding.min_bytes(300)


def test_sectors_of_the_picture_by_hand(page) -> None:
    rows, lanes = 4, 32
    written = rows * lanes * 4
    assert total(page.grey["interleaved"]).moved_bytes == 3 * rows * (3 * lanes * 4) + written
    assert total(page.grey["planar"]).moved_bytes == page.grey_cost.min_bytes(rows * lanes)
    assert (page.loads[0].worst.taken, page.loads[0].worst.ideal) == (12, 4)


def test_the_race_and_the_barrier(page) -> None:
    assert [one.elements for one in page.racy.races] == [64]  # each is written by one thread and read by another
    assert [one.what for one in page.racy.faults] == [UNWRITTEN]  # thread 0 is the first to run
    assert not page.racy.divergences and not page.halved.races
    assert [(one.threads, one.waits) for one in page.halved.divergences] == [(32, False)]


def through_a_tree(threads: int, adders, ways) -> tuple[int, int]:
    """Requests and passes of a block: a store a thread, two loads and a store for each addition, the sum's load."""
    warps = [-(-count // 32) for count in adders]
    stores = threads // 32
    return stores + 3 * sum(warps) + 1, stores + 3 * sum(w * n for w, n in zip(warps, ways, strict=True)) + 1


def test_the_steps_of_the_sum_by_hand(page) -> None:
    halves = [64, 32, 16, 8, 4, 2, 1]
    spread = [128, 128, 128, 128, 128, 64, 32]  # threads of the warps in which any adds
    none = [1] * 7
    by_hand = {
        "interleaved": through_a_tree(128, spread, none),
        "strided": through_a_tree(128, halves, [2, 4, 4, 4, 4, 2, 1]),
        "sequential": through_a_tree(128, halves, none),
    }
    for step, (requests, passes) in by_hand.items():
        assert page.tree[step] == (4 * (256 + 2), 8, 2 * requests, 2 * passes)
    assert page.tree["first_add"] == (page.sum_cost.min_bytes(256), 8, *by_hand["sequential"])
    assert page.tree["warp_shuffle"] == (page.sum_cost.min_bytes(256), 1, 4 + 1, 4 + 1)
    assert page.tree["grid_stride"][1:] == page.tree["warp_shuffle"][1:]
    assert page.tree["strided"][3] == page.tree["interleaved"][3]  # "as busy as before"
    assert page.strided_worst == 4 == page.tree_data["steps"][page.queue]["taken"]


def test_the_transpose_by_hand(page) -> None:
    elements = 64 * 64
    least = page.turn_cost.min_bytes(64, 64)
    assert total(page.turned["naive"]).moved_bytes == 4 * elements + 32 * elements
    assert total(page.turned["tiled"]).moved_bytes == total(page.turned["padded"]).moved_bytes == least == 8 * elements
    warps = elements // 32
    assert page.through_shared(page.turned["tiled"]) == (2 * warps, warps + 32 * warps)
    assert page.through_shared(page.turned["padded"]) == (2 * warps, 2 * warps)
    opened = page.turn_data["steps"][page.column_read]
    assert opened["taken"] == 32 == max(step["taken"] for step in page.turn_data["steps"])
    assert opened["kind"] == "reads" and page.turn_data["buffers"][opened["buffer"]]["name"] == "tile"


def test_a_warp_asks_twice_for_each_multiply_add(page) -> None:
    """The picture of the plain product: 4 warps of 32 lanes, 8 steps along k."""
    steps, buffers = page.row_data["steps"], page.row_data["buffers"]
    reads = [buffers[step["buffer"]]["name"] for step in steps if step["kind"] == "reads"]
    assert (reads.count("a"), reads.count("b"), len(steps)) == (4 * 8, 4 * 8, 4 * (2 * 8 + 1))
    opened = steps[page.again]
    assert opened["elements"] == steps[1]["elements"] == list(range(32)) and opened["threads"] == list(range(32, 64))


def test_the_bound_of_the_product(page) -> None:
    assert page.compute_s == exactly(2 * 4096**3 / PEAK)
    assert page.memory_s == exactly(3 * 4 * 4096**2 / BANDWIDTH)


def test_the_rungs_by_hand(page) -> None:
    """Reads of an element; bytes of sectors and requests of a warp for each multiply-add of its 32 lanes."""
    side = 64
    by_hand = {
        "naive": (side, (32 + 1) * 32 / 32, 2),  # 32 rows of a, one number of b
        "coalesced": (side, (1 + 4) * 32 / 32, 2),
        "shared_tile": (side / 16, 2 * 4 / 16, 2 + 2 * 2 / 16),
        "register_tile_1d": (1, 2 * 4 / 64, 1 + 1 / 8 + 2 * 2 / 64),
        "register_tile_2d": (1, 2 * 4 / 64, 8 / 16 + 2 * 2 / 64),
    }
    assert list(page.rungs) == list(by_hand)
    for step, counted in by_hand.items():
        assert page.rungs[step] == exactly(counted)
    # The same that cost.py foresees for tiles of c, without the writes of c.
    for step, tile in (("shared_tile", 16), ("register_tile_2d", 64)):
        foreseen = tiled_bytes(*page.cube, tile, tile) - 4 * page.size**2
        assert page.rungs[step][1] * page.size**3 == exactly(foreseen)
    assert page.asked(4, 4, 64) == exactly(page.rungs["register_tile_2d"][2])
    assert page.asked(1, 1, 16) == exactly(page.rungs["shared_tile"][2])


def test_ceilings(page) -> None:
    for _, moved, r in page.rungs.values():
        assert page.from_memory(moved) == exactly(2 / PEAK / (moved / BANDWIDTH))
        assert page.from_requests(r) == exactly(min(1 / (4 * r), 1 / (1 + r)))
    tile, coalesced = page.ceilings["shared_tile"], page.ceilings["coalesced"]
    assert tile[0] > 9 * coalesced[0] and tile[1] <= coalesced[1]  # "no higher than before"


def test_the_worklog_and_its_ceilings(page) -> None:
    """All but one step stay below what their source allows; that one, below what loads of sixteen bytes allow."""
    cublas = 23249.6  # as published, beside shares of it in %
    shares = {step: 100 * gflops / cublas for step, (gflops, _) in page.worklog.items()}
    assert list(shares) == list(page.rungs)
    assert [round(share, 1) for share in shares.values()] == [1.3, 8.5, 12.8, 36.5, 68.7]
    requests = [r for _, r in page.worklog.values()]
    assert requests == exactly([2, 2, 2 + 4 / 32, 1 + 1 / 8 + 4 / 64, 2 / 8 + 4 / 128])
    peak = 84 * 128 * 2 * 1.8e9  # multiprocessors, lanes, FLOPs of a multiply-add, clock
    of_peak = {step: 1e9 * gflops / peak for step, (gflops, _) in page.worklog.items()}
    above = [step for step, (_, r) in page.worklog.items() if of_peak[step] > page.from_requests(r)]
    assert above == ["register_tile_1d"]
    assert of_peak["register_tile_1d"] < page.from_requests(page.joined_r) == exactly(4 / 7)


def test_the_compiler_joins_the_numbers_of_a(page) -> None:
    """In the machine code of the step that makes a column of 8: 64 multiply-adds, for each 8 + 1 numbers to load."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    if not tool.exists():
        pytest.skip("Triton comes without nvdisasm here")
    step, source = "register_tile_1d<64, 64, 8, 8>", page.ladder.FP32.text
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(page.compile_cuda(source, (step,), arch="sm_90").cubin)
        file.flush()
        code = subprocess.run([tool, "-c", file.name], capture_output=True, text=True, check=True).stdout
    assert len(re.findall(r"\bLDS\.128\b", code)) == 8 * 8 // 4
    assert len(re.findall(r"\bLDS\b(?!\.)", code)) == 8


def test_the_ladder_in_c_plus_plus(page) -> None:
    """Registers may change with the compiler's release; that none spills and that occupancy falls must not."""
    assert list(page.cpp) == [step for step in page.ladder.STEPS if step != "tensor_cores"]
    assert {needs.spill_bytes for _, needs in page.cpp.values()} == {0}
    assert [threads for threads, _ in page.cpp.values()] == [256, 256, 1024, 512, 256, 256, 256]
    shares = list(page.occupancies.values())
    assert shares == sorted(shares, reverse=True) and shares[0] > shares[-1]
    assert page.cpp["register_tile_2d"][1].registers > 64  # the sums alone
    copy_s, multiply_s = 2 * 128 * 16 * 4 / (BANDWIDTH / 132), 2 * 128 * 128 * 16 / (PEAK / 132)
    assert (page.copy_s, page.multiply_s) == exactly((copy_s, multiply_s))
    assert page.cpp["shared_tile"][1].shared_bytes == 2 * 32 * 32 * 4


def test_the_lines_that_tell_steps_apart(page) -> None:
    """The excerpts are whole: each holds what the prose says of it."""
    assert page.excerpt(page.sums.strided, "left =", "cuda.sync").count("\n") == 2
    inner = page.excerpt(page.products.register_tile_2d, "for k in", "cuda.sync")
    assert inner.startswith("for k in range(DEPTH):") and inner.endswith("of_a[i] * of_b[j]")
    assert page.products.SIDE == 4


def test_the_answer(page) -> None:
    shares = [f"{1e11 * gflops / 38.7e12:.1f}" for gflops, _ in page.worklog.values()]
    assert shares[:3] == ["0.8", "5.1", "7.7"]
    assert page.first == exactly(1 / 8)
    assert page.last_r == exactly(16 / 64 + 4 / 128)
    assert page.from_requests(page.last_r) == exactly(1 / (1 + page.last_r))  # places for instructions, not passes


def test_problems_on_products(page) -> None:
    oracles()["GP09"].check(page.p1_flops / 1e9, page.p1_read / 1e6, page.p1_written / 1e6)
    assert page.p1_ratio == exactly(2 * 4092**3 / PEAK / (16 * 4092**2 / BANDWIDTH))
    assert page.p5[32] == 4 * (2 * 4096**3 // 32 + 4096**2)
    assert page.p5_r[32] < page.p5_r[16] and page.from_requests(page.p5_r[32]) < 1 / 8
    assert 2 * 4 * page.p6_memory**2 <= 48 * 1024 < 2 * 4 * (page.p6_memory + 1) ** 2
    optin = page.h100.shared_bytes_per_unit - 1024  # per multiprocessor 228 KiB, of which a block takes 1 KiB itself
    assert optin == 227 * 1024 and 2 * 4 * page.p6_optin**2 <= optin < 2 * 4 * (page.p6_optin + 1) ** 2
    assert page.p6_threads**2 == 1024
    assert page.p7[8, 8] < page.p7[16, 4] < 1 < page.p7[64, 1]


def test_problems_on_requests(page) -> None:
    assert (page.p2["x"].worst.taken, page.p2["x"].efficiency) == (8, 0.5)
    assert total(page.p2_trace).sector_ratio == exactly(3 / 2)
    assert page.p3 == {32: 32, 33: 1, 34: 2, 36: 4, 40: 8}
    warps = 64 * 64 // 32
    # Doubles: a half-warp's column of a plain tile is 16 words deep, its row one; two halves a request.
    assert page.p4 == {"tiled": (warps * 2 + warps * 32, 4 * warps), "padded": (4 * warps, 4 * warps)}


def test_a_column_of_a_tile_in_three_layouts(page) -> None:
    assert [page.column_passes(place) for place in page.layouts.values()] == [32, 1, 1]
    swizzled = page.layouts["swizzled"]
    assert {swizzled(row, column) for row in range(32) for column in range(32)} == set(range(1024))


def test_fragments_of_a_tensor_core_tile(page) -> None:
    """The layout is that of ptx.cuh, and every element of both matrices is held by exactly one lane."""
    assert (page.tile_d == page.tile_a @ page.tile_b).all()
    assert page.of_a.size == page.tile_a.size and page.of_b.size == page.tile_b.size
    assert page.of_a[:, 5].tolist() == [[page.tile_a[row, k] for k in (2, 3, 10, 11)] for row in (1, 9)]
    assert page.of_b[5].tolist() == [page.tile_b[k, 1] for k in (2, 3, 10, 11)]


def test_shared_memory_limits_mma_sync_and_not_wgmma(page) -> None:
    """Clocks for 16 steps along k of a 128 × 256 tile, at 2,048 multiply-adds per clock and multiprocessor."""
    assert page.sm_flops == 4 * 512 * 2
    assert page.mma_clocks == (128 * 256 * 16 / 2048, 8 * 128 * 32 / 128, 384 * 32 / 128)
    assert page.mma_clocks == (256, 256, 96)
    assert page.wgmma_clocks == (256, 2 * 320 * 32 / 128, 96)
    assert page.mma_ceiling == exactly(256 / 352)
    assert sum(page.wgmma_clocks[1:]) == page.wgmma_clocks[0]  # "arrive just in time"


def test_the_design_of_a_bf16_product(page) -> None:
    peak = 989.4e12
    assert page.p8_compute_s == exactly(2 * 8192**3 / peak) and page.p8_memory_s == exactly(6 * 8192**2 / BANDWIDTH)
    assert (page.p8_stage_bytes, page.p8_stages) == (48 * 1024, 4)
    assert page.p8_stage_s == exactly(128 * 256 * 64 * 2 * 132 / peak)
    assert page.p8_stage_s < 1e-6 < 3 * page.p8_stage_s  # two stages stall, four do not
    assert page.p8_traffic / BANDWIDTH > page.p8_compute_s > page.p8_grouped / BANDWIDTH
    assert (page.p8_tiles, page.p8_wave_efficiency) == (2048, exactly(2048 / (16 * 132)))


def test_where_the_worklog_ends(page) -> None:
    assert round(100 * page.last / page.cublas, 1) == 93.7  # as published
    assert page.cublas == 23249.6
