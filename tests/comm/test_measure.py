from __future__ import annotations

import pytest
import torch

from mlsys_lab.comm import measure as module
from mlsys_lab.comm.measure import ALGORITHMS, Row, measure
from mlsys_lab.errors import InputError


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("collective", ALGORITHMS)
def test_every_algorithm_is_right_on_threads(collective, ranks):
    rows = measure(collective, ranks, [100, 1000], iterations=1)
    power = ranks & (ranks - 1) == 0
    algorithms = [one for one in ALGORITHMS[collective] if power or one not in ("doubling", "halving")]
    assert [row.algorithm for row in rows] == [one for one in algorithms for _ in range(2)]
    for row in rows:
        assert row.wrong == 0 and row.time_s > 0
        assert row.size_bytes % (4 * ranks) == 0


@pytest.mark.parametrize("collective", ALGORITHMS)
def test_torchs_own_over_gloo_are_right_too(collective):
    (row,) = measure(collective, 2, [4096], backend="gloo", algorithms=["torch"], iterations=1)
    assert (row.algorithm, row.wrong, row.size_bytes) == ("torch", 0, 4096)


def test_wrong_elements_are_counted_over_ranks(monkeypatch):
    def forget_the_last(rank, x):
        out = ALGORITHMS["all_reduce"]["ring"](rank, x)
        out[-1] += rank.rank
        return out

    algorithms = {"ring": ALGORITHMS["all_reduce"]["ring"], "broken": forget_the_last}
    monkeypatch.setitem(module.ALGORITHMS, "all_reduce", algorithms)
    good, bad = measure("all_reduce", 3, [1200], iterations=1)
    assert (good.wrong, bad.wrong) == (0, 2)


def test_bandwidths_are_those_of_nccl_tests():
    row = Row("all_reduce", "ring", 8, 1_000_000_000, 17.5e-3, 0)
    assert row.bus_bytes_per_s == pytest.approx(100e9)
    assert row.algorithm_bytes_per_s == pytest.approx(1e9 / 17.5e-3)


@pytest.mark.gpu
def test_algorithms_are_right_over_nccl():
    if torch.cuda.device_count() < 2:
        pytest.skip("NCCL between ranks needs two GPUs")
    assert all(row.wrong == 0 for row in measure("all_reduce", 2, [1 << 20], backend="nccl"))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: measure("allreduce", 4, [1]), "unknown collective: got allreduce.*did you mean 'all_reduce'"),
        (lambda: measure("all_reduce", 1, [1]), "needs two ranks"),
        (lambda: measure("all_reduce", 4, []), r"sizes \[\]"),
        (lambda: measure("all_reduce", 4, [1], algorithms=["torch"]), "unknown algorithm for all_reduce with threads"),
    ],
)
def test_bad_arguments(call, text):
    with pytest.raises(InputError, match=text):
        call()
