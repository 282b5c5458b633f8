"""Trees over ranks: who is whose parent. Pure numbers, for algorithms, cost models and drawings alike."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """A rank's place in a tree: its parent (None at the root) and its children, first the one with the largest part."""

    parent: int | None
    children: tuple[int, ...]


def binomial_place(rank: int, size: int, root: int = 0) -> Place:
    """Place in the binomial tree from `root`: in ⌈log₂ p⌉ rounds the number of ranks that know doubles.

    Counted from the root, a rank's parent is its number without the lowest 1 bit.

    >>> [binomial_place(rank, 6).parent for rank in range(6)]
    [None, 0, 0, 2, 0, 4]
    """
    number = (rank - root) % size
    lowest = number & -number if number else 1 << (size - 1).bit_length()
    parent = None if number == 0 else (number - lowest + root) % size
    distances = [1 << k for k in reversed(range(lowest.bit_length() - 1))]
    return Place(parent, tuple((number + d + root) % size for d in distances if number + d < size))


def binary_place(rank: int, size: int) -> Place:
    """Place in a binary tree in which odd ranks are leaves, as NCCL numbers its trees; rank 0 is the root.

    A rank that is an odd multiple of 2ᵏ has children at ± 2ᵏ⁻¹; where the upper one does not exist, the next nearer.

    >>> [binary_place(rank, 6).parent for rank in range(6)]
    [None, 2, 4, 2, 0, 4]
    """
    children = tuple(child for child in range(size) if _binary_parent(child, size) == rank)
    return Place(_binary_parent(rank, size), children)


def _binary_parent(rank: int, size: int) -> int | None:
    if rank == 0:
        return None
    lowest = rank & -rank
    upper = (rank ^ lowest) | lowest << 1
    return upper if upper < size else rank ^ lowest


def double_tree_places(rank: int, size: int) -> tuple[Place, Place]:
    """Places in two binary trees of which the second has the leaves of the first inside (Sanders et al. 2009).

    Each tree carries half the data, so that every rank sends and receives about as much. The second tree is the first
    with ranks counted from the other end (an even number of them) or moved on by one (an odd number).
    """

    def renumber(other: int | None) -> int | None:
        if other is None:
            return None
        return size - 1 - other if size % 2 == 0 else (other + 1) % size

    place = binary_place(size - 1 - rank if size % 2 == 0 else (rank - 1) % size, size)
    children = tuple(child for child in map(renumber, place.children) if child is not None)
    return binary_place(rank, size), Place(renumber(place.parent), children)
