"""What a rank has of one piece of a model, and with whom it shares which parameters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import nn

from mlsys_lab.parallel.mesh import DeviceMesh
from mlsys_lab.parallel.train.replica import DataParallelStrategy, make_strategy


class ModelChunk:
    """A module that a pipeline calls, and the replicas of its parameters: all, or experts and the others apart.

    experts: parameters that other ranks have than the rest, where there are any. alone: as in `make_strategy`.
    """

    def __init__(
        self,
        stage: nn.Module,
        experts: set[nn.Parameter],
        mesh: DeviceMesh,
        zero_stage: int,
        alone: nn.Parameter | None,
    ) -> None:
        own = [one for one in stage.parameters() if one in experts]
        self.replicas: list[DataParallelStrategy]
        if own:
            rest = nn.ParameterList(one for one in stage.parameters() if one not in experts)
            self.replicas = [
                make_strategy(rest, mesh.replicas, zero_stage, alone),
                make_strategy(nn.ParameterList(own), mesh.expert_replicas, zero_stage),
            ]
        else:
            self.replicas = [make_strategy(stage, mesh.replicas, zero_stage, alone)]
        self.module = stage if own else self.replicas[0].module

    @contextmanager
    def backward_context(self, is_last: bool) -> Iterator[None]:
        """Context of a backward pass through the piece."""
        with ExitStack() as stack:
            for replica in self.replicas:
                stack.enter_context(replica.backward_context(is_last))
            yield
