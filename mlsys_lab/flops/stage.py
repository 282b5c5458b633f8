"""FLOPs of a training step on the device that has most of them: those of the model, repeated ones, and of idle time."""

from __future__ import annotations

from dataclasses import dataclass

from mlsys_lab.configs.transformer import TransformerConfig
from mlsys_lab.flops import communication, compute
from mlsys_lab.flops.layout import Layout


@dataclass(frozen=True)
class StageFlops:
    """FLOPs of one device in a training step, and those that it could do while it waits for its pipeline."""

    model: float
    recomputed: float
    bubble: float

    @property
    def total(self) -> float:
        """FLOPs that the device could do in the step's time at its peak."""
        return self.model + self.recomputed + self.bubble


def stage_flops(
    config: TransformerConfig, layout: Layout, *, batch: int, tokens: int, causal: bool = True
) -> StageFlops:
    """FLOPs on a device of the fullest stage or, with the head, of the last: whichever has more to do.

    While a pipeline fills and drains, a device waits (p - 1)/(v·m) of the time in which the fullest stage works on its
    layers. Raises InputError where model or batch do not divide.
    """
    steps = compute.training(config, tokens, batch, recomputation=layout.recomputation, causal=causal)
    head = 3 * compute.forward(config, tokens, batch).head
    full, last = (layout.stage_layers(config, last=end) / config.n_layers for end in (False, True))
    layers = steps.hardware - head
    ranks = layout.data * layout.tensor * layout.context
    waits = communication.bubble(layout.pipeline, layout.micro_batches(batch), interleave=layout.interleave)
    share, ending = (last, head) if last * layers + head > full * layers else (full, 0.0)
    return StageFlops(
        model=((steps.model - head) * share + ending) / ranks,
        recomputed=steps.recomputed * share / ranks,
        bubble=layers * full * waits / ranks,
    )
