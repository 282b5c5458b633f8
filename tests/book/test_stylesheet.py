from __future__ import annotations

from pathlib import Path

import pytest

from book.icons import masks
from book.stylesheet import bundle, page_words, prune, statements


def test_sheets_become_one_with_imports_and_addresses_led_anew(tmp_path: Path) -> None:
    (tmp_path / "styles").mkdir()
    (tmp_path / "base.css").write_text("b { x: url(data:image/svg+xml;base64,eA==) }")
    (tmp_path / "styles/theme.css").write_text('/* theme */ @import "../base.css";\na { x: url(../fonts/a.woff2) }')
    (tmp_path / "own.css").write_text('c { x: url("own/c.png"), url(#d) }')
    whole = bundle(tmp_path, ["styles/theme.css", "own.css"])
    assert whole.index("b {") < whole.index("a {") < whole.index("c {")
    assert 'url("fonts/a.woff2")' in whole and 'url("own/c.png"), url(#d)' in whole and "base64,eA==" in whole
    assert "@import" not in whole and "theme */" not in whole


@pytest.mark.parametrize(
    ("css", "kept"),
    [
        (".a .b, .a > .c { x: 1 }", ".a .b{x: 1}"),
        ("p, #here::before { x: 1 }", "p{x: 1}"),
        (".a:not(.c) [href='.c'] { x: 1 }", ".a:not(.c) [href='.c']{x: 1}"),
        (".c, :is(.c, .d) a { x: 1 }", ":is(.c, .d) a{x: 1}"),
        (r".c\:a, .md\:b { x: 1 }", r".md\:b{x: 1}"),
        ('.a { x: "} .c {" } .c { x: 1 }', '.a{x: "} .c {"}'),
        ("@media print { .c { x: 1 } @supports (y: z) { .a { x: 1 } } }", "@media print{@supports (y: z){.a{x: 1}}}"),
        ("@media print { .c { x: 1 } }", ""),
        ("@font-face { x: url(a;b) } @page c { y { x: 1 } }", "@font-face{x: url(a;b)}\n@page c{y { x: 1 }}"),
        ("@charset 'utf-8'; @layer a, b; .a { x: 1 } /* .c { */", "@layer a, b;\n.a{x: 1}"),
    ],
)  # fmt: skip
def test_rules_for_what_no_page_has_go(css: str, kept: str) -> None:
    assert prune(css, {"a", "b", "md:b"}) == kept


def test_a_statement_ends_where_a_browser_ends_it() -> None:
    assert list(statements("a { b { c: d } } @e f; g { h: ';' }")) == [
        ("a", "b { c: d }"), ("@e f", None), ("g", "h: ';'"),
    ]  # fmt: skip


def test_words_are_those_of_pages_and_of_scripts(tmp_path: Path) -> None:
    page, script = tmp_path / "a.html", tmp_path / "a.js"
    page.write_text('<p class="one two-three" id="four">five</p>')
    script.write_text('node.classList.add("six-seven")')
    assert {"one", "two-three", "four", "six-seven"} <= page_words([page], [script])
    assert "five" not in page_words([page], [script])


def test_an_icon_that_a_page_shows_is_a_mask() -> None:
    script = (
        'x={bars:[448,512,["navicon"],"f0c9","M0 96z"],"arrow-up":[384,512,[8593],"f062",["M1","M2 3#"]],'
        'sun:[1,2,[],"f1","M"]}'
    )
    css = masks(script, {"fa-bars", "fa-arrow-up", "sun"})
    assert ".fa-bars{" in css and "viewBox='0 0 448 512'" in css and "--icon-width:0.875em" in css
    assert "d='M2 3%23'" in css and ".fa-sun" not in css
