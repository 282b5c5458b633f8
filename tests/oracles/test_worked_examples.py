"""Examples in numbers that chapters work before a formula, by arithmetic of their own."""

from __future__ import annotations

from pathlib import Path

CHAPTERS = Path(__file__).parents[2] / "book" / "chapters"


def _says(page: str, *numbers: str) -> bool:
    text = " ".join((CHAPTERS / f"{page}.md").read_text(encoding="utf-8").split())
    return all(number in text for number in numbers)


def test_a_columns_lines_and_a_banks_words() -> None:
    line, row = 64, 2048 * 4
    assert _says("03-inside-pytorch", f"all {line // 4} numbers of a line", f"{line // 4} times the data")
    assert _says("03-inside-pytorch", f"only {2048 * line // 1024} KiB", f"{row // 1024} KiB apart")
    assert 0 % 32 == 32 % 32 != 33 % 32
    assert _says("04-gpu-model", "Words 0 and 32 are in the same bank", "Words 0 and 33 take one")


def test_where_floor_and_bytes_weigh_the_same() -> None:
    elements = 1e-6 * 12e9 / 12
    assert _says("03-inside-pytorch", f"at {elements:,.0f} elements both parts are equal")
