"""A lab's report as one HTML page: plots as inline SVG, no script, nothing loaded, legible in light and dark."""

from __future__ import annotations

from mlsys_grader.reports.summary import CheckSummary, Summary
from mlsys_grader.reports.webpage import escaped, webpage

STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1f2328; --soft: #59636e; --line: #d1d9e0; --bar: #0969da;
  --lost: #d1242f33; --card: #f6f8fa; }
@media (prefers-color-scheme: dark) { :root { --back: #0d1117; --text: #e6edf3; --soft: #9198a1; --line: #3d444d;
  --bar: #4493f8; --lost: #f8514944; --card: #151b23; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem;
  background: var(--back); color: var(--text); overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; margin: 0; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
.facts { display: flex; flex-wrap: wrap; gap: .75rem; margin: 1rem 0 0; padding: 0; }
.facts div { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .5rem .9rem; }
.facts dt { font-size: .8rem; color: var(--soft); }
.facts dd { margin: 0; font-size: 1.3rem; font-variant-numeric: tabular-nums; }
svg { display: block; width: 100%; height: auto; max-width: 40rem; }
svg text { fill: var(--text); font: 13px system-ui, sans-serif; }
svg .soft { fill: var(--soft); font-size: 12px; }
svg .bar { fill: var(--bar); }
svg .axis { stroke: var(--line); }
.check { display: grid; grid-template-columns: minmax(0, 15rem) minmax(6rem, 12rem) minmax(0, 1fr); gap: .2rem 1.2rem;
  padding: .6rem 0; border-top: 1px solid var(--line); align-items: start; }
.name { font-weight: 600; }
.name code, .soft { font-weight: 400; color: var(--soft); font-size: .88rem; }
.name code { display: block; }
.rate { display: grid; grid-template-columns: 1fr 3.2rem; gap: .5rem; align-items: center; padding-top: .35rem; }
.rate svg { height: .8rem; border-radius: .2rem; background: var(--lost); }
.seconds svg { background: var(--line); }
.rate span { text-align: right; font-variant-numeric: tabular-nums; }
ul { margin: 0; padding: 0; list-style: none; font-size: .92rem; }
li { padding: .15rem 0; }
li code { font: .92em ui-monospace, monospace; }
li > .soft { display: block; }
li b { font-variant-numeric: tabular-nums; }
footer { margin-top: 2.5rem; font-size: .85rem; color: var(--soft); }
@media (max-width: 44rem) { .check { grid-template-columns: 1fr; } .rate { max-width: 20rem; }
  svg text { font-size: 20px; } svg .soft { font-size: 18px; } }
"""
SHOWN = 3
"""Failures shown for each check."""


def page(summary: Summary) -> str:
    """The page as HTML. Whatever came out of a submission is escaped."""
    title = f"{summary.title}: how the class did"
    facts = (
        ("students", f"{summary.students}"),
        ("mean", f"{summary.mean:.1f} of {summary.points:g}"),
        ("median", f"{summary.median:g}"),
        ("full marks", f"{summary.full}"),
    )
    body = f"""<h1>{escaped(title)}</h1>
<dl class="facts">{"".join(f"<div><dt>{name}</dt><dd>{escaped(value)}</dd></div>" for name, value in facts)}</dl>
<h2>Marks</h2>
{_histogram(summary)}
<h2>Checks, in the order of the tasks</h2>
{"".join(_check(check) for check in summary.checks)}
{_whole(summary)}
{_suspects(summary)}
{_slowest(summary)}
<footer>Lab {escaped(summary.lab)}. From the grading records: what a person added in formgrader is not in it. Reasons
are counted without their numbers.</footer>"""
    return webpage(title, STYLE, body)


def _histogram(summary: Summary) -> str:
    """Students per tenth of the points, as an SVG with a number on each bar and the marks below."""
    wide, high, left, top = 56, 150, 20, 24
    most, step = max(summary.bins), summary.points / len(summary.bins)
    parts = []
    for number, count in enumerate(summary.bins):
        x, height = left + number * wide, high * count / most
        y = top + high - height
        parts.append(f'<rect class="bar" x="{x + 3}" y="{y:.1f}" width="{wide - 6}" height="{height:.1f}" rx="3"/>')
        if count:
            parts.append(f'<text x="{x + wide / 2}" y="{y - 6:.1f}" text-anchor="middle">{count}</text>')
    base, right = top + high, left + wide * len(summary.bins)
    parts.append(f'<line class="axis" x1="{left}" y1="{base}" x2="{right}" y2="{base}"/>')
    for number in range(0, len(summary.bins) + 1, 2):
        x = left + number * wide
        parts.append(f'<text class="soft" x="{x}" y="{base + 20}" text-anchor="middle">{number * step:g}</text>')
    middle = (left + right) / 2
    parts.append(f'<text class="soft" x="{middle}" y="{base + 44}" text-anchor="middle">points</text>')
    told = ", ".join(f"{n * step:g} to {(n + 1) * step:g}: {count}" for n, count in enumerate(summary.bins) if count)
    label = f"Students by points. {told}"
    return (
        f'<svg viewBox="0 0 {right + left} {base + 54}" role="img" aria-label="{escaped(label)}">{"".join(parts)}</svg>'
    )


def _check(check: CheckSummary) -> str:
    bar = (
        '<svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="bar" width="{100 * check.rate:.1f}" height="10"/></svg>'
    )
    failures = [f"<li><b>{one.students} ×</b> {_prose(one.reason)}</li>" for one in check.failures[:SHOWN]]
    if rest := sum(one.students for one in check.failures[SHOWN:]):
        failures.append(f'<li class="soft">{rest} × for other reasons</li>')
    performance = ""
    if (timed := check.performance) is not None:
        earned = "" if timed.median_earned is None else f", median {timed.median_earned:g} of {timed.points:g} points"
        performance = f"performance: {timed.measured} measured{earned}; {timed.unmeasured} not measured"
        performance = f'<li class="soft">{performance}</li>'
    return (
        f'<div class="check"><div class="name">{escaped(check.title)} <code>{escaped(check.name)} · '
        f'{check.points:g} points</code></div><div class="rate">{bar}<span>{100 * check.rate:.0f} %</span></div>'
        f"<ul>{''.join(failures)}{performance}</ul></div>\n"
    )


def _whole(summary: Summary) -> str:
    if not summary.whole:
        return ""
    rows = "".join(
        f"<li><b>{len(who)} ×</b> {_prose(reason)} <span class='soft'>{escaped(', '.join(who))}</span></li>"
        for reason, who in summary.whole
    )
    return f"<h2>Lost as a whole, for one reason</h2><ul>{rows}</ul>"


def _suspects(summary: Summary) -> str:
    """Submissions that somebody should look into."""
    if not summary.suspects:
        return ""
    rows = "".join(
        f"<li>{escaped(who)} <code>{escaped(check)}</code> {_prose(why)}</li>" for who, check, why in summary.suspects
    )
    return f"<h2>To be looked into: timed code that did what no honest code does</h2><ul>{rows}</ul>"


def _slowest(summary: Summary) -> str:
    """The slowest submissions as bars."""
    if not summary.slowest:
        return ""
    longest = max(time_s for _, time_s in summary.slowest) or 1.0
    rows = "".join(
        f'<div class="check"><div>{escaped(who)}</div><div class="rate seconds"><svg viewBox="0 0 100 10" '
        f'preserveAspectRatio="none" aria-hidden="true"><rect class="bar" width="{100 * time_s / longest:.1f}" '
        f'height="10"/></svg><span>{time_s:.1f} s</span></div></div>\n'
        for who, time_s in summary.slowest
    )
    return f"<h2>Slowest submissions, seconds in their own code</h2>{rows}"


def _prose(text: str) -> str:
    """Escaped text in which `…` is set as code."""
    parts = escaped(text).split("`")
    if len(parts) % 2 == 0:  # an odd backtick: shown as it is
        return escaped(text)
    return "".join(f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))
