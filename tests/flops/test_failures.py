from __future__ import annotations

import math
import random

import pytest
from scipy.optimize import minimize_scalar

from mlsys_lab.errors import InputError
from mlsys_lab.flops.failures import checkpoint_interval_s, daly_interval_s, lost_fraction, time_between_failures_s


def test_twice_the_devices_fail_twice_as_often():
    assert time_between_failures_s(1e6, 2048) == time_between_failures_s(1e6, 1024) / 2


@pytest.mark.parametrize(("save_s", "between_s"), [(10, 3600), (60, 11_135), (300, 86_400)])
def test_no_other_interval_loses_less(save_s, between_s):
    best = checkpoint_interval_s(save_s, between_s)
    least = lost_fraction(best, save_s, between_s)
    assert all(lost_fraction(best * factor, save_s, between_s) > least for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2))


@pytest.mark.parametrize(("save_s", "nearness"), [(0.01, 2e-5), (0.1, 5e-4), (0.2, 1.3e-3), (0.5, 6e-3)])
def test_dalys_interval_is_near_that_of_the_least_time_under_random_failures(save_s, nearness):
    """Saving M = 1 between failures: a length τ done takes e^((τ + C)/M) - 1 of time (Daly 2006, equation 20)."""
    least = minimize_scalar(lambda t: (math.exp(t + save_s) - 1) / t, bounds=(1e-3, 2), method="bounded")
    assert daly_interval_s(save_s, 1.0) == pytest.approx(least.x, rel=nearness)
    assert daly_interval_s(2.0, 1.0) == 1.0


def test_the_share_is_that_of_a_job_played_with_random_failures():
    save_s, between_s, restart_s, interval_s = 10.0, 20_000.0, 30.0, 600.0
    rng, now, done = random.Random(3), 0.0, 0.0
    failure = rng.expovariate(1 / between_s)
    while done < 40_000 * interval_s:
        end = now + interval_s + save_s
        if failure < end:  # the interval is lost, and the job starts again
            now = failure + restart_s
            failure = now + rng.expovariate(1 / between_s)
        else:
            now, done = end, done + interval_s
    # Counted to first order in interval over time between failures, 3 % here; 1,200 failures in the run.
    assert now / done - 1 == pytest.approx(lost_fraction(interval_s, save_s, between_s, restart_s=restart_s), rel=0.1)


def test_the_lost_fraction_by_hand():
    """An hour's work, a minute to save, ten hours between failures: 1/60, then half an hour and the restart of 600."""
    assert lost_fraction(3600, 60, 36_000) == 1 / 60 + 1800 / 36_000
    assert lost_fraction(3600, 60, 36_000, restart_s=360) == pytest.approx(1 / 60 + 2160 / 36_000)


def test_amounts_must_make_sense():
    with pytest.raises(InputError, match="save_s"):
        checkpoint_interval_s(0, 1)
    with pytest.raises(InputError, match="devices"):
        time_between_failures_s(1, 0)
    with pytest.raises(InputError, match="restart_s"):
        lost_fraction(1, 1, 1, restart_s=-1)
