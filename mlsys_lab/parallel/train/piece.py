"""What a rank has of one piece of a model, and with whom it shares which parameters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import nn

from mlsys_lab.parallel.mesh import Mesh
from mlsys_lab.parallel.train.replica import Replica, replicate


class Piece:
    """A module that a pipeline calls, and the replicas of its parameters: all, or experts and the others apart.

    experts: parameters that other ranks have than the rest, where there are any. alone: as in `replicate`.
    """

    def __init__(
        self, stage: nn.Module, experts: set[nn.Parameter], mesh: Mesh, zero_stage: int, alone: nn.Parameter | None
    ) -> None:
        own = [one for one in stage.parameters() if one in experts]
        self.replicas: list[Replica]
        if own:
            rest = nn.ParameterList(one for one in stage.parameters() if one not in experts)
            self.replicas = [
                replicate(rest, mesh.replicas, zero_stage, alone),
                replicate(nn.ParameterList(own), mesh.expert_replicas, zero_stage),
            ]
        else:
            self.replicas = [replicate(stage, mesh.replicas, zero_stage, alone)]
        self.module = stage if own else self.replicas[0].module

    @contextmanager
    def around_backward(self, is_last: bool) -> Iterator[None]:
        """Context of a backward pass through the piece."""
        with ExitStack() as stack:
            for replica in self.replicas:
                stack.enter_context(replica.around_backward(is_last))
            yield
