"""The report of a run as one HTML page: the stack, its losses, prediction next to count and clock, and waterfalls."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from mlsys_lab.capstone.functions import call
from mlsys_lab.capstone.gains import Gain
from mlsys_lab.capstone.job import Calibration
from mlsys_lab.capstone.layers import LAYERS
from mlsys_lab.capstone.measurement import Comparison
from mlsys_lab.capstone.stack import Stack

SMOOTHED = 25
"""Fraction of a run, as its inverse, over which the losses are averaged."""
STYLE = """\
:root { color-scheme: light dark; --ink: #1d2433; --soft: #5b6475; --line: #dde2ea; --page: #fff; --card: #f5f7fa;
  --bound: #1b8a7a; --predicted: #3b76b8; --unpredicted: #d9642c; --measured: #7b8494; --bad: #b3261e }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --soft: #a0a9b8; --line: #343b48; --page: #14171d;
  --card: #1e232c; --bound: #3fbfab; --predicted: #6aa5e3; --unpredicted: #f08a56; --measured: #8b95a6;
  --bad: #ff8a80 } }
* { box-sizing: border-box }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 0 }
main { max-width: 66rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem }
h1 { font-size: 2rem; line-height: 1.2; margin: 0 } h2 { font-size: 1.25rem; margin: 2.75rem 0 .75rem }
p { margin: .4rem 0 }
.soft, figcaption, th, dt { color: var(--soft) } figure { margin: 0 }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(10.5rem, 1fr)); gap: .75rem; margin: 1.5rem 0 0 }
.cards div { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: .8rem 1rem }
dt { font-size: .82rem } dd { margin: 0; font-size: 1.5rem; font-weight: 600; font-variant-numeric: tabular-nums }
.scroll { overflow-x: auto } table { border-collapse: collapse; width: 100%; font-size: .88rem }
th, td { padding: .35rem .9rem .35rem 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top }
th { font-weight: 500 } td.number, th.number { text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums }
td.code { font-family: ui-monospace, monospace; font-size: .8rem } tr.equal td:last-child { color: var(--bound) }
tr.differs { color: var(--bad); font-weight: 600 } tr.yours td:last-child { color: var(--bound) }
.line { display: grid; grid-template: "name bar seconds" / 11rem 1fr 5rem; gap: 0 .9rem; align-items: center;
  font-size: .88rem; margin: .35rem 0 } .line > div { grid-area: bar } .line b { grid-area: seconds }
.line i { display: block; height: 1.35rem; border-radius: .2rem; min-width: 2px }
.line b { font-weight: 400; text-align: right; font-variant-numeric: tabular-nums }
.bound { background: var(--bound) } .predicted { background: var(--predicted) }
.unpredicted { background: var(--unpredicted) } .measured { background: var(--measured) }
.curve { position: relative; margin: .5rem 0 .5rem 1.5rem }
.curve span { position: absolute; width: 100%; border-top: 1px solid var(--line); height: 0 }
.curve em { position: absolute; left: -1.5rem; top: -.75rem; font: .82rem/1.5rem system-ui, sans-serif;
  color: var(--soft) }
svg { display: block; position: relative; width: 100%; height: 15rem }
polyline { fill: none; stroke: var(--measured); stroke-width: 1; opacity: .55; vector-effect: non-scaling-stroke }
polyline.smooth { stroke: var(--predicted); stroke-width: 2.5; opacity: 1 }
@media (max-width: 40rem) { main { padding-top: 1.5rem } h1 { font-size: 1.6rem } .wide { display: none }
  .line { grid-template: "name seconds" "bar bar" / 1fr 5rem; margin: .6rem 0 } }
"""


class Bar(NamedTuple):
    """A bar of a waterfall, from one time to another; `kind` is "bound", "predicted", "unpredicted" or "measured"."""

    name: str
    start_s: float
    end_s: float
    kind: str


class Trained(NamedTuple):
    """What a run's training left: losses of the steps in nats per token, and bits per byte, None before its end."""

    losses: Sequence[float]
    bits_per_byte: float | None


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


def render(
    stack: Stack,
    rows: Sequence[Comparison],
    calibration: Calibration,
    trained: Trained,
    gains: Sequence[Gain] = (),
) -> str:
    """The page as HTML, which needs no other file; `gains` are those of a swapped layer."""
    drawn = "\n".join(
        f"<h2>{escape(name)}</h2>\n{draw(bars)}" for name, bars in waterfalls(stack, rows, calibration).items()
    )
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"/><meta name="viewport" content="width=device-width"/>
<title>Your own stack</title><style>{STYLE}</style></head><body><main>
<h1>Your own stack</h1>
<p class="soft">One model, trained and served on the layers below; every cost was predicted first.</p>
{_cards(rows, trained)}
<h2>Layers</h2>
{_stack_table(stack)}
{_draw_losses(trained.losses)}
<h2>Predicted and measured</h2>
<p class="soft">Counts must be equal. Estimates and seconds stand next to what was measured.</p>
{_table(("cost", "predicted", "measured", "unit", "by", ""), map(_comparison, rows))}
{drawn}
{_gains_table(gains)}
</main></body></html>
"""


def draw(bars: Sequence[Bar]) -> str:
    """A waterfall: a line for each bar, with its seconds."""
    longest_s = max(max(bar.start_s, bar.end_s) for bar in bars) or 1.0
    lines = []
    for name, start_s, end_s, kind in bars:
        left, width = (100 * one / longest_s for one in (min(start_s, end_s), abs(end_s - start_s)))
        style = f"margin-left:{left:.2f}%;width:{width:.2f}%"
        seconds = _write_ms(end_s - start_s)
        bar = f'<div><i class="{kind}" style="{style}"></i></div>'
        lines.append(f'<div class="line"><span>{escape(name)}</span>{bar}<b>{seconds}</b></div>')
    return "\n".join(lines)


def _cards(rows: Sequence[Comparison], trained: Trained) -> str:
    by_key = {row.key: row for row in rows}
    counts = [row for row in rows if row.is_equal is not None]
    equal = sum(row.is_equal is True for row in counts)
    step = by_key["training_step_s"]
    figures = {
        "counts equal": f"{equal} of {len(counts)}",
        "parameters": f"{by_key['parameters'].measured:,.0f}",
        "a training step, predicted": _write_ms(step.predicted),
        "a training step, measured": _write_ms(step.measured),
    }
    if trained.bits_per_byte is not None:
        figures = {"bits per byte, held-out text": f"{trained.bits_per_byte:.3f}"} | figures
    cards = "".join(f"<div><dt>{name}</dt><dd>{text}</dd></div>" for name, text in figures.items())
    return f'<dl class="cards">{cards}</dl>'


def _stack_table(stack: Stack) -> str:
    rows = (
        (stack.sources[spec.field].kind, (spec.field, spec.topic, str(stack.sources[spec.field]))) for spec in LAYERS
    )
    return _table(("layer", "lab", "whose code ran"), rows)


def _draw_losses(losses: Sequence[float]) -> str:
    """The curve of the losses, and their running mean; nothing for fewer than two."""
    if len(losses) < 2:
        return ""
    low, high = min(losses), max(losses)
    half = len(losses) // (2 * SMOOTHED)
    means = [statistics.mean(losses[max(0, step - half) : step + half + 1]) for step in range(len(losses))]
    height = 100 / ((high - low) or 1.0)

    def line(values: Sequence[float], kind: str) -> str:
        width = 100 / (len(values) - 1)
        points = " ".join(f"{width * step:.2f},{height * (high - value):.2f}" for step, value in enumerate(values))
        return f'<polyline class="{kind}" points="{points}"/>'

    levels = "".join(
        f'<span style="top:{height * (high - nats):.2f}%"><em>{nats}</em></span>'
        for nats in range(math.ceil(low), math.floor(high) + 1)
    )
    smoothed = f"; the bold line is the mean of {2 * half + 1} steps" if half else ""
    curves = line(losses, "steps") + line(means, "smooth")
    return f"""<h2>Loss</h2>
<figure><div class="curve">{levels}<svg viewBox="0 0 100 100" preserveAspectRatio="none" role="img"
 aria-label="Training loss by step">{curves}</svg></div>
<figcaption>Nats per token over {len(losses)} steps, from {losses[0]:.2f} to {means[-1]:.2f}{smoothed}.</figcaption>
</figure>"""


def _write_ms(time_s: float) -> str:
    """Milliseconds with three digits or more, never as a power of ten."""
    time_ms = 1e3 * time_s
    return f"{time_ms:,.0f} ms" if abs(time_ms) >= 100 else f"{time_ms:.3g} ms"


def _gains_table(gains: Sequence[Gain]) -> str:
    if not gains:
        return ""
    headings = ("cost", "predicted", "predicted, swapped", "measured", "measured, swapped", "unit")
    rows = (("", (one.cost.name, *map(one.format, one[1:]), one.cost.unit)) for one in gains)
    return f"<h2>Swapped</h2>\n{_table(headings, rows)}"


def _comparison(row: Comparison) -> tuple[str, tuple[str, ...]]:
    cost, digits = row.cost, ",.4g" if row.cost.kind == "seconds" else ",.0f"
    verdict = {True: "equal", False: "differs", None: cost.kind}[row.is_equal]
    numbers = (f"{row.predicted:{digits}}", f"{row.measured:{digits}}")
    return verdict, (cost.name, *numbers, cost.unit, cost.source, verdict)


def _table(headings: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]]) -> str:
    """A table that scrolls on narrow screens; each row with its class."""
    classes = [_column_class(heading) for heading in headings]

    def cells(tag: str, texts: Sequence[str]) -> str:
        pairs = zip(classes, texts, strict=True)
        return "".join(f'<{tag} class="{kind}">{escape(text)}</{tag}>' for kind, text in pairs)

    body = "\n".join(f'<tr class="{kind}">{cells("td", texts)}</tr>' for kind, texts in rows)
    return (
        f'<div class="scroll"><table><thead><tr>{cells("th", headings)}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _column_class(heading: str) -> str:
    if heading.startswith(("predicted", "measured")):
        return "number"
    return {"by": "code wide", "lab": "wide"}.get(heading, "text")
