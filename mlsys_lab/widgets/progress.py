"""Progress bars for notebook cells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from IPython.display import HTML, display

Step = TypeVar("Step")


def progress_bar(what: str) -> Callable[[float, float], None]:
    """Show an empty bar with a name; returns `move(done, total)`, which updates it."""
    shown = display(HTML(f"{what} …"), display_id=True)  # type: ignore[no-untyped-call]

    def move(done: float, total: float) -> None:
        fraction = done / total
        bar = f"<progress value='{fraction:.4f}' max='1'></progress> {what}: {fraction:.0%} of {total:,.4g}"
        shown.update(HTML(bar))  # type: ignore[no-untyped-call]

    return move


def track(steps: Iterable[Step]) -> Iterator[Step]:
    """Iterate over steps with a progress bar, which is updated by a percent or more at a time."""
    known = list(steps)
    total, move = len(known), progress_bar("steps")
    for done, step in enumerate(known, 1):
        yield step
        if done * 100 // total > (done - 1) * 100 // total:
            move(done, total)
