"""What the small models read: prose without code and markup, docstrings as questions, and no solution of a lab."""

import re

from book.corpus import questions, sections, split_sections
from book.project import ROOT

PAGE = """---
kernelspec: python
---

# Title

First *sentence* with $x$. It takes {glue:text}`time` seconds. See {term}`decode <decoding>` {cite}`dao2022`.
Second line, [a link](https://example.org/a).

```{code-cell} python
:tags: [remove-cell]
print("code")

# not a heading
```

:::{note}
:class: tip
Inside a box.
:::

| a | b |
|---|---|

(label)=
## Next

Words `in code`.

### Empty
"""


def test_a_page_is_cut_into_sections_of_prose():
    first = "Title\n\nFirst *sentence* with $x$. See decode. Second line, a link.\n\nInside a box."
    assert split_sections(PAGE) == [first, "Next\n\nWords `in code`."]


def test_chapters_and_labs_are_read_and_hold_neither_code_nor_markup():
    found = sections()
    assert len(found) > 100 and sum(map(len, found)) > 150_000
    assert any("You will build" in section for section in found)
    for word in ("{code-cell}", "{glue", "import torch", "BEGIN SOLUTION", ":tags:"):
        assert not [section for section in found if word in section and "`" + word not in section]


def test_docstrings_and_terms_are_questions_with_answers():
    asked = {question.content: answer.content for question, answer in questions()}
    assert asked["What is bandwidth?"].startswith("The rate at which bytes move")
    assert asked["What is `Paged`?"].startswith("Cache of `num_blocks` blocks")
    assert len(asked) > 800
    assert not [answer for answer in asked.values() if ">>>" in answer]


def test_no_line_of_a_solution_is_read():
    source = (ROOT / "solutions/01-autograd/01-autograd.py").read_text(encoding="utf-8")
    written = "\n".join(re.findall("### BEGIN SOLUTION\n(.*?)### END SOLUTION", source, re.DOTALL)).splitlines()
    lines = {line.strip() for line in written if len(line.strip()) > 30}
    read = "\n".join([*sections(), *(turn.content for pair in questions() for turn in pair)])
    assert len(lines) > 30 and not [line for line in lines if line in read]
