"""How often a job on many devices fails, and how often it should therefore save.

Failures are assumed independent, at a constant rate, and saving and restarting short compared with the time between
them.
"""

from __future__ import annotations

import math

from mlsys_lab.validation import require_at_least_one, require_non_negative, require_positive


def time_between_failures_s(device_s: float, devices: int) -> float:
    """Mean seconds between failures of a job on `devices`, of which each fails after `device_s` seconds on average.

    >>> time_between_failures_s(50_000 * 3600, 16_384) / 3600  # hours
    3.0517578125
    """
    require_positive(device_s=device_s)
    require_at_least_one(devices=devices)
    return device_s / devices


def checkpoint_interval_s(save_s: float, between_failures_s: float) -> float:
    """Optimal seconds of training between checkpoints, √(2·C·M) (Young, Commun. ACM 17(9), 1974).

    `save_s` is C, for which training stops to save; `between_failures_s` is M.

    >>> round(checkpoint_interval_s(60, 3 * 3600))
    1138
    """
    require_positive(save_s=save_s, between_failures_s=between_failures_s)
    return math.sqrt(2 * save_s * between_failures_s)


def daly_interval_s(save_s: float, between_failures_s: float) -> float:
    """Optimal seconds of training between checkpoints where saving is not short (Daly, FGCS 22(3), 2006).

    √(2·C·M)·(1 + √(C/2M)/3 + C/2M/9) - C, for C < 2·M; from there on nothing is gained by saving more often than M.

    >>> round(daly_interval_s(600, 3 * 3600)), round(checkpoint_interval_s(600, 3 * 3600))
    (3211, 3600)
    """
    young_s = checkpoint_interval_s(save_s, between_failures_s)
    ratio = save_s / (2 * between_failures_s)
    return young_s * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_s if ratio < 1 else between_failures_s


def lost_fraction(interval_s: float, save_s: float, between_failures_s: float, *, restart_s: float = 0.0) -> float:
    """Fraction of the time spent on saving, and on work that failures undo: C/τ + (τ/2 + R)/M.

    A failure undoes half an interval on average, and `restart_s`, R, passes before training goes on.

    >>> round(lost_fraction(1138, 60, 3 * 3600), 3)
    0.105
    """
    require_positive(interval_s=interval_s, save_s=save_s, between_failures_s=between_failures_s)
    require_non_negative(restart_s=restart_s)
    return save_s / interval_s + (interval_s / 2 + restart_s) / between_failures_s
