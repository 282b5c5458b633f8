from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsys_lab.comm.simulate.flows import Flows, fair_rates


def test_fair_rates_worked_out_by_hand():
    line = {0: ("a", "b"), 1: ("a",), 2: ("b",)}
    assert fair_rates(line, {"a": 10.0, "b": 10.0}) == {0: 5.0, 1: 5.0, 2: 5.0}
    # b is full first, at 2 each; what flow 0 leaves of a goes to flow 1.
    assert fair_rates(line, {"a": 10.0, "b": 4.0}) == {0: 2.0, 2: 2.0, 1: 8.0}
    # Four on a of 12: 3 each, but for flow 3, which has 1 behind it. Then the three others share 11.
    routes = {0: ("a",), 1: ("a",), 2: ("a",), 3: ("a", "b")}
    assert fair_rates(routes, {"a": 12.0, "b": 1.0}) == pytest.approx({3: 1.0, 0: 11 / 3, 1: 11 / 3, 2: 11 / 3})
    assert fair_rates({0: ("dead", "a"), 1: ("a",)}, {"dead": 0.0, "a": 6.0}) == {0: 0.0, 1: 6.0}
    assert fair_rates({}, {"a": 1.0}) == {}


LINKS = "abcde"


@given(
    routes=st.lists(st.sets(st.sampled_from(LINKS), min_size=1), min_size=1, max_size=8),
    capacity=st.fixed_dictionaries({link: st.floats(0.5, 100) for link in LINKS}),
)
def test_each_flow_has_a_full_link_on_which_none_has_more(routes, capacity):
    """That is what makes rates max-min fair, and no other rates have it (Bertsekas and Gallager, §6.5.2)."""
    ways = {flow: tuple(sorted(route)) for flow, route in enumerate(routes)}
    rates = fair_rates(ways, capacity)
    assert rates.keys() == ways.keys()
    load = {link: sum(rates[flow] for flow, way in ways.items() if link in way) for link in LINKS}
    assert all(load[link] <= capacity[link] * (1 + 1e-9) for link in LINKS)
    for flow, way in ways.items():
        bottlenecks = [
            link
            for link in way
            if load[link] == pytest.approx(capacity[link])
            and all(rates[other] <= rates[flow] * (1 + 1e-9) for other, theirs in ways.items() if link in theirs)
        ]
        assert bottlenecks, f"flow {flow} could have more"


def test_a_change_affects_flows_that_share_links_only():
    flows = Flows({"a": 10.0, "b": 10.0, "c": 10.0})
    flows.begin(0, 100.0, ("a",), 0.0)
    flows.begin(1, 100.0, ("c",), 0.0)
    assert flows.settle(0.0) == [(10.0, 0, 1), (10.0, 1, 1)]
    # At 4 s a second flow comes to a: 60 bytes are left of flow 0, at half of the rate from now on.
    flows.begin(2, 50.0, ("a", "b"), 4.0)
    assert sorted(flows.settle(4.0)) == [(14.0, 2, 1), (16.0, 0, 2)]
    assert [flows.version(flow) for flow in (0, 1, 2, 3)] == [2, 1, 1, 0]
    flows.finish(2)
    assert flows.settle(14.0) == [(15.0, 0, 3)]
    assert flows.settle(14.0) == []
