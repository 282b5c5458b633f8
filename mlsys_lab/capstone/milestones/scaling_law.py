"""Scaling laws (2022): six trained models predict the loss of a seventh, by the learner's power-law fit."""

from __future__ import annotations

import math
from collections.abc import Iterator

from mlsys_lab.capstone.milestones.milestone import Figure, Milestone
from mlsys_lab.capstone.stack import Stack
from mlsys_lab.scaling.laws import GOPHER_FLOPS, HOFFMANN_2022
from mlsys_lab.scaling.published import CEREBRAS_COMPUTE, CEREBRAS_FLOOR, CEREBRAS_GPT, HOFFMANN_TABLES

KNOWN = 6
"""Models that the law is fitted to: all but the largest, as in the paper."""


def _figures(stack: Stack) -> Iterator[Figure]:
    fit, runs, law = stack.scaling.fit_power_law, CEREBRAS_GPT, HOFFMANN_2022
    coefficient, exponent = fit(runs.flops[:KNOWN], runs.loss[:KNOWN] - CEREBRAS_FLOOR)
    predicted = CEREBRAS_FLOOR + coefficient * runs.flops[KNOWN] ** exponent
    how = "FLOPs of two digits, and least squares in logarithms where the paper does not name its fit"
    noise = "the paper's own law is off by 0.008"
    yield Figure("exponent of loss by FLOPs, six models", CEREBRAS_COMPUTE.exponent, exponent, 0.0015, how)
    yield Figure("loss of the 13 B model, nats a token", float(runs.loss[KNOWN]), predicted, 0.02, noise)

    table = HOFFMANN_TABLES["approach 1"]
    scale, power = fit(table.flops[:3], table.n_params[:3])
    gopher = scale * table.flops[3] ** power / 1e9
    yield Figure("exponent of best size by FLOPs, approach 1", 0.50, power, 0.005, "two decimals are printed")
    yield Figure("best size at Gopher's FLOPs, billions", table.n_params[3] / 1e9, gopher, 2, "two digits are printed")

    constants = stack.scaling.ChinchillaLaw(law.E, law.A, law.B, law.alpha, law.beta)
    sizes = [stack.scaling.compute_optimal(constants, flops)[0] for flops in (GOPHER_FLOPS, 100 * GOPHER_FLOPS)]
    power = math.log(sizes[1] / sizes[0], 100)
    rounded = "equation 10's constants are rounded"
    yield Figure("exponent of best size by FLOPs, approach 3", 0.46, power, 0.01, rounded)


SCALING_LAW = Milestone(
    "scaling-law",
    2022,
    "A law fitted to small models predicts a larger one, and the best size grows as the square root of compute",
    "Hoffmann et al., arXiv:2203.15556, tables 2 and 3, equation 10; runs of Dey et al. 2023, arXiv:2304.03208, "
    "equation 1",
    {"scaling": ("fit_power_law", "ChinchillaLaw", "compute_optimal")},
    "A fit to published runs: Cerebras-GPT, seven models trained at 20 tokens a parameter, with the paper's floor. "
    "Hoffmann's 400 runs are not published as a table; approaches 1 and 3 are its tables and constants read back, "
    "which reproduces arithmetic only. No model is trained here.",
    _figures,
)
