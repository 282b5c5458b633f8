"""Render outcomes: a card in a notebook for light and dark themes, plain text in a terminal."""

from __future__ import annotations

import sys
from html import escape

from mlsys_checks.runner import Report

# Contrast at least 3:1 on white and on JupyterLab's dark #111111; text uses the theme's colour.
PASSED, UNFINISHED, WRONG = "#2e9e5b", "#b7791f", "#e0524a"
MONO = "font-family:ui-monospace,monospace;font-size:0.92em;white-space:pre-wrap;overflow-wrap:anywhere;margin:0"

SHOWN_LINES = 6
"""Lines of code that a card shows unfolded."""


def _verdict(report: Report) -> tuple[str, str, str]:
    """Sign, word and colour of an outcome."""
    if report.passed:
        return "✓", "passed", PASSED
    return ("○", "still to do", UNFINISHED) if report.unfinished else ("✗", "not right yet", WRONG)


def _facts(report: Report) -> list[tuple[str, str, bool]]:
    """Rows of a report: label, text, and whether the text is code."""
    if report.mismatch is None:
        return []
    facts = [("what", report.mismatch.what, False)]
    values = (("got", report.mismatch.got), ("expected", report.mismatch.expected))
    facts += [(label, value, True) for label, value in values if value]
    facts += [("hint", report.hint, False)] if report.hint else []
    if report.case is not None and not report.unfinished:
        facts += [("case", report.case.name, False)]
        facts += [("given", report.given, True)] if report.given else []
    return facts


def _tally(report: Report) -> str:
    points = f"{report.points:g} of {report.check.points:g} points"
    if report.unfinished:
        return points
    cases = "1 case" if report.cases == 1 else f"{report.cases} cases"
    return f"{points} · {cases} · {report.time_s * 1e3:.0f} ms"


def html(report: Report, footer: str = "") -> str:
    """A self-contained card. Everything from the learner's code is escaped."""
    sign, word, colour = _verdict(report)
    rows = "".join(
        f'<div style="display:contents"><span style="opacity:.7">{label}</span>'
        + (_folded(text) if code else f"<span>{_inline(text)}</span>")
        + "</div>"
        for label, text, code in _facts(report)
    )
    grid = f'<div style="display:grid;grid-template-columns:max-content 1fr;gap:2px 12px;margin-top:6px">{rows}</div>'
    foot = f'<div style="opacity:.7;margin-top:6px">{escape(footer)}</div>' if footer else ""
    return (
        f'<div role="status" style="border-left:4px solid {colour};padding:6px 12px;margin:4px 0;line-height:1.45;'
        f'color:var(--jp-ui-font-color1,inherit);background:rgba(127,127,127,.10);border-radius:3px">'
        f'<span style="color:{colour};font-weight:700">{sign} {word}</span> '
        f"<strong>{escape(report.check.title)}</strong> "
        f'<span style="opacity:.7">{_tally(report)}</span>{grid if rows else ""}{foot}</div>'
    )


def _folded(code: str) -> str:
    """Escaped code, behind a line that opens it where it is long."""
    block = f'<pre style="{MONO};background:none">{escape(code)}</pre>'
    count = code.count("\n") + 1
    return (
        block
        if count <= SHOWN_LINES
        else f"<details><summary>{count} lines that you can run</summary>{block}</details>"
    )


def _inline(text: str) -> str:
    """Escape prose and set `…` as code."""
    parts = escape(text).split("`")
    if len(parts) % 2 == 0:  # unpaired backtick: show the text unchanged
        return escape(text)
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


def text(report: Report, footer: str = "") -> str:
    """An outcome as plain text for a terminal."""
    sign, word, _ = _verdict(report)
    lines = [f"{sign} {word}: {report.check.title} ({_tally(report)})"]
    for label, said, _ in _facts(report):
        lines += [f"  {label + ':':<9} " + said.replace("\n", "\n" + " " * 12)]
    return "\n".join(lines + ([f"  {footer}"] if footer else []))


def show(report: Report, footer: str = "") -> None:
    """Display the card in a notebook, else print the text."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None:
        print(text(report, footer))
        return
    from IPython.display import display

    display({"text/html": html(report, footer), "text/plain": text(report, footer)}, raw=True)  # type: ignore[no-untyped-call]
