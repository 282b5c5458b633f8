"""Render HTML pages from templates: one file each, without scripts or external resources.

The templates in templates/ extend page.html, which states the policy. Every value is escaped.
"""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined


def render_webpage(template: str, **values: object) -> str:
    """Render a template with values.

    Raises `jinja2.UndefinedError` if the template uses a value that is missing.
    """
    return TEMPLATES.get_template(template).render(values)


def format_points(points: float) -> str:
    """Format points without trailing zeros.

    >>> format_points(4.0), format_points(2.5)
    ('4', '2.5')
    """
    return f"{points:g}"


def split_code(text: str) -> list[str]:
    """Split a text at its backticks: odd elements are code. With an unpaired backtick, the text as it is.

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
