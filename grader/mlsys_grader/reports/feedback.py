"""The feedback page of one submission: marks per check, the reason for each lost point, a hint. Inert HTML.

Whatever came out of a submission is escaped; the page holds no script, loads nothing, and its policy forbids both.
"""

from __future__ import annotations

from mlsys_grader.course.lab import GradedLab
from mlsys_grader.gradebook.manual_points import ByHand
from mlsys_grader.gradebook.record import Record
from mlsys_grader.judging.judge import Verdict
from mlsys_grader.reports.webpage import escaped, webpage

STYLE = """
:root { color-scheme: light dark; --line: #8885; --good: #1a7f37; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --good: #4ac26b; --bad: #ff8a80; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }
body { overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin-bottom: 0; }
.sum { font-size: 1.25rem; margin: .25rem 0 1.5rem; }
progress { width: 100%; height: .6rem; accent-color: var(--good); }
article { border: 1px solid var(--line); border-left: .4rem solid var(--good); border-radius: .4rem; }
article { padding: .6rem 1rem; margin: .6rem 0; }
article.lost { border-left-color: var(--bad); }
article h2 { font-size: 1.05rem; margin: 0; display: flex; justify-content: space-between; gap: 1rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: .5rem 0 0; }
dt { opacity: .75; }
dd { margin: 0; white-space: pre-wrap; }
code { font: .92em ui-monospace, monospace; }
footer { margin-top: 2rem; font-size: .85rem; opacity: .75; }
"""


def page(record: Record, lab: GradedLab, person: ByHand | None = None) -> str:
    """The page as HTML; with what a person added in formgrader, if anything."""
    earned, points = (person.earned, person.points) if person else (record.earned, record.points)
    title = f"{lab.info.title}: {earned:g} of {points:g} points"
    notes = "".join(f"<li>{escaped(note)}</li>" for note in record.notes)
    body = f"""<h1>{escaped(lab.info.title)}</h1>
<p class="sum">{earned:g} of {points:g} points{f" and {record.extra:g} for speed" if record.extra else ""}</p>
<progress max="{points:g}" value="{earned:g}" aria-label="points"></progress>
{_common(record)}
{"".join(_check(verdict) for verdict in record.verdicts)}
{_by_hand(person) if person else ""}
{f"<h2>About the file</h2><ul>{notes}</ul>" if notes else ""}
<footer>{escaped(record.student)}, lab {escaped(record.lab)}, judged {escaped(record.judged_at)},
version {escaped(record.version)}, submission {escaped(record.digest[:12] or "missing")}</footer>"""
    return webpage(title, STYLE, body)


def _check(verdict: Verdict) -> str:
    if verdict.passed:
        marks, rows = f"{verdict.points:g} of {verdict.points:g}", ""
    else:
        marks = f"{verdict.earned:g} of {verdict.points:g}"
        case = f"{verdict.case} (not shown)" if verdict.hidden else verdict.case
        told = (
            ("what", verdict.what),
            ("got", verdict.got),
            ("expected", verdict.expected),
            ("case", case),
            ("hint", verdict.hint),
        )
        rows = "".join(f"<dt>{name}</dt><dd>{escaped(text)}</dd>" for name, text in told if text)
    if verdict.performance is not None:
        rows += f"<dt>for speed</dt><dd>{escaped(verdict.performance.line)}</dd>"
    kind = "" if verdict.passed else ' class="lost"'
    heading = (
        f"<h2><span>{escaped(verdict.title)} <code>{escaped(verdict.check)}</code></span><span>{marks}</span></h2>"
    )
    return f"<article{kind}>{heading}{f'<dl>{rows}</dl>' if rows else ''}</article>\n"


def _by_hand(person: ByHand) -> str:
    """Marks and comments that a person gave, and the penalty for being late."""
    late = f"<p>handed in late: {person.penalty:g} points less</p>" if person.penalty else ""
    cells = "".join(
        f"<article><h2><span>{escaped(cell.name)}</span><span>{escaped(cell.marks)}</span></h2>"
        f"{f'<dl><dt>comment</dt><dd>{escaped(cell.comment)}</dd></dl>' if cell.comment else ''}</article>\n"
        for cell in person.cells
    )
    return f"<h2>From your instructors</h2>{late}{cells}"


def _common(record: Record) -> str:
    """One sentence where every check failed for one reason."""
    reasons = {verdict.reason for verdict in record.verdicts}
    if record.earned or len(reasons) != 1:
        return ""
    return f"<p>Every check failed for one reason: <strong>{escaped(reasons.pop())}</strong></p>"
