"""Examples in numbers that chapters work before a formula, by arithmetic of their own."""

from __future__ import annotations

from math import exp
from pathlib import Path

import pytest

CHAPTERS = Path(__file__).parents[2] / "book" / "chapters"


def _says(page: str, *numbers: str) -> bool:
    text = " ".join((CHAPTERS / f"{page}.md").read_text(encoding="utf-8").split())
    return all(number in text for number in numbers)


def test_a_threads_number_and_an_elements_place() -> None:
    assert _says("05-cuda", f"$1 \\cdot 64 + 5 = {1 * 64 + 5}$", f"word 33 in bank {33 % 32}")
    assert _says("03-inside-pytorch", f"$2 \\cdot 4 + 1 \\cdot 1 = {2 * 4 + 1}$")


def test_a_columns_lines_and_a_banks_words() -> None:
    line, row = 64, 2048 * 4
    assert _says("03-inside-pytorch", f"all {line // 4} numbers of a line", f"{line // 4} times the data")
    assert _says("03-inside-pytorch", f"only {2048 * line // 1024} KiB", f"{row // 1024} KiB apart")
    assert 0 % 32 == 32 % 32 != 33 % 32
    assert _says("04-gpu-model", "Words 0 and 32 are in the same bank", "words 0 and 33 take one")


def test_requests_of_a_register_tile() -> None:
    ours, worklog = (4 + 4) / 16 + 2 * (64 + 64) / 64**2, (8 + 8) / 64 + 2 * (128 + 128) / 128**2
    assert _says("05-cuda", f"Together {ours},", f"\\tfrac{{4}}{{128}} = {worklog}$")
    assert 2 * (16 + 16) / 16**2 == 4 / 16
    assert _says("05-cuda", "filling adds $\\tfrac{4}{16}$", f"one of $b$, {32 + 1} for 32 multiply-adds")


def test_where_floor_and_bytes_weigh_the_same() -> None:
    elements = 1e-6 * 12e9 / 12
    assert _says("03-inside-pytorch", f"at {elements:,.0f} elements both parts are equal")


def test_a_softmax_by_hand_and_in_two_parts() -> None:
    parts = [exp(x - 3) for x in (1, 2, 3)]
    shown = ", ".join(f"{part / sum(parts):.2f}" for part in parts)
    assert _says("06-triton", f"sum {sum(parts):.2f}", f"({shown})", f"({parts[0]:.2f}, {parts[1]:.2f}, 1)")
    part = exp(1 - 3) + 1
    whole = part * exp(3 - 4) + 1
    assert whole == pytest.approx(sum(exp(x - 4) for x in (1, 3, 4)), rel=1e-12)
    assert _says("06-triton", f"= {part:.3f}$", f"to {part * exp(-1):.3f}", f"on top: {whole:.3f}")


def test_attention_by_hand() -> None:
    values = (10, 20, 30)
    for seen, shown in ((3, ""), (2, "the result ")):
        parts = [exp(x) for x in range(1, seen + 1)]
        weights = [part / sum(parts) for part in parts]
        result = sum(weight * value for weight, value in zip(weights, values, strict=False))
        terms = " + ".join(f"{weight:.2f} · {value}" for weight, value in zip(weights, values, strict=False))
        whole = (
            f"{terms} = {result:.1f}" if seen == 3 else f"{weights[0]:.2f} and {weights[1]:.2f} and {shown}{result:.1f}"
        )
        assert _says("06-triton", whole)
    assert _says("06-triton", f"$e^{{2.2 - 2.8}} = {exp(2.2 - 2.8):.2f}$", f"$2 \\cdot 20 + 3 = {2 * 20 + 3}$")


def test_numbers_that_flash_attention_asks_for() -> None:
    tokens, block, width = 256, 64, 64
    keys = sum(range(block, tokens + 1, block))
    flash, scores = 2 * tokens * width + 2 * keys * width, 4 * tokens**2
    beside = 2 * tokens * width + 2 * (tokens // block) * tokens * width
    assert _says("06-triton", f"{keys} together", f"{flash:,} in all", f"{beside:,} more")
    ours, naive = 2 * flash + 4 * tokens, 4 * scores + 2 * beside + 4 * tokens
    in_math = [f"{number:,}".replace(",", "{,}") for number in (flash, scores, beside, ours, naive)]
    assert _says("06-triton", *in_math)
