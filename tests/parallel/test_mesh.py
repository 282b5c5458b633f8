"""The mesh's order is the layout's: tensor ranks are neighbours, pipeline stages are furthest apart."""

from __future__ import annotations

import pytest
import torch

from mlsys_lab.comm import Rank, RankError, run
from mlsys_lab.errors import InputError
from mlsys_lab.flops.layout import Layout
from mlsys_lab.parallel.mesh import DeviceMesh


def find_members(rank: Rank, layout: Layout) -> dict[str, list[int]]:
    mesh = DeviceMesh(layout, rank)
    groups = {axis: getattr(mesh, f"{axis}_group") for axis in ("tensor", "context", "data", "pipeline", "replica")}
    embedding = mesh.embedding_group()
    if embedding is not None:
        groups["embedding"] = embedding
    return {axis: list(group._members) for axis, group in groups.items()}


def test_groups_are_neighbours_by_axis() -> None:
    layout = Layout(data=2, tensor=2, context=2, pipeline=3)
    results, _ = run(find_members, [layout] * 24)
    assert results[0] == {
        "tensor": [0, 1],
        "context": [0, 2],
        "data": [0, 4],
        "pipeline": [0, 8, 16],
        "replica": [0, 2, 4, 6],
        "embedding": [0, 16],
    }
    assert results[13] == {
        "tensor": [12, 13],
        "context": [13, 15],
        "data": [9, 13],
        "pipeline": [5, 13, 21],
        "replica": [9, 11, 13, 15],
    }


def test_neighbouring_data_ranks_shard_the_experts() -> None:
    def find(rank: Rank, layout: Layout) -> tuple[list[int], list[int]]:
        mesh = DeviceMesh(layout, rank)
        return [*mesh.expert_group._members], [*mesh.expert_replica_group._members]

    results, _ = run(find, [Layout(data=4, context=2, expert=2)] * 8)
    assert results[0] == ([0, 2], [0, 1, 4, 5])
    assert results[7] == ([5, 7], [2, 3, 6, 7])


def test_groups_of_one_shape_carry_their_own_messages() -> None:
    def talk(rank: Rank, layout: Layout) -> list[int]:
        mesh = DeviceMesh(layout, rank)
        if rank.rank == 0:
            sent = [group.isend(torch.tensor(i), 1) for i, group in enumerate((mesh.replica_group, mesh.data_group))]
            for one in sent:
                one.wait()
            return []
        return [int(mesh.data_group.recv(0)), int(mesh.replica_group.recv(0))]

    assert run(talk, [Layout(data=2)] * 2).results[1] == [1, 0]


def test_a_layout_of_another_number_of_ranks_raises() -> None:
    with pytest.raises((RankError, InputError), match="the layout has another number of ranks: got 8, expected 4"):
        run(find_members, [Layout(data=2, tensor=2, pipeline=2)] * 4)
