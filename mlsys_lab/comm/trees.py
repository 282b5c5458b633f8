"""Trees over ranks: each rank's parent and children, for algorithms, cost models and drawings alike."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TreeNode:
    """A rank's parent (None at the root) and children, the one with the largest subtree first."""

    parent: int | None
    children: tuple[int, ...]


def binomial_tree_node(rank: int, size: int, root: int = 0) -> TreeNode:
    """A rank's node in the binomial tree from `root`, in which the number of ranks reached doubles in each round.

    Counted from the root, a rank's parent is its number without the lowest 1 bit.

    >>> [binomial_tree_node(rank, 6).parent for rank in range(6)]
    [None, 0, 0, 2, 0, 4]
    """
    number = (rank - root) % size
    lowest = number & -number if number else 1 << (size - 1).bit_length()
    parent = None if number == 0 else (number - lowest + root) % size
    distances = [1 << k for k in reversed(range(lowest.bit_length() - 1))]
    return TreeNode(parent, tuple((number + d + root) % size for d in distances if number + d < size))


def binary_tree_node(rank: int, size: int) -> TreeNode:
    """A rank's node in a binary tree with odd ranks as leaves and rank 0 as root, as NCCL numbers its trees.

    A rank that is an odd multiple of 2ᵏ has children at ± 2ᵏ⁻¹; if the upper one does not exist, the next nearer.

    >>> [binary_tree_node(rank, 6).parent for rank in range(6)]
    [None, 2, 4, 2, 0, 4]
    """
    children = tuple(child for child in range(size) if _binary_parent(child, size) == rank)
    return TreeNode(_binary_parent(rank, size), children)


def _binary_parent(rank: int, size: int) -> int | None:
    if rank == 0:
        return None
    lowest = rank & -rank
    upper = (rank ^ lowest) | lowest << 1
    return upper if upper < size else rank ^ lowest


def double_tree_nodes(rank: int, size: int) -> tuple[TreeNode, TreeNode]:
    """A rank's nodes in two binary trees, each with the other's leaves as inner nodes (Sanders et al. 2009).

    Each tree carries half the data, so every rank sends and receives about as much. The second tree is the first with
    ranks counted from the other end (even number of ranks) or shifted by one (odd number).
    """

    def renumber(other: int | None) -> int | None:
        if other is None:
            return None
        return size - 1 - other if size % 2 == 0 else (other + 1) % size

    node = binary_tree_node(size - 1 - rank if size % 2 == 0 else (rank - 1) % size, size)
    children = tuple(child for child in map(renumber, node.children) if child is not None)
    return binary_tree_node(rank, size), TreeNode(renumber(node.parent), children)
