"""Drawings of chapter 04: chip, memories to scale, grid to lane, warps that wait, operands, roofline, host and device.

Sizes and rates are those of the H100 in `hardware`, intensities those of `flops`; schedules follow the rule they show.
"""

from __future__ import annotations

import math

from markupsafe import Markup

from book.drawings.kit import Panel, arrow, box, cells, curve, drawing, line, panel, text
from mlsys_lab.flops.einsum import Einsum
from mlsys_lab.flops.peaks import implied_clock_hz
from mlsys_lab.hardware import device
from mlsys_lab.kernels.trace.banks import BANKS, WORD_BYTES
from mlsys_lab.kernels.trace.events import WARP
from mlsys_lab.kernels.trace.occupancy import SCHEDULERS

H100 = device("H100")
LANES = H100.fp32_lanes // H100.units
REGISTER_BYTES = H100.register_bytes_per_unit or 0
SHARED_BYTES = H100.shared_bytes_per_unit or 0
L1_BYTES = 256 * 1024
"""L1 cache and shared memory of a multiprocessor, one memory (NVIDIA's tuning guide for Hopper)."""
L2_BYTES = H100.l2_bytes or 0
TENSOR_HZ = implied_clock_hz(H100.peak("bf16"), SCHEDULERS * H100.units, 512)
"""The clock for which the tensor cores' peak is stated: one for each scheduler, 512 multiply-adds in a clock."""
SHARED_RATE = BANKS * WORD_BYTES * TENSOR_HZ * H100.units  # bytes/s of all multiprocessors


def chip() -> Markup:
    """The multiprocessors of an H100, and what one of them has."""
    columns = 12
    rows = -(-H100.units // columns)
    first = (rows - 1, columns - 1)
    pieces = cells(2, 2, rows, columns, lambda *at: "blue" if at == first else "quiet", size=11, gap=2)
    bottom = 6 + 13 * rows
    pieces += [
        box(2, bottom, 154, 26, f"L2, {L2_BYTES / 2**20:.0f} MiB", "green"),
        arrow(60, bottom + 52, 60, bottom + 28, "quiet"),
        arrow(98, bottom + 28, 98, bottom + 52, "quiet"),
        box(2, bottom + 54, 154, 34, f"HBM, {H100.memory_bytes / 2**30:.0f} GiB", "violet"),
    ]
    inside = []
    for quarter in range(SCHEDULERS):
        x, y = 4 + 166 * (quarter % 2), 4 + 96 * (quarter // 2)
        inside += [box(x, y, 162, 90), box(x + 6, y + 6, 68, 22, "scheduler", "orange")]
        inside.append(box(x + 78, y + 6, 78, 22, "tensor core", "orange"))
        inside.append(box(x + 6, y + 34, 150, 22, f"registers, {REGISTER_BYTES / 1024 / SCHEDULERS:.0f} KiB", "green"))
        inside += cells(x + 6, y + 64, 2, LANES // SCHEDULERS // 2, lambda *_: "blue", size=7.5, gap=2)
    inside.append(box(4, 196, 328, 26, f"shared memory, {SHARED_BYTES / 1024:.0f} KiB", "green"))
    return drawing(
        f"Left: {H100.units} SMs as small squares, an L2 cache below them, and the memory below that. "
        f"Right: one SM with {SCHEDULERS} schedulers, each with {LANES // SCHEDULERS} lanes, a tensor core "
        "and registers; shared memory below them all.",
        panel(158, bottom + 92, pieces, title=f"{H100.units} SMs"),
        panel(336, 226, inside, title="one SM"),
    )


def memories() -> Markup:
    """Sizes of an H100's memories as areas, and rates as lengths, both to scale."""
    side = 172
    sizes = (
        ("registers", H100.units * REGISTER_BYTES, "blue"),
        ("L1/shared", H100.units * L1_BYTES, "green"),
        ("L2", L2_BYTES, "orange"),
    )
    areas = [box(2, 2, side, side, tone="violet"), text(14, 26, "HBM", "violet", size="strong", anchor="start")]
    areas.append(text(14, 46, f"{H100.memory_bytes / 1e9:.0f} GB", "violet", size="small", anchor="start"))
    for number, (name, size_bytes, tone) in enumerate(sizes):
        y = 92 + 34 * number
        edge = side * math.sqrt(size_bytes / H100.memory_bytes)
        areas += cells(side + 26 - edge / 2, y - edge / 2 - 4, 1, 1, lambda *_, tone=tone: tone, size=edge)
        words = f"{name}, {size_bytes / 1e6:.0f} MB"
        areas.append(text(side + 38, y, words, tone, size="small", anchor="start"))
    rates = (
        ("shared memory", SHARED_RATE, "green"),
        ("HBM", H100.memory_bandwidth_bytes_per_s, "violet"),
        ("other GPUs", H100.link("NVLink").per_direction_bytes_per_s, "orange"),
        ("the host", H100.link("PCIe").per_direction_bytes_per_s, "plain"),
    )
    lengths = []
    for number, (name, rate, tone) in enumerate(rates):
        y = 14 + 48 * number
        label = f"{name}, {rate / 1e9:,.0f} GB/s"
        lengths += [text(2, y, label, tone, size="small", anchor="start")]
        lengths.append(box(2, y + 6, max(332 * rate / SHARED_RATE, 1), 16, tone=tone))
    return drawing(
        "Areas: a large square for HBM, and next to it three tiny ones for registers, L1 and shared memory, and L2. "
        "Lengths: a long bar for the rate of shared memory, a tenth of it for the memory, hardly anything for links.",
        panel(340, side + 4, areas, title="capacity, as areas"),
        panel(336, 190, lengths, title="bandwidth, as lengths"),
    )


def hierarchy() -> Markup:
    """What is launched, part by part, beside what takes each part."""
    warps, blocks = 4, 12
    levels = (
        ("grid", f"the chip, {H100.units} SMs"),
        ("block", "one SM, to its end"),
        ("warp", f"one of {SCHEDULERS} schedulers"),
        ("thread", "one lane"),
    )
    pieces = []
    for number, (name, taker) in enumerate(levels):
        y = 8 + 62 * number
        pieces += [text(2, y + 20, name, size="strong", anchor="start"), box(182, y, 156, 30, taker, "orange")]
        pieces.append(arrow(162, y + 15, 180, y + 15))
    for y, wide in ((8, 14), (70, 21), (132 - 8, 4.5)):
        pieces += [line(62, y + 32, 62, y + 58, "blue"), line(62 + wide, y + 32, 156, y + 58, "blue")]
    pieces += cells(62, 8, 2, blocks // 2, lambda *at: "blue" if at == (1, 0) else "quiet", size=14, gap=2)
    pieces += [box(62 + 25 * w, 70, 21, 30, tone="blue" if w == 0 else "quiet") for w in range(warps)]
    pieces += cells(62, 139, 2, WARP // 2, lambda *at: "blue" if at == (1, 0) else "quiet", size=4.5, gap=1.5)
    pieces.append(box(62, 194, 96, 30, "registers", "blue"))
    return drawing(
        "Four levels from top to bottom. A grid of blocks goes to the chip; a block of warps to one multiprocessor, "
        "where it stays; a warp of 32 threads to one scheduler; a thread to one lane.",
        panel(340, 230, pieces),
    )


def latency() -> Markup:
    """A scheduler with few and with many warps, each of which works a little and then waits for memory."""
    return drawing(
        "Warps as rows over time, each working briefly and then waiting long. With two warps the scheduler stands idle "
        "most of the time; with five it always has one that is ready.",
        _turns(2, title="2 warps"),
        _turns(5, title="5 warps"),
    )


def _turns(warps: int, title: str, work: int = 3, wait: int = 12, end: int = 30) -> Panel:
    """Turns that a scheduler gives to warps: the one that has been ready longest goes first."""
    unit = 272 / end
    ready = [0] * warps
    now, pieces, busy = 0, [], 0
    below = 10 + 24 * warps
    while now < end:
        warp = min(range(warps), key=lambda w: ready[w])
        now = max(now, ready[warp])
        until = min(now + work, end)
        if now < end:
            for y in (8 + 24 * warp, below):
                pieces.append(box(64 + unit * now, y, unit * (until - now) - 1, 18, tone="blue"))
            busy += until - now
            wakes = min(now + work + wait, end)
            if wakes > until:
                y = 17 + 24 * warp
                pieces.append(line(64 + unit * until, y, 63 + unit * wakes, y, "orange"))
        now, ready[warp] = now + work, now + work + wait
    labels = [text(2, 21 + 24 * w, f"warp {w}", size="small", anchor="start") for w in range(warps)]
    labels.append(text(2, below + 14, "issues", size="strong", anchor="start"))
    labels.append(text(336, below + 36, f"busy {busy / end:.0%} of the time", size="small", anchor="end"))
    return panel(340, below + 44, line(2, below - 4, 338, below - 4), pieces, labels, title=title)


def operands() -> Markup:
    """Where a matmul's operands and results are on their way through an SM, in three generations."""
    ways = (
        ("Ampere", "threads", "registers", "registers", "green"),
        ("Hopper", "TMA", "", "registers", "green"),
        ("Blackwell", "TMA", "", "TMEM", "green"),
    )
    pieces = []
    for number, (name, mover, operand, result, tone) in enumerate(ways):
        x = 2 + 115 * number
        middle = x + 53
        pieces += [text(middle, 16, name, size="strong"), box(x, 28, 106, 26, "L2, HBM", "violet")]
        pieces += [arrow(middle, 56, middle, 80), text(middle + 8, 72, mover, size="small", anchor="start")]
        pieces += [box(x, 82, 106, 26, "shared memory", "green")]
        if operand:
            pieces += [arrow(middle, 110, middle, 132), box(x, 134, 106, 26, operand, tone)]
            pieces.append(arrow(middle, 162, middle, 184))
        else:
            pieces.append(arrow(middle, 110, middle, 184))
        pieces += [box(x, 186, 106, 26, "tensor core", "orange"), arrow(middle, 214, middle, 236)]
        pieces.append(box(x, 238, 106, 26, result, tone))
    return drawing(
        "Three columns from memory down to the results. Ampere: threads copy to shared memory, from there to "
        "registers, the tensor core and registers. Hopper: TMA copies to shared memory, which feeds the tensor core; "
        "results go to registers. Blackwell: the same, with results in tensor memory.",
        panel(340, 268, pieces),
    )


def roofline() -> Markup:
    """An H100's roof on two logarithmic axes, three kernels at their bounds, and two ways up for a fourth."""
    low, high = 0.125, 4096.0
    bottom, ceiling = 1e11, 2e15

    def at(intensity: float, speed: float) -> tuple[float, float]:
        x = 40 + 292 * math.log(intensity / low) / math.log(high / low)
        return x, 214 - 200 * math.log(speed / bottom) / math.log(ceiling / bottom)

    def roof(intensity: float) -> tuple[float, float]:
        return at(intensity, H100.attainable("bf16", intensity))

    ridge = H100.ridge_point("bf16")
    pieces = [line(40, 214, 336, 214, "plain"), line(40, 8, 40, 214, "plain")]
    for intensity in (0.25, 1.0, 16.0, 256.0):
        x, _ = at(intensity, bottom)
        pieces += [line(x, 214, x, 219), text(x, 232, f"{intensity:g}", "quiet", size="small")]
    for speed in (1e12, 1e13, 1e14, 1e15):
        _, y = at(low, speed)
        pieces += [line(36, y, 40, y), text(34, y + 4, f"{speed / 1e12:g}", "quiet", size="small", anchor="end")]
    x, y = roof(ridge)
    pieces += [curve([roof(low), (x, y), roof(high)], "blue"), line(x, y, x, 214)]
    pieces.append(text(x - 5, 204, f"ridge, {ridge:.0f}", size="small", anchor="end"))
    layer = {"i": 1024, "o": 4096}
    marked = (
        ("ReLU", 1 / 4, "start"),
        ("layer, batch 1", Einsum.parse("bi,io->bo", layer, b=1).intensity(2), "start"),
        ("batch 512", Einsum.parse("bi,io->bo", layer, b=512).intensity(2), "middle"),
    )
    for name, intensity, anchor in marked:
        x, y = roof(intensity)
        pieces += cells(x - 4, y - 4, 1, 1, lambda *_: "green", size=8)
        place = (x + 9, y + 10) if anchor == "start" else (x, y - 9)
        pieces.append(text(*place, name, "green", size="small", anchor=anchor))
    slow, nearer = 24.0, 160.0
    x, y = at(slow, H100.attainable("bf16", slow) / 6)
    up, right = roof(slow), at(nearer, H100.attainable("bf16", nearer) / 6)
    pieces += cells(x - 4, y - 4, 1, 1, lambda *_: "orange", size=8)
    pieces += [arrow(x, y - 6, up[0], up[1] + 3, "orange"), arrow(x + 6, y - 4, right[0], right[1], "violet")]
    pieces.append(text(x - 6, (y + up[1]) / 2 + 4, "1", "orange", size="strong", anchor="end"))
    pieces.append(text(right[0] + 4, right[1] + 16, "2", "violet", size="strong"))
    pieces.append(text(46, 16, "TFLOP/s", "quiet", size="small", anchor="start"))
    pieces.append(text(336, 252, "FLOP per byte of memory", "quiet", size="small", anchor="end"))
    return drawing(
        "Speed over intensity on logarithmic axes: a slope up to the ridge, a flat roof beyond. A ReLU and a layer of "
        "batch 1 lie low on the slope, batch 512 at the ridge. From a kernel below the roof an arrow goes up to it, "
        "another up and to the right, parallel to it.",
        panel(340, 258, pieces),
    )


def race() -> Markup:
    """Host and device in time: launches that take longer than their kernels, and shorter."""
    return drawing(
        "Two pairs of rows in time, launches by the host above kernels on the device. Where kernels are shorter than "
        "launches the device waits for each; where they are longer the host runs ahead and the device never waits.",
        _launches(2.0, "short kernels"),
        _launches(7.0, "long kernels"),
    )


def _launches(kernel: float, title: str, launch: float = 4.0, count: int = 5) -> Panel:
    """Launches and kernels, in any unit of time: a kernel begins when it has been launched and the last is over."""
    unit = 276 / (launch + count * 7.0)
    pieces = [text(2, y, word, size="small", anchor="start") for y, word in ((22, "host"), (64, "device"))]
    done = 0.0
    for number in range(count):
        begins = max(done, launch * (number + 1))
        if begins > done and number:
            pieces.append(line(56 + unit * done, 59, 55 + unit * begins, 59, "orange"))
        done = begins + kernel
        pieces.append(box(56 + unit * launch * number, 4, unit * launch - 1, 26, number, "violet"))
        pieces.append(box(56 + unit * begins, 46, unit * kernel - 1, 26, number, "blue"))
    share = count * kernel / (done - launch)
    pieces.append(text(56, 92, f"device busy {share:.0%}", size="small", anchor="start"))
    return panel(340, 98, pieces, title=title)


DRAWINGS = {
    "chip": chip,
    "memories": memories,
    "hierarchy": hierarchy,
    "latency": latency,
    "operands": operands,
    "roofline": roofline,
    "race": race,
}
