"""Which form of all-reduce is fastest for a size on a topology, and why, in a sentence."""

from __future__ import annotations

from dataclasses import dataclass

from mlsys_lab.comm.cost import patterns
from mlsys_lab.comm.cost.congestion import carry_s
from mlsys_lab.comm.cost.patterns import Pattern
from mlsys_lab.comm.cost.topology import Topology
from mlsys_lab.errors import InputError


@dataclass(frozen=True)
class Prediction:
    """Time of a pattern of messages on a topology: `latency_s` until messages begin to arrive, the rest for bytes."""

    algorithm: str
    steps: int
    latency_s: float
    transfer_s: float

    @property
    def time_s(self) -> float:
        """Seconds that the operation takes: latency and transfer together."""
        return self.latency_s + self.transfer_s


@dataclass(frozen=True)
class Choice:
    """Predictions for all forms that fit, the fastest first, and what tells the first from the second."""

    predictions: tuple[Prediction, ...]
    sentence: str

    @property
    def algorithm(self) -> str:
        """Name of the fastest form."""
        return self.predictions[0].algorithm


def predict(algorithm: str, pattern: Pattern, size_bytes: float, topology: Topology) -> Prediction:
    """Time of an all-reduce of `size_bytes` that sends in this pattern, its rounds one after the other."""
    latency_s = transfer_s = 0.0
    for one in pattern:
        latency_s += one.times * max((topology.latency_s(a, b) for a, b, _ in one.messages), default=0.0)
        transfer_s += one.times * size_bytes * carry_s(one.messages, topology)
    return Prediction(algorithm, sum(one.times for one in pattern), latency_s, transfer_s)


def autopick(size_bytes: float, topology: Topology) -> Choice:
    """Predict every form of all-reduce for an array of `size_bytes` on all ranks of a topology, and explain the best.

    Islands of every size that divides the ranks are tried for the hierarchical form.
    """
    ranks = topology.size
    if ranks < 2 or not size_bytes > 0:
        raise InputError("an all-reduce needs two ranks and some bytes", got=f"{ranks} ranks, {size_bytes} bytes")
    candidates = {name: pattern(ranks) for name, pattern in patterns.ALL_REDUCE.items()}
    for island in range(2, ranks):
        if ranks % island == 0:
            candidates[f"hierarchical, islands of {island}"] = patterns.hierarchical(ranks, island)
    ranked = sorted(
        (predict(name, pattern, size_bytes, topology) for name, pattern in candidates.items()),
        key=lambda prediction: (prediction.time_s, prediction.steps),
    )
    return Choice(tuple(ranked), _explain(ranked[0], ranked[1]))


def _explain(best: Prediction, second: Prediction) -> str:
    bound = "latency" if best.latency_s > best.transfer_s else "bandwidth"
    text = (
        f"{best.algorithm}: {best.time_s * 1e6:.3g} µs in {best.steps} steps, bound by {bound} "
        f"({best.latency_s * 1e6:.3g} µs of latency, {best.transfer_s * 1e6:.3g} µs of transfer)"
    )
    latency_s, transfer_s = second.latency_s - best.latency_s, second.transfer_s - best.transfer_s
    if second.time_s == best.time_s:
        why = "takes as long"
    elif latency_s > transfer_s:
        why = f"waits {latency_s * 1e6:.3g} µs longer for its {second.steps} steps"
    else:
        why = f"moves bytes for {transfer_s * 1e6:.3g} µs longer"
    return f"{text}; next best, {second.algorithm}, {why}."
