"""The time limit for code in this process."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest

from mlsys_lab.stack.limits import OutOfTimeError, time_limit


def test_an_endless_loop_ends() -> None:
    with pytest.raises(OutOfTimeError, match=r"no answer after 0\.1 s"), time_limit(0.1):
        assert signal.getitimer(signal.ITIMER_REAL)[0] <= 0.1
        while True:
            pass


def test_an_exception_handler_in_the_loop_does_not_stop_it() -> None:
    with pytest.raises(OutOfTimeError), time_limit(0.1):
        while True:
            try:
                time.sleep(0.01)
            except Exception:
                continue


def test_a_bare_except_swallows_only_one_alarm() -> None:
    swallowed = 0
    with pytest.raises(OutOfTimeError), time_limit(0.1):
        try:
            _wait_for_ever()
        except:  # noqa: E722
            swallowed += 1
        _wait_for_ever()
    assert swallowed == 1


def _wait_for_ever() -> None:
    while True:
        time.sleep(1)


def test_no_second_alarm_strikes_an_exception_that_is_leaving_the_block() -> None:
    way_out = SimpleNamespace(f_code=contextlib.contextmanager.__code__)
    with time_limit(60):
        ring: Any = signal.getsignal(signal.SIGALRM)
        ring(signal.SIGALRM, way_out)
        with pytest.raises(OutOfTimeError):
            ring(signal.SIGALRM, sys._getframe())


def test_an_alarm_that_strikes_a_finaliser_is_not_reported_and_rings_again(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: reported.append(unraisable.exc_value))

    class Slow:
        def __del__(self) -> None:
            while True:
                pass

    class Broken:
        def __del__(self) -> None:
            raise KeyError("mine")

    with pytest.raises(OutOfTimeError), time_limit(0.1):
        Broken()
        Slow()
        while True:
            pass
    assert [repr(error) for error in reported] == ["KeyError('mine')"]
    Broken()
    assert len(reported) == 2


def test_quick_code_is_left_alone_and_the_handler_restored() -> None:
    before = signal.getsignal(signal.SIGALRM)
    timer = signal.setitimer(signal.ITIMER_REAL, 0.0)  # pytest's own
    try:
        with time_limit(60):
            assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
        left = signal.getitimer(signal.ITIMER_REAL)
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
    assert left == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is before


def test_an_alarm_from_outside_still_rings() -> None:
    rang = []
    before = signal.signal(signal.SIGALRM, lambda *_: rang.append(1))
    timer = signal.setitimer(signal.ITIMER_REAL, 0.15)
    try:
        with time_limit(60):
            pass
        for _ in range(6000):
            if not rang:
                time.sleep(0.01)
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timer)
    assert rang == [1]


def test_other_threads_run_without_a_limit() -> None:
    done = []

    def work() -> None:
        with time_limit(0.01):
            time.sleep(0.05)
        done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]


def test_with_patience_the_time_of_other_work_does_not_count() -> None:
    """In a process of its own: what threads of other tests work at meanwhile would be this one's."""
    waits = """
        from time import sleep
        from mlsys_lab.stack.limits import time_limit
        with time_limit(0.1, patience=1000.0):
            sleep(0.5)
        """
    subprocess.run([sys.executable, "-c", dedent(waits)], check=True)
    start = time.process_time()
    with pytest.raises(OutOfTimeError), time_limit(0.1, patience=1000.0):
        while True:
            pass
    assert time.process_time() - start >= 0.1


def test_patience_ends() -> None:
    with pytest.raises(OutOfTimeError), time_limit(0.05, patience=4.0):
        time.sleep(600)
