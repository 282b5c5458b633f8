"""The stand-in for a GPU refuses what a GPU refuses, and counts what waits for one."""

import pytest
import torch

from tests.pretended_gpu import DEVICE, pretended_gpu

MIXED = {
    "a sum": lambda there, here: there + here,
    "a product of matrices": lambda there, here: there[None] @ here[:, None],
    "what is gathered by an index of the host": lambda there, here: there.index_select(0, here.long()),
    "what stays on the host by an index of the device": lambda there, here: here[there.long()],
    "several as one": lambda there, here: torch.cat([there, here]),
}


@pytest.mark.parametrize("what", MIXED)
def test_tensors_of_two_devices_do_not_mix(what):
    with pretended_gpu(), pytest.raises(AssertionError, match="of tensors on cpu and meta"):
        MIXED[what](torch.ones(3, device=DEVICE), torch.ones(3))


def test_a_gpu_takes_numbers_copies_and_indices_of_the_host():
    with pretended_gpu() as reads:
        there, here = torch.ones(3, device=DEVICE), torch.arange(3)
        there[here] = there * torch.tensor(2.0) + here.to(DEVICE)
        there.copy_(here)
        assert there[here].device.type == DEVICE and int(here[2]) == 2
    assert not reads


def test_reads_are_counted():
    with pretended_gpu() as reads:
        there = torch.ones(3, device=DEVICE)
        assert there.tolist() == [0, 0, 0] and not there.any() and float(there[1]) == 0
        there.cpu()
        with pytest.raises(NotImplementedError):
            there.nonzero()
    assert reads == {"tolist": 1, "__bool__": 1, "__float__": 1, "cpu": 1}
