"""Pages out of templates: one HTML file each, which holds no script, loads nothing, and forbids both.

The templates lie in templates/; each extends page.html, which states the policy. Every value that goes into one is
escaped, so that text of a submission stays text.
"""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined


def render_webpage(template: str, **values: object) -> str:
    """The HTML of a page, from the name of its template and the values that it shows.

    Raises `jinja2.UndefinedError` where the template asks for a value that was not given.
    """
    return TEMPLATES.get_template(template).render(values)


def format_points(points: float) -> str:
    """Points as people write them, without needless zeros.

    >>> format_points(4.0), format_points(2.5)
    ('4', '2.5')
    """
    return f"{points:g}"


def split_code(text: str) -> list[str]:
    """Text cut at its backticks: every second piece is code. Where a backtick has no partner, the text as it is.

    >>> split_code("`y` has the wrong value")
    ['', 'y', ' has the wrong value']
    >>> split_code("a lone ` stays")
    ['a lone ` stays']
    """
    pieces = text.split("`")
    return pieces if len(pieces) % 2 else [text]


TEMPLATES = Environment(
    loader=PackageLoader("mlsys_grader.reports"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
TEMPLATES.filters |= {"points": format_points, "split_code": split_code}
