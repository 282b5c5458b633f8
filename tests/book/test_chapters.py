"""Every chapter keeps what can be counted of a finished chapter; each rule is also shown a chapter that breaks it."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest
from pybtex.database import parse_file

ROOT = Path(__file__).parents[2]
BOOK = ROOT / "book"
sys.path.insert(0, str(BOOK / "_ext"))

import readings  # noqa: E402  # a module of the book's extension folder

WORDS = range(3_000, 6_501)
PROBLEMS = range(4, 10)  # with the design problem
TAKEAWAYS, PREDICTIONS = range(2, 7), range(2, 5)
DRAWINGS = 4
TITLE = 36  # characters of a figure's title that fit a telephone 390 px wide
PAGES = sorted((BOOK / "chapters").glob("*.md"))
SYLLABUS = readings.load_syllabus()
CITABLE = set(parse_file(str(BOOK / "data" / "references.bib")).entries)

_FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.S)
_FENCED = re.compile(r"^(`{3,})(?P<head>[^\n]*)\n(?P<inside>.*?)^\1[ ]*$", re.S | re.M)
_BOX = re.compile(
    r"^(:{3,})\{admonition\} (?P<title>[^\n]+)\n:class: (?P<kind>[\w-]+)\n(?P<inside>.*?)^\1[ ]*$", re.S | re.M
)
_ANSWER = re.compile(r"^(:{3,})\{dropdown\} Answer\n(?P<inside>.*?)^\1[ ]*$", re.S | re.M)
_ROLE = re.compile(r"\{(?P<name>[\w:]+)\}`(?P<text>[^`]+)`")
_COMPUTED = "{glue:text}`"


def glossary_terms(text: str) -> set[str]:
    """The terms of a glossary page, in lower case: the lines of its {glossary} blocks that are not indented."""
    blocks = [block["inside"] for block in _FENCED.finditer(text) if block["head"] == "{glossary}"]
    return {line.lower() for block in blocks for line in block.splitlines() if line and not line[0].isspace()}


TERMS = glossary_terms((BOOK / "glossary.md").read_text("utf-8"))


@dataclass(frozen=True)
class Page:
    """A chapter's source, and the parts of it that the rules speak of."""

    name: str
    text: str

    @property
    def entry(self) -> readings.Chapter | None:
        """The chapter of the syllabus whose page has this name."""
        return next((c for c in SYLLABUS.chapters if c.page == f"chapters/{self.name}"), None)

    @cached_property
    def body(self) -> str:
        """The text without front matter and fenced blocks: no code, but boxes with what they hold."""
        return _FENCED.sub("", _FRONT_MATTER.sub("", self.text))

    @property
    def words(self) -> int:
        """Words that a reader reads: no directive lines, no mathematics; a role counts as one word."""
        text = re.sub(r"\$\$.*?\$\$", "", self.body, flags=re.S)
        text = re.sub(r"^:.*$", "", text, flags=re.M)
        text = _ROLE.sub("word", re.sub(r"\$[^$\n]+\$|\]\([^)]*\)", " ", text))
        return len(re.findall(r"[^\W\d_][\w'’-]*", text))

    def fenced(self, head: str) -> list[str]:
        """The insides of the fenced blocks that begin with `head`, such as "{code-cell}"."""
        return [block["inside"] for block in _FENCED.finditer(self.text) if block["head"].startswith(head)]

    def boxes(self, kind: str) -> dict[str, str]:
        """Title and inside of each admonition of the class `kind`."""
        return {box["title"]: box["inside"] for box in _BOX.finditer(self.body) if box["kind"] == kind}

    def role(self, name: str) -> list[str]:
        """What stands between the backticks of each role whose name matches `name`."""
        return [role["text"] for role in _ROLE.finditer(self.body) if re.fullmatch(name, role["name"])]


def title(page: Page) -> list[str]:
    """The file and the title are those of a chapter of the syllabus."""
    if page.entry is None:
        return [f"no chapter of the syllabus is chapters/{page.name}"]
    found = re.findall(r"^# (.+)$", page.body, re.M)
    return [] if found == [page.entry.title] else [f"titles {found}, expected {page.entry.title!r} alone"]


def question(page: Page) -> list[str]:
    """The first thing under the title is a quoted question, in bold where it asks."""
    opening = re.match(r"\s*# .+\n+((?:> .+\n)+)", page.body)
    asked = opening and re.search(r"\*\*[^*]+\?\*\*", opening[1].replace("\n> ", " "))
    return [] if asked else ["does not open with a question in a quotation"]


def length(page: Page) -> list[str]:
    """As long as a chapter should be."""
    return [] if page.words in WORDS else [f"{page.words} words, expected {WORDS.start} to {WORDS.stop - 1}"]


def problems(page: Page) -> list[str]:
    """Numbered problems, each with one folded answer that takes a number from the page's own cells."""
    boxes = page.boxes("problem")
    numbers = [int(n) for box in boxes for n in re.findall(r"^Problem (\d+) · \S", box)]
    found = (
        [] if len(boxes) in PROBLEMS else [f"{len(boxes)} problems, expected {PROBLEMS.start} to {PROBLEMS.stop - 1}"]
    )
    if numbers != list(range(1, len(boxes) + 1)):
        found.append(f"problems numbered {numbers}")
    for name, inside in boxes.items():
        answers = [answer["inside"] for answer in _ANSWER.finditer(inside)]
        if len(answers) != 1:
            found.append(f"{name}: {len(answers)} folded answers")
        elif _COMPUTED not in answers[0]:
            found.append(f"{name}: nothing in the answer is computed")
    return found


def closing(page: Page) -> list[str]:
    """The question is answered in a box with a number that the page computed."""
    boxes = page.boxes("key-result")
    return [] if any(_COMPUTED in box for box in boxes.values()) else ["no box answers the question with a number"]


def takeaways(page: Page) -> list[str]:
    """Two to six boxes say what to remember; the cheat sheet collects them."""
    count = len(re.findall(r"^:class: takeaway$", page.body, re.M))
    return [] if count in TAKEAWAYS else [f"{count} takeaways, expected {TAKEAWAYS.start} to {TAKEAWAYS.stop - 1}"]


def predictions(page: Page) -> list[str]:
    """Each prediction has lettered choices, and an answer that begins with the letter of one."""
    boxes = [box["inside"] for box in _BOX.finditer(page.body) if box["kind"] == "predict"]
    found = [] if len(boxes) in PREDICTIONS else [f"{len(boxes)} predictions, expected 2 to 4"]
    for box in boxes:
        choices = re.findall(r"^- ([A-F])\) ", box, re.M)
        answer = re.search(r"\{dropdown\} Answer\n([A-F])\. ", box)
        if len(choices) < 2 or answer is None or answer[1] not in choices:
            found.append(f"a prediction without choices and their letter in its answer: {box.strip()[:40]}")
    return found


def practice(page: Page) -> list[str]:
    """The last problem is a design, and a section says what practitioners meet."""
    boxes = list(page.boxes("problem"))
    found = [] if boxes and " · Design" in boxes[-1] else ["the last problem is no design"]
    return found if re.search(r"^## In practice$", page.body, re.M) else [*found, "no section In practice"]


def figure(page: Page) -> list[str]:
    """At least one interactive figure is shown, and the titles of all fit a telephone."""
    cells = [cell for cell in page.fenced("{code-cell}") if "remove-cell" not in cell and "remove-output" not in cell]
    shown = any(re.search(r"^(?:show|element)\(", cell, re.M) for cell in cells)
    found = [] if shown else ["no interactive figure"]
    titles = [title for cell in cells for title in re.findall(r"update_layout\(\s*title=\"([^\"]+)\"", cell)]
    return found + [f"title of {len(title)} characters: {title}" for title in titles if len(title) > TITLE]


def lab(page: Page) -> list[str]:
    """A box links each lab of the chapter that is written; every lab that the page links exists."""
    linked = {box: re.findall(r"\]\(\.\./(labs/[\w-]+)\.ipynb\)", text) for box, text in page.boxes("lab-box").items()}
    found = [f"{box}: no link to a lab" for box, links in linked.items() if not links]
    for own in page.entry.labs if page.entry else ():
        if own.page and (ROOT / own.page).is_dir() and [own.page] not in linked.values():
            found.append(f"no box links {own.page}")
    every = re.findall(r"\(\.\./(labs/[^)]+)\.ipynb\)", page.body)
    return found + [f"no such lab: {link}" for link in every if not (ROOT / link / "lab.toml").is_file()]


def read_next(page: Page) -> list[str]:
    """One list of readings, the chapter's own, under the last heading."""
    arguments = [
        b["head"].split(maxsplit=1)[1:] for b in _FENCED.finditer(page.text) if b["head"].startswith("{readings")
    ]
    own = page.entry.topic if page.entry else page.name
    found = [] if arguments == [[own]] else [f"readings of {arguments}, expected [[{own!r}]]"]
    headings = re.findall(r"^## (.+)$", page.body, re.M)
    return found if headings[-1:] == ["Read next"] else [*found, f"the last heading is {headings[-1:]}"]


def citations(page: Page) -> list[str]:
    """Every key that is cited is in references.bib, and something is cited."""
    keys = [key.strip() for text in page.role(r"cite(:\w+)?") for key in text.split(",")]
    return [f"not in references.bib: {key}" for key in keys if key not in CITABLE] + ["nothing is cited"] * (not keys)


def terms(page: Page) -> list[str]:
    """Every term that is linked is in the glossary, and some are."""
    linked = page.role("term")
    targets = [re.sub(r".*<(.+)>$", r"\1", text, flags=re.S).lower() for text in linked]
    return [f"not in the glossary: {t}" for t in targets if t not in TERMS] + ["no term is linked"] * (not linked)


def values(page: Page) -> list[str]:
    """Every value that the text takes is made by a cell, and every value made for the text is taken."""
    made = re.findall(r"\bglue\(\s*(f?)\"([^\"]+)\"", "\n".join(page.fenced("{code-cell}")))
    patterns = {key: re.sub(r"\\\{.*?\\\}", ".+", re.escape(key)) if f else re.escape(key) for f, key in made}
    taken = {re.sub(r":[^:]*$", "", text) for text in page.role("glue:text")}
    unmade = [key for key in taken if not any(re.fullmatch(pattern, key) for pattern in patterns.values())]
    unused = [key for key, pattern in patterns.items() if not any(re.fullmatch(pattern, name) for name in taken)]
    return [f"no cell makes {key}" for key in sorted(unmade)] + [f"the text never takes {key}" for key in unused]


def _made_and_used(cell: str) -> tuple[set[str], set[str]]:
    """Names that a cell's code binds, and those that it reads."""
    nodes = list(ast.walk(ast.parse(re.sub(r"^:tags:.*\n", "", cell))))
    named = [node for node in nodes if isinstance(node, ast.Name)]
    made = {node.id for node in named if isinstance(node.ctx, ast.Store)}
    made |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    made |= {(node.asname or node.name).split(".")[0] for node in nodes if isinstance(node, ast.alias)}
    made |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    return made, {node.id for node in named if isinstance(node.ctx, ast.Load)}


def hidden(page: Page) -> list[str]:
    """No cell that a reader sees, or can unfold, reads a name that only a hidden cell has made."""
    found: list[str] = []
    shown: set[str] = set()
    unseen: set[str] = set()
    for cell in page.fenced("{code-cell}"):
        made, used = _made_and_used(cell)
        if re.match(r":tags: .*remove-(cell|input)", cell):
            unseen |= made
        else:
            found += [f"made in a hidden cell: {name}" for name in sorted((used - made - shown) & unseen)]
            shown |= made
    return found


def drawn(page: Page) -> list[str]:
    """At least four drawings, each named and with a caption."""
    count = len(re.findall(r"^```\{drawing\} \S+\n:name: \S+\n\S", page.text, re.M))
    return [] if count >= DRAWINGS else [f"{count} drawings, expected at least {DRAWINGS}"]


Rule = Callable[[Page], list[str]]
RULES: tuple[Rule, ...] = (
    title, question, takeaways, predictions, practice, length, problems, closing, figure, lab, read_next, citations,
    terms, values, hidden, drawn,
)  # fmt: skip


def load(path: Path) -> Page:
    return Page(path.stem, path.read_text("utf-8"))


def test_the_chapters_found_are_those_of_the_syllabus() -> None:
    found = [f"chapters/{path.stem}" for path in PAGES]
    assert found
    assert found == sorted(chapter.page for chapter in SYLLABUS.chapters if chapter.page)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_chapter_keeps(path: Path, rule: Rule) -> None:
    assert rule(load(path)) == []


# What each rule must notice: an edit of the chapter on automatic differentiation, and a part of the complaint.
BROKEN: tuple[tuple[Rule, str, str, str], ...] = (
    (title, r"(?m)^# Automatic", "# Semiautomatic", "titles ['Semiautomatic differentiation']"),
    (question, r"(?m)^> ", "", "does not open"),
    (question, r"\?\*\*", ".**", "does not open"),
    (length, r"(?s)\n## Forward mode.*?\n## Worked problems", "\n## Worked problems", "expected 3000 to 6500"),
    (length, r"(?m)^(This is the chain rule.*)$", r"\1" + " more" * 5_000, "expected 3000 to 6500"),
    (takeaways, r":class: takeaway", ":class: note", "0 takeaways"),
    (predictions, r":class: predict", ":class: note", "0 predictions"),
    (predictions, r"(?m)^- ([A-F])\) ", "- ", "a prediction without choices"),
    (practice, r" · Design: ", " · ", "the last problem is no design"),
    (practice, r"(?m)^## In practice", "## At work", "no section In practice"),
    (problems, r":class: problem", ":class: note", "0 problems"),
    (problems, r"Problem 3 ·", "Problem 4 ·", "numbered [1, 2, 4, 4, 5, 6, 7]"),
    (problems, r"\{dropdown\} Answer", "{note}", "Problem 1 · A neuron by hand: 0 folded answers"),
    (problems, r"\{glue:text\}`p2_\w+`", "six", "Problem 2 · Assigned, not added: nothing in the answer"),
    (closing, r":class: key-result", ":class: note", "no box answers"),
    (figure, r"(?m)^(show|element)\(", "print(", "no interactive figure"),
    (figure, r"(?m)^show\(", 'figure.update_layout(title="' + 37 * "x" + '")\nshow(', "title of 37 characters"),
    (lab, r":class: lab-box", ":class: note", "no box links labs/01-autograd"),
    (lab, r"\.\./labs/01-autograd", "../labs/01-autogard", "no such lab: labs/01-autogard"),
    (read_next, r"\{readings\} automatic-differentiation", "{readings} introduction", "readings of [['introduction']]"),
    (read_next, r"(?m)^## Read next", "## Further reading", "['Further reading']"),
    (citations, r"baydin2018", "baydin2081", "not in references.bib: baydin2081"),
    (terms, r"\{term\}`Checkpointing <checkpointing>`", "{term}`Checkpointing <check>`", "not in the glossary: check"),
    (values, r'glue\("answer_k"', 'glue("answer_j"', "no cell makes answer_k"),
    (hidden, r":tags: \[remove-cell\]\n", ":tags: [remove-cell]\nprint = print\n", "made in a hidden cell: print"),
    (drawn, r"(?m)^:name: \S+\n", "", "0 drawings, expected at least 4"),
    (values, r'glue\("answer_k"', 'glue("spare", 1)\nglue("answer_k"', "the text never takes spare"),
)


@pytest.mark.parametrize(("rule", "old", "new", "complaint"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
def test_a_rule_notices(rule: Rule, old: str, new: str, complaint: str) -> None:
    page = load(BOOK / "chapters" / "02-automatic-differentiation.md")
    broken = Page(page.name, re.sub(old, new, page.text))
    assert rule(page) == []
    assert complaint in "\n".join(rule(broken))


def test_every_rule_is_shown_a_chapter_that_breaks_it() -> None:
    assert {rule for rule, *_ in BROKEN} == set(RULES)


def test_words_are_those_that_a_reader_reads() -> None:
    text = (
        "---\nkernelspec: python3\n---\n# A title\n\n"
        ":::{admonition} Box\n:class: note\nIn {term}`a box <b>`, $x y$ and [a link](to/it).\n:::\n\n"
        "```{code-cell} python\nno = words\n```\n\n$$no words$$\n\nIt's {glue:text}`n` well-made `bytes`.\n"
    )
    read = ("A", "title", "In", "term", "and", "a", "link", "It's", "value", "well-made", "bytes")
    assert Page("sample", text).words == len(read)


def test_a_page_that_the_syllabus_does_not_have_is_named() -> None:
    assert title(Page("99-nothing", "# Nothing\n")) == ["no chapter of the syllabus is chapters/99-nothing"]


def test_the_glossary_is_read() -> None:
    assert {"activation", "ridge point", "mfu", "vector-jacobian product"} <= TERMS
    assert glossary_terms("```{glossary}\nA term\n  Says what.\n\nB\n  And more.\n```\ntext\n") == {"a term", "b"}
