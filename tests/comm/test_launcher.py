"""A run on a topology: its ledger is in seconds."""

from __future__ import annotations

import pytest
import torch

from mlsys_lab.comm import run
from mlsys_lab.comm.collectives import all_reduce
from mlsys_lab.comm.cost.alpha_beta import LinkCost, all_reduce_s
from mlsys_lab.comm.cost.topology import nvlink_island, rails
from mlsys_lab.errors import InputError


@pytest.mark.parametrize("form", ["naive", "tree", "ring", "halving_doubling"])
def test_on_an_island_a_run_takes_what_the_formula_says(form: str) -> None:
    inputs = [torch.ones(1024, dtype=torch.float64)] * 8
    island = nvlink_island(8, 450e9, 1e-6)
    ledger = run(all_reduce.ALGORITHMS[form], inputs, topology=island).ledger
    assert ledger.end == pytest.approx(all_reduce_s(form, 8, 8192, LinkCost(1e-6, 450e9)), rel=1e-12)
    assert ledger.steps == run(all_reduce.ALGORITHMS[form], inputs).ledger.steps
    assert run(all_reduce.ALGORITHMS[form], inputs).ledger.end == ledger.steps


def test_a_message_between_nodes_takes_the_network() -> None:
    nodes = rails(2, 2, inside_bytes_per_s=100.0, rail_bytes_per_s=10.0, inside_latency_s=1.0, rail_latency_s=5.0)

    def program(rank, x):
        if rank.rank == 0:
            rank.send(x, 1)
            rank.send(x, 3)
        elif rank.rank % 2:
            rank.recv(0)

    ledger = run(program, [torch.zeros(100, dtype=torch.uint8)] * 4, topology=nodes).ledger
    assert [(one.destination, one.start, one.end) for one in ledger.messages] == [(1, 0.0, 2.0), (3, 2.0, 18.0)]


def test_a_topology_of_another_size_is_refused() -> None:
    with pytest.raises(InputError, match="another number of ranks: got 8, expected 2"):
        run(lambda rank, x: x, [0, 1], topology=nvlink_island(8, 1e9))
