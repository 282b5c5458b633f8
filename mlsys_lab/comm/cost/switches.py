"""How many switches connect the GPUs of a cluster: those of NVLink inside nodes, leaves and spines between them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mlsys_lab.errors import InputError


@dataclass(frozen=True)
class Switches:
    """Numbers of switches: `inside` all nodes together, and of the network's two levels."""

    inside: int
    leaf: int
    spine: int

    @property
    def total(self) -> int:
        """Switches of nodes and network together."""
        return self.inside + self.leaf + self.spine


def count_switches(nodes: int, per_node: int, *, inside: int = 4, ports: int = 64) -> Switches:
    """Switches of a fat tree of two levels in which every GPU has a network port, and nothing is oversubscribed.

    inside: NVSwitches of a node. ports: those of a network switch, half of which a leaf spends on GPUs and half on
    spines. Two levels reach ports²/2 GPUs; InputError for more. NVIDIA's reference design of 1,024 H100s:

    >>> count_switches(128, 8)
    Switches(inside=512, leaf=32, spine=16)
    """
    if min(nodes, per_node, ports) < 1 or inside < 0 or ports % 2:
        got = f"{nodes} nodes of {per_node} GPUs and {inside} switches, {ports} ports"
        raise InputError("a cluster has nodes, GPUs, and switches with an even number of ports", got=got)
    gpus = nodes * per_node
    if gpus > ports**2 // 2:
        most = f"at most {ports**2 // 2} GPUs with {ports} ports"
        raise InputError("two levels of switches do not reach so many GPUs", got=gpus, expected=most)
    leaf = math.ceil(gpus / (ports // 2))
    return Switches(nodes * inside, leaf, math.ceil(leaf / 2) if leaf > 1 else 0)
