"""Published figures on failures and checkpoints, from the closed forms of `flops.failures`."""

from __future__ import annotations

import pytest

from mlsys_lab.flops.failures import checkpoint_interval_s, daly_interval_s, lost_fraction, time_between_failures_s
from tests.oracles.catalogue import oracles

HOUR_S = 3600


def young(i):
    interval_s = checkpoint_interval_s(i["C"], i["MTBF_s"])
    return [interval_s, lost_fraction(interval_s, i["C"], i["MTBF_s"])]


def fewer_gpus(i):
    device_s = i["days"] * 24 * HOUR_S / i["interruptions"] * i["gpus"]
    return [time_between_failures_s(device_s, i["fewer"]) / HOUR_S]


COMPUTED = {
    "FT03": young,
    "FT04": lambda i: [daly_interval_s(save_s, i["MTBF_s"]) for save_s in i["C"]],
    "FT06": fewer_gpus,
}


@pytest.mark.parametrize("name", COMPUTED)
def test_published_figure(name: str) -> None:
    oracle = oracles()[name]
    oracle.check(*COMPUTED[name](oracle.inputs))
