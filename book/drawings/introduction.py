"""Drawings of chapter 01: reading weights against multiplying with them, and an exchange of gradients behind both.

Times are bounds of an H100 for a model of the chapter's size.
"""

from __future__ import annotations

from markupsafe import Markup

from book.drawings.kit import box, drawing, line, panel, text
from mlsys_lab.flops.roofline import critical_batch
from mlsys_lab.hardware import device


def wall() -> Markup:
    """Time to read all weights and time to multiply with them, for growing numbers of tokens at once."""
    h100, n_params = device("H100"), 8e9
    read_s = 2 * n_params / h100.memory_bandwidth_bytes_per_s
    balanced = round(critical_batch(h100.ridge_point("bf16")))
    counts = (1, 64, balanced, 2 * balanced)
    longest = 2 * n_params * counts[-1] / h100.peak("bf16")
    pieces = []
    for number, count in enumerate(counts):
        y = 8 + 52 * number
        compute_s = 2 * n_params * count / h100.peak("bf16")
        busy = min(1.0, compute_s / read_s)
        pieces.append(text(2, y + 13, f"{count} token{'s' * (count > 1)}", size="small", anchor="start"))
        pieces.append(box(82, y, max(250 * read_s / longest, 1), 16, tone="violet"))
        pieces.append(box(82, y + 19, max(250 * compute_s / longest, 1), 16, tone="blue"))
        beside = 90 + 250 * read_s / longest
        if busy < 1:
            pieces.append(text(beside, y + 30, f"busy {busy:.1%}", "blue", size="small", anchor="start"))
    x = 82 + 250 * read_s / longest
    pieces.append(text(x + 8, 21, "read weights", "violet", size="small", anchor="start"))
    pieces.append(text(x + 8, 177, "multiply", "blue", size="small", anchor="start"))
    pieces += [line(x, 4, x, 216), text(x, 232, f"{1e3 * read_s:.1f} ms", "violet", size="small")]
    return drawing(
        "Four pairs of bars, for 1, 64 and more tokens at once. Reading the weights takes as long each time; the "
        "arithmetic is a hair's breadth for one token and as long as reading for about three hundred.",
        panel(340, 238, pieces),
    )


def exchange() -> Markup:
    """A backward pass and the exchange of its gradients, with few, enough and many tokens on each GPU."""
    h100, n_params = device("H100"), 8e9
    send_s = 4 * n_params / h100.link("NVLink").per_direction_bytes_per_s
    critical = h100.peak("bf16") / h100.link("NVLink").per_direction_bytes_per_s
    scale = 250 / (3 * send_s)
    pieces = []
    for number, count in enumerate((round(critical / 4), round(critical), round(3 * critical))):
        y = 8 + 58 * number
        compute_s = 4 * n_params * count / h100.peak("bf16")
        pieces.append(text(2, y + 13, f"{count:,}", size="small", anchor="start"))
        pieces.append(text(2, y + 30, "tokens", "quiet", size="small", anchor="start"))
        pieces.append(box(82, y, scale * compute_s, 16, tone="blue"))
        pieces.append(box(82, y + 19, scale * send_s, 16, tone="violet"))
        if compute_s < 0.99 * send_s:
            pieces.append(line(82 + scale * compute_s, y + 8, 82 + scale * send_s, y + 8, "orange"))
            words = "waits for the wires"
            pieces.append(text(88 + scale * send_s, y + 13, words, "orange", size="small", anchor="start"))
    pieces.append(text(88 + scale * send_s, 37, "exchange", "violet", size="small", anchor="start"))
    pieces.append(text(88 + scale * send_s, 79, "backward pass", "blue", size="small", anchor="start"))
    return drawing(
        "Three pairs of bars for growing numbers of tokens on each GPU. The exchange takes as long each time; the "
        "backward pass is shorter with few tokens, as long at about two thousand, and longer beyond.",
        panel(340, 168, pieces),
    )


DRAWINGS = {"wall": wall, "exchange": exchange}
