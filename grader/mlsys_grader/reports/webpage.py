"""The pages that the grader writes: one HTML file each, which holds no script, loads nothing, and forbids both."""

from __future__ import annotations

from html import escape

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def webpage(title: str, style: str, body: str) -> str:
    """The page as HTML. `title` is plain text; `style` and `body` go in as they are."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escaped(title)}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


def escaped(plain: str) -> str:
    """Plain text, from whomever, as text of a page."""
    return escape(plain, quote=True)
