from __future__ import annotations

import pytest

from mlsys_lab.comm.cost.switches import Switches, count_switches
from mlsys_lab.errors import InputError


@pytest.mark.parametrize(("nodes", "leaf", "spine"), [(1, 1, 0), (4, 1, 0), (5, 2, 1), (32, 8, 4), (256, 64, 32)])
def test_half_of_a_leaf_s_ports_are_for_gpus(nodes, leaf, spine):
    switches = count_switches(nodes, 8)
    assert switches == Switches(4 * nodes, leaf, spine)
    assert switches.total == 4 * nodes + leaf + spine
    assert leaf * 32 >= 8 * nodes and spine * 64 >= (leaf * 32 if leaf > 1 else 0)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: count_switches(257, 8),
            "too many GPUs for two levels of switches: got 2056, expected at most 2048 GPUs with 64 ports",
        ),
        (lambda: count_switches(0, 8), "got 0 nodes of 8 GPUs"),
        (lambda: count_switches(1, 8, ports=3), "an even number of ports"),
    ],
)
def test_bad_arguments(call, text):
    with pytest.raises(InputError, match=text):
        call()
