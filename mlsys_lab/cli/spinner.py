"""A spinner on a terminal for commands that take seconds, so that none of them is silent meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


@contextmanager
def spinner(words: str, *, console: Console | None = None) -> Iterator[Callable[[str], None]]:
    """Show a spinner, the words and the elapsed time during the body of a `with`; yields what changes the words.

    By default on standard error. Only terminals show it: nothing of it ends up in a file or a pipe.
    """
    console = console or Console(stderr=True)
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(escape(words), total=None)
        yield lambda words: progress.update(task, description=escape(words))
