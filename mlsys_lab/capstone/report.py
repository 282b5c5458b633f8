"""The report of a run as one HTML page: the stack, prediction next to count and clock, and waterfalls of seconds."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from mlsys_lab.capstone.functions import call
from mlsys_lab.capstone.job import Calibration
from mlsys_lab.capstone.measurement import Comparison
from mlsys_lab.capstone.stack import Stack

WIDTH, LABEL_WIDTH, BAR_HEIGHT = 760, 250, 22
STYLE = """\
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem }
:root { color-scheme: light dark }
table { border-collapse: collapse } th, td { padding: .2rem .7rem; text-align: right }
th:first-child, td:first-child, td:last-child { text-align: left; white-space: nowrap }
tr.differs { font-weight: bold; color: #c0392b }
svg { width: 100%; height: auto } svg text { font-size: 13px; fill: currentColor } pre { overflow-x: auto }
.bound { fill: #2a9d8f } .predicted { fill: #457b9d } .unpredicted { fill: #e76f51 } .measured { fill: #6c757d }
"""


class Bar(NamedTuple):
    """A bar of a waterfall, from one time to another; `kind` is "bound", "predicted", "unpredicted" or "measured"."""

    name: str
    start_s: float
    end_s: float
    kind: str


def waterfalls(stack: Stack, rows: Sequence[Comparison], calibration: Calibration) -> dict[str, list[Bar]]:
    """Bars from the bound to the measurement: of a training step by the stack's `waterfall`, and of the decode steps.

    What the sheet did not predict is Python between the operations, arrays that a cache does not hold, and
    interruptions; it is negative where the sheet predicted too much.
    """
    predicted = {row.key: row.predicted for row in rows}
    measured = {row.key: row.measured for row in rows}
    bars = call(stack, "capstone", "waterfall", predicted, measured, calibration.peak_flops_per_s)
    kinds = ["bound", *["predicted"] * (len(bars) - 2), "unpredicted"]
    bound_s, decode_s = predicted["decode_s"], measured["decode_s"]
    return {
        "A training step": [
            *(Bar(name, start_s, end_s, kind) for (name, start_s, end_s), kind in zip(bars, kinds, strict=True)),
            Bar("measured", 0.0, measured["training_step_s"], "measured"),
        ],
        "The decode steps": [
            Bar("bound", 0.0, bound_s, "bound"),
            Bar("not predicted", bound_s, decode_s, "unpredicted"),
            Bar("measured", 0.0, decode_s, "measured"),
        ],
    }


def render(stack: Stack, rows: Sequence[Comparison], calibration: Calibration) -> str:
    """The page as HTML, which needs no other file."""
    counts = [row for row in rows if row.is_equal is not None]
    equal = sum(row.is_equal is True for row in counts)
    drawn = "\n".join(
        f"<h2>{escape(name)}</h2>\n{draw(name, bars)}" for name, bars in waterfalls(stack, rows, calibration).items()
    )
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Your own stack</title><style>{STYLE}</style></head><body>
<h1>Your own stack</h1>
<pre>{escape(stack.report())}</pre>
<h2>Predicted and measured</h2>
<p>{equal} of {len(counts)} counts are equal. Estimates and seconds stand next to what was measured.</p>
<table><thead><tr><th>cost</th><th>predicted</th><th>measured</th><th>unit</th><th>by</th><th></th></tr></thead><tbody>
{"".join(map(_table_row, rows))}</tbody></table>
{drawn}
</body></html>
"""


def draw(name: str, bars: Sequence[Bar]) -> str:
    """A waterfall as SVG."""
    longest_s = max(max(bar.start_s, bar.end_s) for bar in bars) or 1.0
    scale = (WIDTH - LABEL_WIDTH - 90) / longest_s
    lines = []
    for number, (label, start_s, end_s, kind) in enumerate(bars):
        y, x = number * (BAR_HEIGHT + 6), LABEL_WIDTH + scale * min(start_s, end_s)
        width, middle = max(1.0, scale * abs(end_s - start_s)), y + BAR_HEIGHT - 6
        lines.append(f'<text x="0" y="{middle}">{escape(label)}</text>')
        lines.append(f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR_HEIGHT}"/>')
        seconds = f"{1e3 * (end_s - start_s):,.3g} ms"
        lines.append(f'<text x="{x + width + 6:.1f}" y="{middle}">{seconds}</text>')
    height, alt = len(bars) * (BAR_HEIGHT + 6), f"{name}: seconds from the bound to the measurement"
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(alt)}">{"".join(lines)}</svg>'


def _table_row(row: Comparison) -> str:
    cost, digits = row.cost, ",.4g" if row.cost.kind == "seconds" else ",.0f"
    verdict = {True: "equal", False: "differs", None: cost.kind}[row.is_equal]
    cells = (cost.name, f"{row.predicted:{digits}}", f"{row.measured:{digits}}", cost.unit, cost.source, verdict)
    return f'<tr class="{verdict}">{"".join(f"<td>{escape(cell)}</td>" for cell in cells)}</tr>\n'
