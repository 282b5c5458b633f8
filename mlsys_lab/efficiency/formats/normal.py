"""NF4: 4-bit codes for numbers that are normally distributed, as weights nearly are.

Dettmers et al. 2023, QLoRA (arXiv:2305.14314), §3, with the values of appendix E; bitsandbytes' create_normal_map.
"""

from __future__ import annotations

from statistics import NormalDist

from mlsys_lab.efficiency.formats.elements import CodeBook
from mlsys_lab.validation import require_integer


def normal_float(bits: int) -> CodeBook:
    """Code book of quantiles of the normal distribution, from -1 to 1, with an exact 0.

    With half = 2ᵇ⁻¹, half quantiles lie at even steps of probability from ½ (which is 0) to a tail on the negative
    side, and half + 1 on the positive side; one of the two zeros is dropped, and the largest becomes 1. The tail is cut
    off at δ = ½ · (1/2ᵇ⁺¹ + 1/(2ᵇ⁺¹ - 2)), for which bitsandbytes writes 1 - 0.9677083.
    """
    require_integer("bits", bits, at_least=2)
    half = 2 ** (bits - 1)
    tail = (1 / (4 * half) + 1 / (4 * half - 2)) / 2
    negative = [NormalDist().inv_cdf(tail + (0.5 - tail) * step / (half - 1)) for step in range(half - 1)]
    positive = [-NormalDist().inv_cdf(tail + (0.5 - tail) * step / half) for step in reversed(range(half))]
    return CodeBook(tuple(value / positive[-1] for value in (*negative, 0.0, *positive)))


NF4 = normal_float(4)
"""The 16 numbers of QLoRA, for weights divided by the largest magnitude of their block."""
