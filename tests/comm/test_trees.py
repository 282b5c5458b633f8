from __future__ import annotations

import pytest

from mlsys_lab.comm.trees import binary_tree_node, binomial_tree_node, double_tree_nodes

SIZES = range(1, 34)


def depth(places):
    """Longest way from a rank to the root, which every rank must reach."""

    def steps(rank):
        count = 0
        while places[rank].parent is not None:
            rank, count = places[rank].parent, count + 1
            assert count <= len(places)
        return count

    return max(steps(rank) for rank in range(len(places)))


def check_tree(places, root):
    assert [rank for rank, place in enumerate(places) if place.parent is None] == [root]
    for rank, place in enumerate(places):
        assert sorted(place.children) == [r for r, other in enumerate(places) if other.parent == rank]


@pytest.mark.parametrize("size", SIZES)
def test_binomial_trees(size):
    for root in {0, 1 % size, size - 1}:
        places = [binomial_tree_node(rank, size, root) for rank in range(size)]
        check_tree(places, root)
        assert depth(places) <= (size - 1).bit_length()


@pytest.mark.parametrize("size", SIZES)
def test_two_binary_trees_balance_the_load(size):
    first, second = zip(*(double_tree_nodes(rank, size) for rank in range(size)), strict=True)
    assert list(first) == [binary_tree_node(rank, size) for rank in range(size)]
    check_tree(first, 0)
    check_tree(second, size - 1 if size % 2 == 0 else 1 % size)
    for places in (first, second):
        assert max(len(place.children) for place in places) <= 2
        assert depth(places) <= size.bit_length()
    both = [rank for rank in range(size) if first[rank].children and second[rank].children]
    assert len(both) <= size % 2
