"""Timing that can be trusted."""

from __future__ import annotations

import gc
import time

import numpy as np
import pytest

from mlsys_lab.benchmark import Timing, compare, measure, timing
from mlsys_lab.errors import InputError, MissingToolError


class Clock:
    """Stands in for the module `time`: no time passes but what a call sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s

    def sleep(self, time_s: float) -> None:
        self.now_s += time_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that `measure` and `compare` read."""
    clock = Clock()
    monkeypatch.setattr(timing, "time", clock)
    return clock


def test_a_sleep_takes_as_long_as_it_says_and_no_longer_than_the_whole() -> None:
    start = time.perf_counter()
    slept = measure(lambda: time.sleep(0.01), samples=5, warmup=0)
    whole_s = time.perf_counter() - start
    assert 0.0099 <= slept.p20_s <= slept.p50_s <= slept.p80_s
    assert sum(slept.samples_s) <= whole_s and len(slept.samples_s) == 5


def test_quick_calls_are_timed_many_in_a_row(clock: Clock) -> None:
    calls = 0

    def quick() -> None:
        nonlocal calls
        calls += 1
        clock.sleep(2**-19)

    samples_s = measure(quick, samples=3, warmup=0).samples_s
    assert samples_s == (2**-19,) * 3
    assert calls == 2047 + 3 * 1024, "in search of a millisecond, then three samples of it"


def test_the_ratio_of_twice_the_work_is_two(clock: Clock) -> None:
    comparison = compare({"one": lambda: clock.sleep(1 / 64), "two": lambda: clock.sleep(2 / 64)}, samples=9)
    ratio = comparison.ratio("two", "one")
    assert ratio.samples == (2.0,) * 9 and ratio.p20 == ratio.p50 == ratio.p80 == 2
    assert comparison.ratio("one", "one").samples == (1.0,) * 9


def test_calls_take_turns_and_each_goes_first(clock: Clock) -> None:
    order: list[str] = []
    compare({n: lambda n=n: (order.append(n), clock.sleep(0.002)) for n in "abc"}, samples=3, warmup=0)
    rounds = order[-9:]
    assert [rounds[0:3], rounds[3:6], rounds[6:9]] == [list("abc"), list("bca"), list("cab")]


def test_warm_up_comes_first_and_is_not_counted(clock: Clock) -> None:
    slow_first = [0.25]

    def call() -> None:
        clock.sleep(slow_first.pop() if slow_first else 2**-8)

    assert measure(call, samples=3, warmup=1).samples_s == (2**-8,) * 3


def test_garbage_collection_is_off_while_timing_and_on_again_after(clock: Clock) -> None:
    states = []
    measure(lambda: (states.append(gc.isenabled()), clock.sleep(0.002)), samples=2, warmup=0)
    assert states[-2:] == [False, False] and gc.isenabled()
    with pytest.raises(ZeroDivisionError):
        measure(lambda: 1 // 0, warmup=0)
    assert gc.isenabled()


def test_every_call_gets_inputs_of_its_own_drawn_outside_the_clock(clock: Clock) -> None:
    drawn: list[int] = []
    seen: list[int] = []

    def fresh() -> tuple[list[int], str]:
        clock.sleep(1.0)
        drawn.append(len(drawn))
        return ([drawn[-1]], "same")

    def call(numbers: list[int], text: str) -> None:
        assert text == "same"
        seen.append(numbers.pop())  # a second call with this list would raise
        clock.sleep(2**-8)

    timed = measure(call, samples=5, warmup=2, make_args=fresh)
    assert seen == drawn and len(seen) == 2 + 1 + 5
    assert timed.samples_s == pytest.approx((2**-8,) * 5)

    quick: list[object] = []

    def take(x: object) -> None:
        clock.sleep(2**-20)
        quick.append(x)

    comparison = compare({"a": take, "b": lambda x: take(x)}, samples=2, make_args=lambda: (object(),))
    assert len({id(x) for x in quick}) == len(quick) > 1000, "also where a sample is many quick calls in a row"
    assert set(comparison.timings) == {"a", "b"}


def test_percentiles_are_numpys() -> None:
    samples = tuple(np.random.default_rng(0).random(11))
    drawn = Timing(samples)
    assert [drawn.p20_s, drawn.p50_s, drawn.p80_s] == pytest.approx(np.percentile(samples, [20, 50, 80]))
    assert "11 samples" in str(drawn)


def test_bad_arguments_are_told() -> None:
    with pytest.raises(InputError, match="nothing to time: got 0 calls"):
        compare({})
    with pytest.raises(InputError, match="0 samples"):
        measure(lambda: None, samples=0)
    with pytest.raises(InputError, match="expected 'cpu' or 'cuda'"):
        measure(lambda: None, device="gpu")


def test_no_cuda_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(MissingToolError, match="no CUDA device.*mlsys-lab doctor"):  # noqa: RUF043
        measure(lambda: None, device="cuda")


@pytest.mark.gpu
def test_cuda_waits_for_the_device_and_flushes_its_cache() -> None:
    import torch

    n = 4096
    a = torch.randn(n, n, device="cuda", dtype=torch.bfloat16)
    matmul = measure(lambda: a @ a, device="cuda")
    assert 2 * n**3 / matmul.p50_s < 5e15  # no device is that fast: a launch alone would seem to be
    small = torch.ones(2**20, device="cuda")
    cold = measure(lambda: small.sum(), device="cuda", flush_l2=True)
    warm = measure(lambda: small.sum(), device="cuda", flush_l2=False)
    assert cold.p50_s > warm.p50_s
