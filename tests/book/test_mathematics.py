"""Formulas set at build: HTML that needs no script, MathML in it, one style sheet; and what is no TeX is an error."""

from __future__ import annotations

import pytest

from book.assets import FONTS
from book.mathematics import typeset
from mlsys_lab.errors import InputError

INLINE, DISPLAY = ("x^2", False), (r"\begin{split}a &= \boldsymbol{b}\\ &= c\end{split}", True)


def test_formulas_are_html_with_mathml_for_those_who_hear_them() -> None:
    found = typeset({INLINE, DISPLAY})
    assert set(found.html) == {INLINE, DISPLAY}
    assert "<msup><mi>x</mi><mn>2</mn></msup>" in found.html[INLINE]
    assert 'display="true"' in found.html[DISPLAY] and 'display="true"' not in found.html[INLINE]
    assert "<script" not in "".join(found.html.values())


def test_the_style_sheet_has_the_letters_of_all_formulas_and_the_fonts_beside_it() -> None:
    both, one = typeset({INLINE, DISPLAY}).css, typeset({INLINE}).css
    x, c = "mjx-c1D465.TEX-I::before", "mjx-c1D450.TEX-I::before"
    assert x in both and c in both
    assert x in one and c not in one
    assert f'url("{FONTS}/MathJax_Math-Italic.woff")' in one


def test_no_formulas_are_no_error() -> None:
    assert typeset(set()).html == {}


@pytest.mark.parametrize("tex", [r"\nosuchmacro{x}", r"\frac{1}"])
def test_what_is_no_tex_is_an_error_with_the_formula(tex: str) -> None:
    with pytest.raises(InputError) as refused:
        typeset({INLINE, (tex, False)})
    assert tex in str(refused.value)
