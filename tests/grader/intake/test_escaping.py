"""Text of a submission is rendered by nbgrader's pages: nothing in it may run, load, hide, or stop the page."""

from html.parser import HTMLParser

import pytest
from nbconvert.filters.markdown_mistune import markdown2html_mistune

from mlsys_grader.intake.escaping import defuse_markdown, escape_controls

TAGS = {"p", "a", "h1", "h2", "code", "pre", "div", "span", "em", "strong", "ul", "ol", "li", "br", "blockquote", "hr"}
TAGS |= {"table", "thead", "tbody", "tr", "th", "td"}
EVIL = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "<!--><script>x</script>",
    "<a\nhref=javascript:alert(1)>x</a>",
    "![](http://192.0.2.1/x.png) ![x][y]\n\n[y]: http://192.0.2.1/x.png",
    "[![a](http://192.0.2.1/x.png)](http://192.0.2.1)",
    "!\n[a](http://192.0.2.1/x.png)",
    "![](attachment:missing.png)",
    "[m](javascript:alert(1)) [m](JaVaScRiPt:alert(1)) <javascript:alert(1)>",
    "[m](<javascript:alert(1)>) [m](feed:javascript:alert(1)) [m](data:text/html;base64,PHNj)",
    "[m](&#106;avascript:alert(1)) [m](javascript&colon;alert(1)) [m](java&Tab;script:alert(1))",
    "[m][r]\n\n[r]: <java\tscript:alert(1)>",
    "# <img src=x onerror=alert(1)>",
    "a|b\n-|-\n<img src=x onerror=alert(1)>|c",
    "\\(<img src=x onerror=alert(1)>\\) \\begin{a}<img src=x onerror=alert(1)>\\end{a}",
    "\\<script>x</script> &lt;script&gt;",
    "[x](http://192.0.2.1 'title\" onclick=\"alert(1)')",
]


class Live(HTMLParser):
    """What a browser would run or load of a page."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        if tag not in TAGS:
            self.found.append(tag)
        for name, value in attributes:
            scheme = (value or "").partition(":")[0].strip().lower() if ":" in (value or "") else ""
            if (
                name.startswith("on")
                or name == "src"
                or (name == "href" and scheme in ("javascript", "data", "vbscript"))
            ):
                self.found.append(f"{name}={value}")


def live(html):
    parser = Live()
    parser.feed(html)
    return parser.found


@pytest.mark.parametrize("source", EVIL)
def test_markdown_is_inert_where_nbconvert_renders_it(source):
    assert live(markdown2html_mistune(defuse_markdown(source))) == []


def test_the_test_sees_what_is_live():
    assert live(markdown2html_mistune(EVIL[0])) == ["script"]
    assert "onerror=alert(1)" in live(markdown2html_mistune(EVIL[1]))
    assert live(markdown2html_mistune(EVIL[5])) != []


@pytest.mark.parametrize(
    "source",
    [
        "# A heading\n\nText with *stress*, `code`, [a link](https://example.org) and $a < b$, 1 < 2 & 3.",
        "- a list\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\nif a < b and not c != d:\n    pass\n```",
        "Grüße, 你好, שלום, 👩‍💻, x\u00a0y",
    ],
)
def test_honest_text_is_left_as_it_is(source):
    assert defuse_markdown(source) == source == escape_controls(source)


def test_tex_that_links_is_broken():
    assert r"\href" not in defuse_markdown(r"$\href{javascript:alert(1)}{x}$")
    assert r"\require" not in defuse_markdown(r"$\require{html}$")
    assert defuse_markdown(r"$\frac{a}{b} \sum \data$") == r"$\frac{a}{b} \sum \ data$"


def test_characters_that_hide_are_written_out():
    assert escape_controls("a\u202eb\x1b[2J\x00\tc\r\n") == "a⟨U+202E⟩b⟨U+001B⟩[2J⟨U+0000⟩\tc\r\n"
