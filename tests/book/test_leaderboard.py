"""The leaderboard's tables: best first by each figure, and entries of bundles that are there as they were run again."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from mlsys_lab.errors import InputError

BOOK = Path(__file__).parents[2] / "book"
sys.path.insert(0, str(BOOK / "_ext"))

import leaderboard  # noqa: E402  # a module of the book's extension folder

ENTRY = leaderboard.Entry("ada", "https://example.org", date(2026, 11, 30), "", "abc", 3, "a CPU", 2.25, 0.4, 0.125)


def test_each_table_has_its_best_entry_first() -> None:
    other = replace(ENTRY, name="<bob>", link="", bits_per_byte=2.5, fraction_of_bound=0.5, prediction_error=0.25)
    figures = []
    for ranking in leaderboard.RANKINGS:
        html = leaderboard.table([other, ENTRY], ranking)
        assert '<a href="https://example.org">ada</a>' in html and "<td>&lt;bob&gt;</td>" in html
        figures.append(re.findall(r'<tr><td data-value="\d">(\d).*?<td data-value="[\d.]+">([^<]+)</td>', html))
    assert figures == [
        [("1", "2.25"), ("2", "2.5")],
        [("1", "50.0%"), ("2", "40.0%")],
        [("1", "12.5%"), ("2", "25.0%")],
    ]


def test_the_boards_own_entries_are_of_bundles_that_are_there() -> None:
    assert {entry.name for entry in leaderboard.load()} == {path.stem for path in leaderboard.BUNDLES.iterdir()}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("fraction_of_bound", "fraction"), "entry 1: got name, link, .*, expected name, link"),
        (("own_layers = 0", "own_layers = true"), "entry 1: own_layers: got True, expected int"),
        (('link = ""', 'link = "javascript:alert()"'), "entry 1: link: got javascript:"),
        (('sha256 = "', 'sha256 = "0'), "entry 1: the bundle is not the one that was run again"),
        (("[[entries]]", "[entries"), "leaderboard.toml has no entries"),
    ],
)
def test_another_entry_is_refused_in_one_line(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    text = leaderboard.ENTRIES.read_text(encoding="utf-8")
    assert change[0] in text
    path = tmp_path / "leaderboard.toml"
    path.write_text(text.replace(*change, 1), encoding="utf-8")
    with pytest.raises(InputError, match=said) as error:
        leaderboard.load(path)
    assert "\n" not in str(error.value)
