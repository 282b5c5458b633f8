"""What the two small models of `mlsys_lab.inference.pretrained` learn from: the prose of chapters and labs, docstrings.

Released labs only: no model is trained on their solutions.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

from book.project import BOOK, LABS, ROOT
from mlsys_lab.inference.text import Message

FRONT_MATTER = re.compile(r"\A---\n.*?^---\n", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"^(`{3,})(?!`).*?^\1 *$", re.DOTALL | re.MULTILINE)
MARKUP = re.compile(r"^ *(?::{3,}.*|:[\w-]+:.*|\(.*\)=|\|.*|<.*|%.*)$", re.MULTILINE)
SENTENCE = re.compile(r"(?<=[.?!:])\s+")
CITATION = re.compile(r" ?\{(?:cite|ref|numref|eq)[^}]*\}`[^`]*`")
ROLE = re.compile(r"\{[\w:-]+\}`([^`<]*?)(?: ?<[^`>]*>)?`")
TERM = re.compile(r"^(\w.*)\n((?:  .*\n)+)", re.MULTILINE)
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def sections() -> list[str]:
    """Sections of the chapters, two more pages and the released labs: a heading, then paragraphs with blank lines."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((BOOK / "chapters").glob("[0-9][0-9]-*.md"))]
    texts += [path.read_text(encoding="utf-8") for path in (BOOK / "instructors.md", ROOT / "README.md")]
    texts += [_notebook_prose(path) for path in sorted(LABS.glob("*/*.ipynb"))]
    return [section for text in texts for section in split_sections(text)]


def split_sections(markdown: str) -> list[str]:
    """Prose of a page by section, without code, tables, directives, citations, and sentences that a cell completes."""
    plain = MARKUP.sub("", CODE.sub("", FRONT_MATTER.sub("", markdown)))
    found: list[list[str]] = []
    for paragraph in re.split(r"\n\s*\n", plain):
        if heading := re.fullmatch(r"#+ (.*)", paragraph.strip()):
            found.append([_clean(heading[1])])
        elif text := _clean(paragraph):
            found = found or [[]]
            found[-1].append(text)
    return ["\n\n".join(section) for section in found if len(section) > 1]


def questions() -> list[tuple[Message, Message]]:
    """A question and its answer for each term of the glossary, and for each public class and function of the package.

    The answer to the latter is the docstring, without examples.
    """
    glossary = (BOOK / "glossary.md").read_text(encoding="utf-8")
    asked = [
        (Message("user", f"What is {term}?"), Message("assistant", _clean(meaning)))
        for term, meaning in TERM.findall(glossary)
    ]
    for path in sorted((ROOT / "mlsys_lab").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                text = (ast.get_docstring(node) or "").partition(">>>")[0]
                question = f"What {'is' if isinstance(node, ast.ClassDef) else 'does'} `{node.name}`"
                question += "?" if isinstance(node, ast.ClassDef) else " do?"
                answer = "\n\n".join(" ".join(part.split()) for part in text.split("\n\n")).strip()
                if answer:
                    asked.append((Message("user", question), Message("assistant", answer)))
    return asked


def _notebook_prose(path: Path) -> str:
    cells: Iterator[dict[str, object]] = iter(json.loads(path.read_text(encoding="utf-8"))["cells"])
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")  # type: ignore


def _clean(paragraph: str) -> str:
    """A paragraph on one line, its roles and links replaced by their words."""
    joined = " ".join(paragraph.split())
    kept = [sentence for sentence in SENTENCE.split(joined) if "{glue" not in sentence and "{{" not in sentence]
    return LINK.sub(r"\1", ROLE.sub(r"\1", CITATION.sub("", " ".join(kept)))).strip()
