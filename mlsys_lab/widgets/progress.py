"""Progress bars beneath the cell of a notebook that takes a while."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from IPython.display import HTML, display

Step = TypeVar("Step")


def progress_bar(what: str) -> Callable[[float, float], None]:
    """Show an empty bar with a name. What comes back moves it: `move(done, total)`, both in one unit of your own."""
    shown = display(HTML(f"{what} …"), display_id=True)  # type: ignore[no-untyped-call]

    def move(done: float, total: float) -> None:
        share = done / total
        bar = f"<progress value='{share:.4f}' max='1'></progress> {what}: {share:.0%} of {total:,.4g}"
        shown.update(HTML(bar))  # type: ignore[no-untyped-call]

    return move


def track(steps: Iterable[Step]) -> Iterator[Step]:
    """Go through steps, which are counted first, with a bar that moves by a percent or more at a time."""
    known = list(steps)
    total, move = len(known), progress_bar("steps")
    for done, step in enumerate(known, 1):
        yield step
        if done * 100 // total > (done - 1) * 100 // total:
            move(done, total)
