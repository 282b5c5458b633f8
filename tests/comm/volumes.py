"""Closed forms of what each collective sends over each link: elements and messages, for every length.

Averages such as 2·(p - 1)/p·n for a ring hold for each rank only where p divides n; these forms always hold. Letters:
p ranks, n elements, cᵢ the length of chunk i; the root is 0 by default.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from mlsys_lab.comm.collectives.chunks import chunk_lengths
from mlsys_lab.comm.trees import TreeNode, binomial_tree_node, double_tree_nodes


class Volume:
    """Elements and messages by link (source, destination); volumes add up.

    >>> ring_all_reduce(10, 4).sent_elements(4)
    [14, 15, 16, 15]
    """

    def __init__(self, sends: Iterable[tuple[int, int, int, int]] = ()) -> None:
        """Add up (source, destination, elements, messages)."""
        self.elements: dict[tuple[int, int], int] = defaultdict(int)
        self.messages: dict[tuple[int, int], int] = defaultdict(int)
        for source, destination, elements, messages in sends:
            if messages:
                self.elements[source, destination] += elements
                self.messages[source, destination] += messages

    def __add__(self, other: Volume) -> Volume:
        return Volume(
            (*link, volume.elements[link], volume.messages[link])
            for volume in (self, other)
            for link in volume.messages
        )

    def renumber(self, ranks: Sequence[int]) -> Volume:
        """The volume of a group whose rank i is rank ranks[i] of all."""
        return Volume((ranks[a], ranks[b], self.elements[a, b], self.messages[a, b]) for a, b in self.messages)

    def sent_elements(self, size: int) -> list[int]:
        """Elements that each of `size` ranks sends."""
        totals = [0] * size
        for (source, _), elements in self.elements.items():
            totals[source] += elements
        return totals

    @property
    def total_elements(self) -> int:
        """Elements of all messages together."""
        return sum(self.elements.values())

    @property
    def total_messages(self) -> int:
        """Number of messages."""
        return sum(self.messages.values())


def linear_broadcast(n: int, p: int, root: int = 0) -> Volume:
    """The root sends n elements to each other rank."""
    return Volume((root, other, n, 1) for other in range(p) if other != root)


def linear_reduce(n: int, p: int, root: int = 0) -> Volume:
    """Each other rank sends n elements to the root."""
    return Volume((other, root, n, 1) for other in range(p) if other != root)


def tree_broadcast(n: int, p: int, root: int = 0) -> Volume:
    """Each rank but the root gets n elements from its parent in the binomial tree."""
    return _down((binomial_tree_node(rank, p, root) for rank in range(p)), n, 1)


def tree_reduce(n: int, p: int, root: int = 0) -> Volume:
    """Each rank but the root sends n elements to its parent in the binomial tree."""
    return _up((binomial_tree_node(rank, p, root) for rank in range(p)), n, 1)


def chain_broadcast(n: int, p: int, root: int = 0, segments: int = 8) -> Volume:
    """n elements in `segments` messages from each rank to the next, from the root to the one before it."""
    return Volume(((root + i) % p, (root + i + 1) % p, n, segments) for i in range(p - 1))


def ring_reduce_scatter(n: int, p: int) -> Volume:
    """Rank r sends every chunk but its own to the right: n - c_r."""
    lengths = chunk_lengths(n, p)
    return Volume((r, (r + 1) % p, n - lengths[r], p - 1) for r in range(p))


def ring_all_gather(lengths: Sequence[int]) -> Volume:
    """Rank r sends every part but its right neighbour's to the right: Σ - length_(r+1)."""
    p, n = len(lengths), sum(lengths)
    return Volume((r, (r + 1) % p, n - lengths[(r + 1) % p], p - 1) for r in range(p))


def halving_reduce_scatter(n: int, p: int) -> Volume:
    """At distance d a rank sends its partner the d chunks that the partner keeps; n - c_r in all. p a power of two."""
    lengths = chunk_lengths(n, p)
    return Volume((r, r ^ d, _window(lengths, r ^ d, d), 1) for r in range(p) for d in _distances(p))


def doubling_all_gather(lengths: Sequence[int]) -> Volume:
    """At distance d a rank sends its partner the d parts that it has. The number of parts is a power of two."""
    p = len(lengths)
    return Volume((r, r ^ d, _window(lengths, r, d), 1) for r in range(p) for d in _distances(p))


def all_to_all(lengths: Sequence[Sequence[int]]) -> Volume:
    """Rank a sends lengths[a][b] elements to rank b."""
    return Volume((a, b, length, 1) for a, row in enumerate(lengths) for b, length in enumerate(row) if a != b)


def naive_all_reduce(n: int, p: int) -> Volume:
    """All to rank 0 and back: it sends (p - 1)·n, the others n."""
    return linear_reduce(n, p) + linear_broadcast(n, p)


def tree_all_reduce(n: int, p: int) -> Volume:
    """Elements and messages of an all-reduce that goes up a binomial tree and down again."""
    return tree_reduce(n, p) + tree_broadcast(n, p)


def ring_all_reduce(n: int, p: int) -> Volume:
    """Reduce-scatter and all-gather: rank r sends 2n - c_r - c_(r+1), in 2·(p - 1) messages."""
    return ring_reduce_scatter(n, p) + ring_all_gather(chunk_lengths(n, p))


def halving_doubling_all_reduce(n: int, p: int) -> Volume:
    """Halving and doubling among 2ᵏ ranks; the p - 2ᵏ others hand their n elements to a neighbour and get n back."""
    power = 1 << (p.bit_length() - 1)
    extra = p - power
    core = halving_reduce_scatter(n, power) + doubling_all_gather(chunk_lengths(n, power))
    folds = [(2 * i + side, 2 * i + 1 - side, n, 1) for i in range(extra) for side in (0, 1)]
    return core.renumber([*range(0, 2 * extra, 2), *range(2 * extra, p)]) + Volume(folds)


def chain_all_reduce(n: int, p: int, segments: int = 8) -> Volume:
    """n elements in `segments` messages up and down each link of the chain."""
    return Volume((a, b, n, segments) for i in range(p - 1) for a, b in ((i, i + 1), (i + 1, i)))


def double_tree_all_reduce(n: int, p: int, segments: int = 4) -> Volume:
    """Half of the elements up and down the edges of each of two trees."""
    total = Volume()
    for half, nodes in zip(
        chunk_lengths(n, 2), zip(*(double_tree_nodes(rank, p) for rank in range(p)), strict=True), strict=True
    ):
        total += _up(nodes, half, segments) + _down(nodes, half, segments)
    return total


def hierarchical_all_reduce(n: int, p: int, island: int) -> Volume:
    """Rings within islands of `island` ranks, and rings between them over each chunk."""
    lengths = chunk_lengths(n, island)
    total = Volume()
    for base in range(0, p, island):
        members = range(base, base + island)
        total += (ring_reduce_scatter(n, island) + ring_all_gather(lengths)).renumber(members)
    for index, length in enumerate(lengths):
        total += ring_all_reduce(length, p // island).renumber(range(index, p, island))
    return total


ALL_REDUCE: dict[str, Callable[[int, int], Volume]] = {
    "naive": naive_all_reduce,
    "tree": tree_all_reduce,
    "ring": ring_all_reduce,
    "halving_doubling": halving_doubling_all_reduce,
    "chain": chain_all_reduce,
    "double_tree": double_tree_all_reduce,
}
"""Volume of each all-reduce algorithm that `collectives.all_reduce.ALGORITHMS` names, of (n, p)."""


def _up(nodes: Iterable[TreeNode], n: int, messages: int) -> Volume:
    return Volume((rank, node.parent, n, messages) for rank, node in enumerate(nodes) if node.parent is not None)


def _down(nodes: Iterable[TreeNode], n: int, messages: int) -> Volume:
    return Volume((node.parent, rank, n, messages) for rank, node in enumerate(nodes) if node.parent is not None)


def _distances(p: int) -> list[int]:
    return [1 << k for k in range(p.bit_length() - 1)]


def _window(lengths: Sequence[int], rank: int, distance: int) -> int:
    """Elements of the aligned window of `distance` chunks that `rank` lies in."""
    start = rank & ~(distance - 1)
    return sum(lengths[start : start + distance])
