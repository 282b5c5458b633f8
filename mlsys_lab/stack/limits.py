"""A time limit for code that runs in this process."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

AGAIN_S = 0.2
"""The alarm rings again at this interval, because a bare `except:` in the learner's code can swallow the first."""

OWN_FILES = (__file__, contextlib.__file__)


class OutOfTimeError(BaseException):
    """The limit has passed. Not an `Exception`, so that `except Exception` in the limited code does not catch it."""


@contextmanager
def time_limit(limit_s: float, patience: float = 1.0) -> Iterator[None]:
    """Raise `OutOfTimeError` inside the block once `limit_s` seconds have passed, by an interval timer.

    With `patience` over 1 they must have been spent at work: the block may take that many times as long by the clock,
    unless this process has had `limit_s` of processor time, for other work may keep the machine from it.

    Python runs signal handlers in the main thread of a POSIX process only: elsewhere the block runs without a limit
    (`mlsys-lab check` and the grader also bound whole processes from outside). An alarm that was set before is
    set again with the time that it has left.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return
    armed = True

    def ring(signum: int, frame: FrameType | None) -> None:
        # On its way out the first exception passes through these two files; one more there, on a machine so busy that
        # this takes until the next ring, would leave the alarm on for whatever comes after the block.
        in_block = armed and frame is not None and frame.f_code.co_filename not in OWN_FILES
        worked_s, passed_s = time.process_time() - cpu_start, time.monotonic() - start
        kept_from_work = patience > 1 and worked_s < limit_s and passed_s < patience * limit_s
        if in_block and not kept_from_work:
            raise OutOfTimeError(f"no answer after {limit_s:g} s")

    def overlook(unraisable: sys.UnraisableHookArgs) -> None:
        # An alarm that rang in a finaliser cannot be raised there: it rings again, and there is nothing to report.
        if not isinstance(unraisable.exc_value, OutOfTimeError):
            old_hook(unraisable)

    start, cpu_start = time.monotonic(), time.process_time()
    old_hook, sys.unraisablehook = sys.unraisablehook, overlook
    old_handler = signal.signal(signal.SIGALRM, ring)
    old_delay, old_interval = signal.setitimer(signal.ITIMER_REAL, limit_s, AGAIN_S)
    try:
        try:
            yield
        finally:
            armed = False
    finally:
        left = max(old_delay - (time.monotonic() - start), 1e-3) if old_delay else 0.0
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, old_handler)
        signal.setitimer(signal.ITIMER_REAL, left, old_interval)
        sys.unraisablehook = old_hook
