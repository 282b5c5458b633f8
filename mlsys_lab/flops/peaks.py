"""From units and clock to a peak, and back: a dense peak is 2 · units · multiply-adds a clock and unit · clock.

A unit is whatever the multiply-adds are counted for: a streaming multiprocessor, a tensor core, a systolic array.
"""

from __future__ import annotations

from mlsys_lab.validation import require_positive


def peak_flops_per_s(units: float, multiply_adds: float, clock_hz: float) -> float:
    """Peak FLOP/s of `units` units that each start `multiply_adds` multiply-adds in every clock.

    >>> round(peak_flops_per_s(132, 128, 1.98e9) / 1e12, 1)  # an H100's fp32 lanes, in TFLOP/s
    66.9
    """
    require_positive(units=units, multiply_adds=multiply_adds, clock_hz=clock_hz)
    return 2.0 * units * multiply_adds * clock_hz


def implied_multiply_adds(peak_flops_per_s: float, units: float, clock_hz: float) -> float:
    """Multiply-adds that each of `units` units must start in every clock to reach a peak.

    >>> round(implied_multiply_adds(989.4e12, 132 * 4, 1.83e9))  # a tensor core of an H100, in 16 bits
    512
    """
    require_positive(peak_flops_per_s=peak_flops_per_s, units=units, clock_hz=clock_hz)
    return peak_flops_per_s / (2 * units * clock_hz)


def implied_clock_hz(peak_flops_per_s: float, units: float, multiply_adds: float) -> float:
    """Clock at which `units` units of `multiply_adds` multiply-adds a clock reach a peak.

    >>> round(implied_clock_hz(75e12, 148, 128) / 1e9, 2)  # the fp32 lanes of a B200, in GHz
    1.98
    """
    require_positive(peak_flops_per_s=peak_flops_per_s, units=units, multiply_adds=multiply_adds)
    return peak_flops_per_s / (2 * units * multiply_adds)
