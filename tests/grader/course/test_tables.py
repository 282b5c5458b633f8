"""CSV that no spreadsheet computes and no terminal obeys, and that reads back as it was written."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsys_grader.course.tables import format_csv, parse_csv
from mlsys_lab.errors import InputError

AWKWARD = st.text(st.sampled_from(list("=+-@＝'\"⟨⟩U+001B,;\t\r\n\x1b\x9b\u202e\ud800 aé")), max_size=12)


@given(st.lists(st.lists(AWKWARD | st.text(max_size=8), min_size=2, max_size=3), max_size=4))
def test_cells_are_harmless_and_read_back(rows):
    text = format_csv(rows)
    assert not any("\x7f" <= character <= "\x9f" or character < "\n" for character in text)
    for separator in ",;":
        for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator):
            assert not [cell for cell in row if cell.startswith(tuple("=+-@＝＋－＠"))]
    assert [row for _, row in parse_csv(text.encode().decode())] == rows


def test_what_a_person_types_is_taken_as_it_stands():
    text = "name,student\n=1+1,a\n't Hooft,b\n\"Doe, Jane\",c\n\n'quoted',d\n"
    assert [row for _, row in parse_csv(text)][1:] == [
        ["=1+1", "a"],
        ["'t Hooft", "b"],
        ["Doe, Jane", "c"],
        ["'quoted'", "d"],
    ]
    assert [line for line, _ in parse_csv(text)] == [1, 2, 3, 4, 6]


def test_what_is_no_table_is_one_line():
    with pytest.raises(InputError, match="line 1 of the table is not CSV"):
        list(parse_csv("a" * 200_000))
