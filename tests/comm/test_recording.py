from __future__ import annotations

import pytest
import torch

from mlsys_lab.comm import run
from mlsys_lab.comm.collectives import all_reduce
from mlsys_lab.comm.recording import record


@pytest.mark.parametrize("algorithm", all_reduce.ALGORITHMS)
def test_what_was_sent_is_what_the_ledger_counts_and_the_run_is_no_other(algorithm):
    inputs = [torch.arange(7.0) + rank for rank in range(5)]
    (results, ledger), sent = record(all_reduce.ALGORITHMS[algorithm], inputs)
    plain = run(all_reduce.ALGORITHMS[algorithm], inputs)
    assert ledger.messages == plain.ledger.messages
    assert all(torch.equal(a, b) for a, b in zip(results, plain.results, strict=True))
    assert [sum(array.nbytes for array in arrays) for arrays in sent] == ledger.sent_bytes()


def test_an_array_is_kept_as_it_was_when_it_was_sent():
    def send_then_change(rank, x):
        if rank.rank:
            return rank.recv(0)
        rank.send(x, 1)
        x += 1
        return x

    (results, _), sent = record(send_then_change, [torch.zeros(2), torch.zeros(2)])
    assert results[0].tolist() == [1, 1] and sent[0][0].tolist() == [0, 0] and sent[1] == []
