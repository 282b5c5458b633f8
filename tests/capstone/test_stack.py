"""The learner's stack: whose each layer is, that layers run on one another, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mlsys_lab.capstone import LAYERS, load_stack
from mlsys_lab.comm import run
from mlsys_lab.errors import InputError
from mlsys_lab.stack.artifact import Artifact, Cell
from mlsys_lab.stack.labinfo import find_lab
from mlsys_lab.stack.solved import export_solved, find_solved
from mlsys_lab.stack.workspace import Workspace

TWICE = """
whole = all_gather
def all_gather(rank, x):
    return [2 * part for part in whole(rank, x)]
"""


def accept(root: Path, topic: str, more: str = "", version: str | None = None) -> Workspace:
    """Accept the solved lab as the learner's, with more code at its end."""
    path = find_solved(topic)
    assert path is not None
    workspace = Workspace.create(root)
    artifact = Artifact("n.ipynb", (Cell(1, export_solved(path.read_text(encoding="utf-8"))), Cell(2, more)))
    workspace.accept(topic, artifact, find_lab(topic).version if version is None else version)
    return workspace


def test_the_report_says_whose_each_layer_is_and_of_what_version(tmp_path: Path) -> None:
    stack = load_stack(accept(tmp_path, "autograd"), {"collectives": "reference", "cache": "solved"})
    kinds = {field: source.kind for field, source in stack.sources.items()}
    assert kinds.pop("engine") == "yours" and kinds.pop("collectives") == "reference"
    assert set(kinds.values()) == {"solved"}
    report = stack.report().splitlines()
    assert [line.split()[0] for line in report] == [spec.field for spec in LAYERS]
    assert report[0].split(maxsplit=2)[2] == f"yours, version {find_lab('autograd').version}"
    assert "the reference package's (swapped)" in report[2]
    assert report[3].endswith("(no accepted artifact of yours)") and report[5].endswith("(swapped)")


def test_all_labs_of_the_learner_make_a_stack(tmp_path: Path) -> None:
    for spec in LAYERS:
        workspace = accept(tmp_path, spec.topic)
    stack = load_stack(workspace)
    assert {source.kind for source in stack.sources.values()} == {"yours"}
    assert all(hasattr(getattr(stack, spec.field), name) for spec in LAYERS for name in spec.required)


def test_a_notebook_is_the_capstone_layer_as_it_is_at_that_moment(tmp_path: Path) -> None:
    notebook = {"GPT": "a first version"}
    stack = load_stack(Workspace.create(tmp_path), notebook=notebook)
    assert stack.capstone.GPT == "a first version"
    assert str(stack.sources["capstone"]) == "yours (this notebook)"
    notebook["GPT"] = "a second version"
    assert stack.capstone.GPT == "a second version"


@pytest.mark.parametrize("whose", ["yours", "solved", "reference"])
def test_the_sharded_optimizer_runs_on_the_stacks_own_collectives(whose: str, tmp_path: Path) -> None:
    """Of the learner's and the solved lab's optimizer: both load the collectives that the stack has."""
    workspace = accept(tmp_path, "collectives", TWICE)
    if whose == "yours":
        accept(tmp_path, "data-parallel")
    swaps = {"data_parallel": whose} if whose == "reference" else {}
    optimizer_of = load_stack(workspace, swaps).data_parallel.ShardedOptimizer

    def program(rank, x):  # type: ignore[no-untyped-def]
        parameter = torch.nn.Parameter(x.clone())
        parameter.grad = torch.ones(5)
        optimizer = optimizer_of([parameter], torch.optim.SGD, rank, lr=0.0)
        optimizer.reduce_gradients()
        optimizer.step()
        return parameter.detach()

    results, _ = run(program, [torch.arange(5.0)] * 2)
    factor = 1 if whose == "reference" else 2
    torch.testing.assert_close(results[1], factor * torch.arange(5.0))


def test_two_stacks_do_not_share_their_layers(tmp_path: Path) -> None:
    plain, doubled = load_stack(Workspace.create(tmp_path / "a")), load_stack(accept(tmp_path, "collectives", TWICE))
    one, two = (run(lambda r, x, s=s: s.collectives.all_gather(r, x), [torch.ones(1)]) for s in (plain, doubled))
    assert (one.results[0][0].item(), two.results[0][0].item()) == (1, 2)


def test_an_artifact_that_no_longer_defines_a_name_gives_way_as_a_whole(tmp_path: Path) -> None:
    stack = load_stack(accept(tmp_path, "autograd", "del cross_entropy"))
    assert stack.sources["engine"].kind == "solved"
    assert stack.sources["engine"].reason == "yours does not define cross_entropy"
    stack = load_stack(accept(tmp_path, "serving", "del build\ndef build(a=1 / 0): pass"))
    assert "yours no longer runs" in stack.sources["scheduler"].reason
    assert "cell 2" in stack.sources["scheduler"].reason


def test_an_artifact_of_another_version_is_refused_unless_it_is_swapped(tmp_path: Path) -> None:
    workspace = accept(tmp_path, "kv-cache", version="0" * 12)
    with pytest.raises(InputError, match=r"your kv-cache .* another version .*: got 0{12}, expected .*mlsys-lab check"):
        load_stack(workspace)
    assert load_stack(workspace, {"cache": "solved"}).sources["cache"].kind == "solved"


def test_an_artifact_from_before_versions_were_recorded_is_taken(tmp_path: Path) -> None:
    source = load_stack(accept(tmp_path, "kv-cache", version="")).sources["cache"]
    assert str(source) == "yours, version not recorded"


@pytest.mark.parametrize(
    ("swaps", "said"),
    [
        ({"colectives": "solved"}, r"unknown layer: got 'colectives'.*did you mean 'collectives'"),
        ({"engine": "torch"}, r"the engine layer cannot be swapped for 'torch': expected solved or reference"),
        ({"scaling": "reference"}, r"the reference package has no scaling layer with the lab's arguments"),
    ],
)
def test_a_wrong_swap_is_one_clear_line(swaps: dict[str, str], said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        load_stack(Workspace.create(tmp_path), swaps)


def test_a_missing_lab_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlsys_lab.capstone.stack.find_solved", lambda topic: None)
    with pytest.raises(InputError, match=r"nothing to load for the engine layer: .*`mlsys-lab check autograd` accepts"):
        load_stack(Workspace.create(tmp_path))
