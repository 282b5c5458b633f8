"""All-reduce algorithm selection: predicts every algorithm's time for a size and topology, and explains the best."""

from __future__ import annotations

from dataclasses import dataclass

from mlsys_lab.comm.cost import patterns
from mlsys_lab.comm.cost.congestion import busiest_link_s
from mlsys_lab.comm.cost.patterns import Pattern
from mlsys_lab.comm.cost.topology import Topology
from mlsys_lab.errors import InputError


@dataclass(frozen=True)
class Prediction:
    """Predicted time of an algorithm on a topology: latency, and transfer of bytes."""

    algorithm: str
    steps: int
    latency_s: float
    transfer_s: float

    @property
    def time_s(self) -> float:
        """Seconds of the operation: latency and transfer together."""
        return self.latency_s + self.transfer_s


@dataclass(frozen=True)
class Selection:
    """Predictions for all algorithms, the fastest first, and a sentence that explains why the first is faster."""

    predictions: tuple[Prediction, ...]
    explanation: str

    @property
    def algorithm(self) -> str:
        """Name of the fastest algorithm."""
        return self.predictions[0].algorithm


def predict(algorithm: str, pattern: Pattern, size_bytes: float, topology: Topology) -> Prediction:
    """Predict an all-reduce of `size_bytes` with this message pattern, one round after the other."""
    latency_s = transfer_s = 0.0
    for one in pattern:
        latency_s += one.times * max((topology.latency_s(a, b) for a, b, _ in one.messages), default=0.0)
        transfer_s += one.times * size_bytes * busiest_link_s(one.messages, topology)
    return Prediction(algorithm, sum(one.times for one in pattern), latency_s, transfer_s)


def select_algorithm(size_bytes: float, topology: Topology) -> Selection:
    """Predict every all-reduce algorithm for `size_bytes` on all ranks of a topology, and explain the best.

    The hierarchical algorithm is tried with islands of every size that divides the number of ranks.
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
    return Selection(tuple(ranked), _explain(ranked[0], ranked[1]))


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
