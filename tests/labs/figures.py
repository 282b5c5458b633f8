"""The numbers that a lab's text states, and what of it has been held against where they come from."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Iterator

from tests.labs.harness import LabUnderTest

ELSEWHERE = (
    r"\$\$.*?\$\$",
    r"\$[^$]*\$",
    r"`[^`]*`",
    r"^ *[|#].*?$",
    r"\*\*(?:Size|Time|Points):\*\*[^*]*",
    r"\*About \d+ minutes\.\*",
    r"\*\*\d[a-d]\.",
    r"^ *\d\. ",
    r"\b(?:[Ll]abs?|[Cc]hapters?|Tasks?|Part|Lecture|table|CSC\d+) ?\d+(?: (?:and|to) \d+)?",
    r"\b(?:19|20)\d\d\b",
)
"""Mathematics, code, tables, headings, sizes and times of tasks (tested elsewhere), references: no figures."""
UNITS = {"hundred": 1e2, "thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12, "%": 1e-2}
WORDS = {"half": 0.5, "eight": 8, "sixteen": 16, "forty": 40, "sixty": 60}
FIGURE = re.compile(
    r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e\d+)?(?:[ -](?:%|hundred|thousand|million|billion|trillion))?"
    r"|\b(?:half a percent|(?:one|two|three|four|five|six|seven|eight|nine|ten) (?:thousand|million|billion)"
    r"|eight|sixteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety)\b"
)


def texts_of(lab: LabUnderTest) -> str:
    """All of a lab's text, without its code."""
    cells = lab.reference_notebook["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def literals_of(lab: LabUnderTest) -> frozenset[float]:
    """All numbers that stand in a lab's code."""
    cells = lab.reference_notebook["cells"]
    trees = (ast.parse("".join(cell["source"])) for cell in cells if cell["cell_type"] == "code")
    found = (node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return frozenset(float(value) for value in found if isinstance(value, int | float))


def figures_in(text: str) -> Iterator[re.Match[str]]:
    """Numbers of a text that say more than a digit does: in figures or in words, with what they are multiplied by."""
    for pattern in ELSEWHERE:
        text = re.sub(pattern, lambda found: " " * len(found[0]), text, flags=re.DOTALL | re.MULTILINE)
    return (found for found in FIGURE.finditer(text) if not re.fullmatch(r"\d,?", found[0]))


def value_of(figure: str) -> float:
    """The number that a figure stands for."""
    if figure == "half a percent":
        return 0.005
    number, _, unit = figure.replace("-", " ").partition(" ")
    amount = WORDS[number] if number in WORDS else float(number.replace(",", ""))
    return amount * UNITS.get(unit, 1)


def places_of(phrase: str, text: str) -> list[range]:
    """Where a phrase stands in a text, whatever its line breaks."""
    pattern = r"\s+".join(re.escape(word) for word in phrase.split())
    return [range(*found.span()) for found in re.finditer(pattern, text)]


def uncovered(text: str, phrases: Iterable[str]) -> list[str]:
    """Figures of a text that stand in none of the phrases, each with what is around it."""
    covered = [place for phrase in phrases for place in places_of(phrase, text)]
    alone = [one for one in figures_in(text) if not any(one.start() in place for place in covered)]
    return [" ".join(text[max(0, one.start() - 30) : one.end() + 30].split()) for one in alone]


def assert_held(
    lab: LabUnderTest, *, computed: Iterable[str] = (), in_code: Iterable[str] = (), given: Iterable[str] = ()
) -> None:
    """Each figure of the text stands in a phrase, and each phrase in the text.

    Phrases are made of what is `computed`; or their figures are literals of the lab's own cells, `in_code`; or they are
    `given`: examples, names, published figures, and what another test holds.
    """
    text, in_code = texts_of(lab), list(in_code)
    phrases = [*computed, *in_code, *given]
    assert [phrase for phrase in phrases if not places_of(phrase, text)] == []
    assert uncovered(text, phrases) == []
    literals = literals_of(lab)
    for phrase in in_code:
        figures = [value_of(found[0].strip(" ,")) for found in figures_in(phrase)]
        known = [
            any(math.isclose(one, literal * scale) for literal in literals for scale in (1, 1e-9)) for one in figures
        ]
        assert figures and all(known), phrase
