"""Drawings of chapters 04 to 06 show what launches of the package's kernels do, and what its devices and counts say."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from mlsys_lab.hardware import device
from mlsys_lab.kernels.grey import numba_steps as greys
from mlsys_lab.kernels.matmul import cost
from mlsys_lab.kernels.matmul import numba_steps as products
from mlsys_lab.kernels.matmul.cuda_steps import WARP_TILE
from mlsys_lab.kernels.matmul.triton_kernels import tile_kernel
from mlsys_lab.kernels.matmul.triton_steps import Tile
from mlsys_lab.kernels.numba_launch import Recorder
from mlsys_lab.kernels.reduction import numba_steps as sums
from mlsys_lab.kernels.softmax import cost as softmax_cost
from mlsys_lab.kernels.trace.banks import BANKS, passes
from mlsys_lab.kernels.trace.events import STORE, Trace
from mlsys_lab.kernels.trace.sectors import sectors
from mlsys_lab.kernels.trace.triton_interpreter import record
from mlsys_lab.kernels.transpose import numba_steps as turns
from tests.drawn import boxes, svgs, words

H100 = device("H100")


def launch(steps, step: str, *tensors: torch.Tensor) -> Trace:
    """Trace of the first launch of a step."""
    recorder = Recorder()
    steps.run(step, *tensors, launch=recorder)
    return recorder.traces[0]


def test_a_warp_s_load_touches_the_shaded_sectors() -> None:
    for svg, step, shape in zip(svgs("cuda.coalescing"), greys.STEPS, ((1, 8, 3), (3, 1, 8)), strict=True):
        _, _, taken, _ = sectors(launch(greys, step, torch.ones(shape)))
        shaded = [width for width in boxes(svg, "orange") if width > 100]
        assert len(shaded) == taken[0]
        assert f"{taken[0]} sector" in words(svg)[-1]


def at_work(svg) -> list[dict[int, int]]:
    """For each level of a drawn tree the words that are added to, and the warp that does it."""
    left = sorted({x for tone in ("quiet", "blue", "green") for x in boxes(svg, tone, "x")})
    levels: dict[float, dict[int, int]] = {}
    for warp, tone in enumerate(("blue", "green")):
        for x, y in zip(boxes(svg, tone, "x"), boxes(svg, tone, "y"), strict=True):
            levels.setdefault(y, {})[left.index(x)] = warp
    return [levels[y] for y in sorted(levels)]


def test_threads_that_add_in_the_drawn_trees_are_those_that_store_in_the_kernels() -> None:
    for svg, step in zip(svgs("cuda.tree")[:3], ("interleaved", "strided", "sequential"), strict=True):
        stores = launch(sums, step, torch.ones(sums.THREADS)).of(space="shared", kinds=(STORE,))
        levels = [stores[stores["phase"] == phase] for phase in np.unique(stores["phase"])]
        # Eight threads: the others' trees are its like.
        kept = levels[-3:] if step == "sequential" else levels[1:4]
        words_added_to = [{int(offset) // 4 for offset in one["offset"] if offset < 8 * 4} for one in kept]
        _, *drawn = at_work(svg)
        assert [set(level) for level in drawn] == words_added_to
        if step == "strided":
            assert {warp for level in drawn for warp in level.values()} == {0}
        else:  # a thread adds to its own word
            assert all(warp == word // 4 for level in drawn for word, warp in level.items())


def test_passes_and_barriers_beside_a_tree_are_those_of_its_words() -> None:
    for svg, step in zip(svgs("cuda.tree")[:3], ("interleaved", "strided", "sequential"), strict=True):
        said = words(svg)
        _, *levels = at_work(svg)
        asked = [
            max(
                sum(word % 4 == bank and owner == warp for word, owner in level.items())
                for bank in range(4)
                for warp in (0, 1)
            )
            for level in levels
        ]
        assert [int(one.split()[0]) for one in said if "pass" in one] == asked
        assert [int(one.split()[0]) for one in said if "warp" in one] == [len(set(level.values())) for level in levels]
        assert asked == ([2, 2, 1] if step == "strided" else [1, 1, 1])
        arrivals = launch(sums, step, torch.ones(sums.THREADS)).arrivals["phase"].max() + 1
        extra = sums.THREADS.bit_length() - (8).bit_length()  # levels that the drawing leaves out
        assert said[-1] == f"{arrivals - extra} barriers"


def test_the_drawn_shuffles_meet_once() -> None:
    svg = svgs("cuda.tree")[3]
    shuffled = launch(sums, "warp_shuffle", torch.ones(2 * sums.THREADS))
    assert words(svg)[-1] == "1 barrier" and shuffled.arrivals["phase"].max() + 1 == 1
    assert len(boxes(svg, "violet")) == 2  # numbers in shared memory: one a warp
    assert len(np.unique(shuffled.of(space="shared", kinds=(STORE,))["offset"])) == sums.WARPS
    numbers = [int(one) for one in words(svg)[8 + 1 :] if one.isdigit()]
    assert numbers == [1] * 8 + [2] * 4 + [4] * 2 + [4] * 2 + [8]


def test_a_column_without_padding_takes_as_many_passes_as_there_are_banks() -> None:
    drawn = [words(svg)[-1] for svg in svgs("cuda.banks")]
    assert drawn == ["8 passes", "1 pass"]
    worst = [passes(launch(turns, step, torch.ones(32, 32)))[2].max() for step in ("tiled", "padded")]
    assert worst == [BANKS, 1]


def test_a_register_tile_s_numbers_serve_as_many_multiply_adds_as_the_ladder_says() -> None:
    counts = [[len(boxes(svg, tone)) for tone in ("orange", "blue", "green")] for svg in svgs("cuda.tiles")]
    assert counts == [[1, 1, 1], [1, 1, 1], [4, 4, 16]]
    others = [len(boxes(svg, "quiet")) for svg in svgs("cuda.tiles")]
    assert others == [0, 36 - 1, 9 * 16 - 16]  # of a block of 6 × 6 threads, and of 3 × 3
    assert [len(boxes(svg, "violet")) for svg in svgs("cuda.tiles")] == [0, 2, 2]  # tiles of a and b, not of c
    assert "8 reads from shared memory for 16 multiply-adds" in products.STEPS["register_tile_2d"]


def test_two_buffers_hide_all_copies_but_the_first() -> None:
    one, two = svgs("cuda.buffers")
    size_bytes = 4 * (WARP_TILE.rows + WARP_TILE.columns) * WARP_TILE.depth
    copy_s = size_bytes * H100.units / H100.memory_bandwidth_bytes_per_s
    work = cost.flops(WARP_TILE.rows, WARP_TILE.columns, WARP_TILE.depth)
    multiply_s = work * H100.units / H100.peak("fp32")
    assert copy_s < multiply_s
    assert words(one)[-1] == f"{1e6 * 4 * (copy_s + multiply_s):.1f} µs"
    assert words(two)[-1] == f"{1e6 * (copy_s + 4 * multiply_s):.1f} µs"


def test_threads_beyond_the_array_s_end_are_those_that_no_number_is_left_for() -> None:
    (svg,) = svgs("cuda.grid")
    assert "28 threads beyond the end" in words(svg) and "i = 1 · 64 + 5 = 69" in words(svg)
    (array,) = [width for width in boxes(svg, "blue") if width > 100]
    assert array / 332 == pytest.approx(100 / 128, rel=0.01)
    beyond, _ = sorted(boxes(svg, "orange", "x"))
    (four,) = [width for width in boxes(svg, "blue") if width < 20]  # threads of the last warp that have a number
    assert beyond == pytest.approx(4 + array, abs=0.1)
    assert four / 332 == pytest.approx(4 / 128, rel=0.15)


def test_a_warp_reads_too_early_only_without_a_barrier() -> None:
    without, with_one = svgs("cuda.barrier")
    assert [len(boxes(svg, "orange")) for svg in (without, with_one)] == [1, 0]
    early = boxes(without, "orange", "x")[0]
    assert early < max(boxes(without, "blue", "x"))
    assert max(boxes(with_one, "blue", "x")) < min(boxes(with_one, "green", "x"))


def test_the_chip_has_as_many_multiprocessors_and_lanes_as_the_device_table() -> None:
    chip, inside = svgs("gpu_model.chip")
    assert len([width for width in boxes(chip, "blue") + boxes(chip, "quiet") if width < 20]) == H100.units
    assert len(boxes(inside, "blue")) == H100.fp32_lanes_per_unit


def test_memories_are_drawn_to_scale() -> None:
    areas, lengths = svgs("gpu_model.memories")
    (whole,), (level_2,) = boxes(areas, "violet"), boxes(areas, "orange")
    assert (level_2 / whole) ** 2 == pytest.approx(H100.l2_bytes / H100.memory_bytes, rel=0.05)
    (memory,), (links,) = boxes(lengths, "violet"), boxes(lengths, "orange")
    between = H100.memory_bandwidth_bytes_per_s / H100.link("NVLink").per_direction_bytes_per_s
    assert memory / links == pytest.approx(between, rel=0.05)


def test_a_launch_has_one_taker_for_each_of_its_levels() -> None:
    (svg,) = svgs("gpu_model.hierarchy")
    assert len(boxes(svg, "orange")) == 4
    assert len([width for width in boxes(svg, "quiet") + boxes(svg, "blue") if width < 5]) == 32


def test_enough_warps_fill_the_scheduler_s_time() -> None:
    few, many = svgs("gpu_model.latency")
    shares = [sum(width + 1 for width in boxes(svg, "blue")) / 2 / 272 for svg in (few, many)]
    assert shares == pytest.approx([2 * 3 / (3 + 12), 1.0], abs=0.01)
    assert [words(svg)[-1] for svg in (few, many)] == ["busy 40% of the time", "busy 100% of the time"]


def test_kernels_at_their_bounds_lie_on_the_roof() -> None:
    (svg,) = svgs("gpu_model.roofline")
    roof = next(one for one in svg.iter("path") if one.get("class") == "blue stroke").get("d", "")[1:]
    (x0, y0), (x1, y1), _ = ([float(number) for number in point.split()] for point in roof.split("L"))
    marks = list(zip(boxes(svg, "green", "x"), boxes(svg, "green", "y"), strict=True))
    assert len(marks) == 3
    for x, y in marks:
        assert y + 4 == pytest.approx(max(y0 + (x + 4 - x0) * (y1 - y0) / (x1 - x0), y1), abs=0.2)
    assert f"ridge, {H100.ridge_point('bf16'):.0f}" in words(svg)


def test_the_device_waits_for_short_kernels_only() -> None:
    for svg, waits in zip(svgs("gpu_model.race"), (True, False), strict=True):
        kernels = list(zip(boxes(svg, "blue", "x"), boxes(svg, "blue"), strict=True))
        gaps = [after - before - width - 1 for (before, width), (after, _) in pairwise(kernels)]
        assert all((gap > 1) == waits for gap in gaps)
        launched = [x + width + 1 for x, width in zip(boxes(svg, "violet", "x"), boxes(svg, "violet"), strict=True)]
        assert all(start >= issued - 0.2 for (start, _), issued in zip(kernels, launched, strict=True))


def test_passes_of_a_softmax_are_those_that_its_cost_counts() -> None:
    apart, fused = svgs("triton.fusion")
    arrows = [sum("head" in one.get("class", "") for one in svg.iter("polygon")) for svg in (apart, fused)]
    read, written = softmax_cost.unfused(1, 10**6, 1)
    _, least = softmax_cost.forward(1, 10**6, 1)
    assert arrows == [round((read + written) / 10**6), least / 10**6] == [8, 2]


def test_the_online_sum_ends_at_the_softmax_s_own() -> None:
    (svg,) = svgs("triton.online")
    heights = torch.tensor(boxes(svg, "quiet", "height")) / 26
    drawn = words(svg)
    assert drawn[-2] == f"s = {torch.exp(heights - heights.max()).sum():.2f}"
    maxima = [float(one.removeprefix("m = ")) for one in drawn if one.startswith("m")]
    assert maxima == pytest.approx(torch.cummax(heights, 0).values[3::4].tolist(), abs=0.05)


def test_attention_computes_the_tiles_that_a_query_may_see() -> None:
    (svg,) = svgs("triton.flash")
    tiles = [tone for tone in ("quiet", "blue", "orange", "blue dashed") for width in boxes(svg, tone) if width == 24]
    queries, keys = 6, 1  # blocks of queries, and the one of keys in orange
    assert len(tiles) - queries - keys == queries * (queries + 1) / 2
    (now,) = [x for x, y in zip(boxes(svg, "orange", "x"), boxes(svg, "orange", "y"), strict=True) if y > 40]
    assert len(boxes(svg, "blue dashed")) == 2 and max(boxes(svg, "blue dashed", "x")) < now


def test_pages_hold_the_sequence_and_are_shared_evenly() -> None:
    (svg,) = svgs("triton.pages")
    pool = [[width for width in boxes(svg, tone) if width == 20] for tone in ("blue", "orange", "quiet")]
    assert [len(pages) for pages in pool] == [3, 3, 6]
    for tone in ("blue", "orange"):  # a program stands above its own entries of the table
        (left, wide), *_ = [(x, w) for x, w in zip(boxes(svg, tone, "x"), boxes(svg, tone), strict=True) if w > 100]
        entries = [x for x, w in zip(boxes(svg, tone, "x"), boxes(svg, tone), strict=True) if w == 34]
        assert left == min(entries) and left + wide == max(entries) + 34


def test_programs_that_run_at_once_have_the_tiles_of_the_kernel_s_order() -> None:
    for svg, group in zip(svgs("triton.order"), (1, 4), strict=True):
        side = 16
        a, b = torch.zeros(16 * side, 16).half(), torch.zeros(16, 16 * side).half()
        tile = Tile(m=16, n=16, k=16, group=group)
        sizes = 16 * side, 16 * side, 16
        flags = {"EVEN": True, "PRECISION": "ieee", "ACTIVATION": "none", "BIAS": False, "KEEP": False}
        arguments = a, b, a.new_empty(sizes[:2]), None, None, *sizes, *a.stride(), *b.stride()
        seen = record(tile_kernel, 32, *arguments, outputs=["c_ptr"], **flags, **tile.constants())
        rows = {int(one) // (16 * 16 * 2) for one in seen.of(buffer="a_ptr")["offset"]}
        columns = {int(one) % (16 * side * 2) // 32 for one in seen.of(buffer="b_ptr")["offset"]}
        assert [len(boxes(svg, "orange")), len(boxes(svg, "green"))] == [len(rows), len(columns)]
        assert len(boxes(svg, "blue")) == len(rows) * len(columns) == 32
