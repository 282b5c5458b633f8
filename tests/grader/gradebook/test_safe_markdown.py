"""Markdown of a submission as nbgrader's pages show it."""

from html.parser import HTMLParser

import pytest

from mlsys_grader.gradebook.safe_markdown import render_markdown


@pytest.mark.parametrize(
    "source",
    [
        "<script>alert(1)</script>",
        "<SCRIPT SRC=//x></SCRIPT>",
        "<img src=x onerror=alert(1)>",
        "![tells who looks](http://x/p.png)",
        "![svg](data:image/svg+xml;base64,AAAA)",
        "<svg onload=alert(1)></svg>",
        "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
        "[x](javascript:alert(1))",
        "<a href='data:text/html,<script>alert(1)</script>'>x</a>",
        "<div id='essay' class='score' style='position:fixed'>x</div>",
        "<form action=x><input class=score></form>",
        "<style>body{display:none}</style>",
        "<math><mtext></p><script>alert(1)</script></mtext></math>",
        "<!--><script>alert(1)</script>-->",
        "```<script>alert(1)</script>```",
        "$<script>alert(1)</script>$",
    ],
)
def test_nothing_is_live(source):
    found = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: found.append((tag, dict(attributes)))
    parser.handle_comment = lambda text: found.append(("comment", {}))
    parser.feed(render_markdown(source))
    assert {tag for tag, _ in found} <= {"p", "a", "img", "div", "code"}
    assert {name for _, attributes in found for name in attributes} <= {"alt"}


def test_a_text_that_rendering_takes_the_square_of_is_shown_as_typed():
    assert render_markdown("\\begin{a}<" * 100_000) == "<pre>" + "\\begin{a}&lt;" * 100_000 + "</pre>"


def test_what_honest_authors_write_is_shown():
    assert render_markdown("# T\n*a* [b](https://b.org) `c<d`") == (
        '<h1>T</h1>\n<p><em>a</em> <a href="https://b.org">b</a> <code>c&lt;d</code></p>'
    )
    assert render_markdown("- $x<y$") == "<ul>\n<li>$x&lt;y$</li>\n</ul>"
    assert 'src="data:image/png;base64,AAAA"' in render_markdown("![plot](data:image/png;base64,AAAA)")
