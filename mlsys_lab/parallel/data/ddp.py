"""Step 3: gradients averaged in buckets while the backward pass goes on (Li et al., arXiv:2006.15704)."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from torch import nn

from mlsys_lab.comm import Rank
from mlsys_lab.comm.collectives.all_reduce import ring_steps
from mlsys_lab.comm.collectives.steps import InFlight
from mlsys_lab.parallel.buckets import BucketReducer
from mlsys_lab.parallel.data.averaging import GRADIENTS, broadcast_tensors, sync_module_states
from mlsys_lab.parallel.flat import assign_buckets


class DDP(nn.Module):
    """A module whose gradients are averaged over the ranks of `group` while `backward()` works them out.

    All ranks begin with rank 0's parameters and buffers. Before each forward pass of training they take its buffers
    again, since those that change (a batch norm's running means) see other data on each rank. Between `backward()` and
    the optimiser's step call `finish_gradient_synchronization()`. Gradients travel in buckets of up to `bucket_bytes`,
    last layers' first. In torch: `DistributedDataParallel`, which waits by itself.
    """

    def __init__(self, module: nn.Module, group: Rank, bucket_bytes: float = 25 * 2**20) -> None:
        super().__init__()
        self.module, self._group, self._size = module, group, group.size
        sync_module_states(module, group)
        buckets = assign_buckets(module.parameters(), bucket_bytes)
        self._queue = BucketReducer(
            buckets, lambda bucket: InFlight(ring_steps(group, bucket.read_gradients(), GRADIENTS))
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module on this rank's part of the batch."""
        if self.training:
            broadcast_tensors(self.module.buffers(), self._group)
        return self.module(*args, **kwargs)

    def no_sync(self) -> AbstractContextManager[None]:
        """Within this context `backward()` adds gradients up and sends nothing: all micro-batches but the last."""
        return self._queue.paused()

    def finish_gradient_synchronization(self) -> None:
        """Wait until every gradient is the mean over all ranks.

        Raises InputError where a parameter got no gradient since the last call.
        """
        for bucket, total in self._queue.finish():
            bucket.write_gradients(total / self._size)
