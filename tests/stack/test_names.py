"""What a cell's text seems to define, whether it is Python or not."""

import pytest

from mlsys_lab.stack.names import guess_names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("def f(x:\n    y = 1\nclass C(\n", ["f", "C"]),
        ("async def wait(): 0\n  inner = 1", ["wait"]),
        ("a = 1\nb = c = 2\nsize: int = 3", ["a", "b", "c", "size"]),
        ("a == 1\nb: int\nf(x=1)\nx[0] = 1\nx.y = 2\na += 1", []),
        ("import numpy as np, math\nfrom math import ceil, floor as down", ["np", "math", "ceil", "down"]),
        ("value = first == second", ["value"]),
        ("", []),
    ],
)
def test_names_are_read_off_the_text(text, names):
    assert guess_names(text) == names


def test_long_lines_take_no_time_to_speak_of():
    assert guess_names("a = " * 100_000 + "1")[:2] == ["a", "a"]
    assert guess_names(f"import {'a' * 1_000_000}(") == guess_names(f"import {'a, ' * 300_000}(")[300_000:] == []
    assert guess_names("a" * 1_000_000) == guess_names("a:" + " " * 1_000_000) == []
