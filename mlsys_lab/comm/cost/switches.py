"""Numbers of switches in a cluster: NVSwitches inside nodes, leaf and spine switches between them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mlsys_lab.errors import InputError


@dataclass(frozen=True)
class Switches:
    """Numbers of switches: `inside` all nodes together, and on the network's two levels."""

    inside: int
    leaf: int
    spine: int

    @property
    def total(self) -> int:
        """All switches, of nodes and network."""
        return self.inside + self.leaf + self.spine


def count_switches(nodes: int, per_node: int, *, inside: int = 4, ports: int = 64) -> Switches:
    """Switches of a two-level fat tree with a network port for every GPU and no oversubscription.

    inside: NVSwitches of a node. ports: of a network switch; a leaf uses half of them for GPUs and half for spines. Two
    levels connect at most ports²/2 GPUs; InputError for more. NVIDIA's reference design of 1,024 H100s:

    >>> count_switches(128, 8)
    Switches(inside=512, leaf=32, spine=16)
    """
    if min(nodes, per_node, ports) < 1 or inside < 0 or ports % 2:
        got = f"{nodes} nodes of {per_node} GPUs and {inside} switches, {ports} ports"
        raise InputError("a cluster has nodes, GPUs, and switches with an even number of ports", got=got)
    gpus = nodes * per_node
    if gpus > ports**2 // 2:
        limit = f"at most {ports**2 // 2} GPUs with {ports} ports"
        raise InputError("too many GPUs for two levels of switches", got=gpus, expected=limit)
    leaf = math.ceil(gpus / (ports // 2))
    return Switches(nodes * inside, leaf, math.ceil(leaf / 2) if leaf > 1 else 0)
