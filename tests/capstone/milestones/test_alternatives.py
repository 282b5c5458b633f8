"""Right answers that are built differently reproduce the published numbers too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mlsys_lab.capstone import LAYERS, LayerSpec, Stack
from mlsys_lab.capstone.milestones import MILESTONES, reproduce
from mlsys_lab.stack import Layer, defined_names, using
from mlsys_lab.stack.artifact import Artifact
from mlsys_lab.stack.loading import load
from tests.labs.harness import LabUnderTest, labs

LABS = {lab.info.topic: lab for lab in labs()}
ALTERNATIVES = {
    f"{spec.topic}: {path.stem}": (spec, LABS[spec.topic], path)
    for spec in LAYERS
    if any(spec.field in milestone.needs for milestone in MILESTONES)
    for path in LABS[spec.topic].alternatives
}


@pytest.mark.weekly
@pytest.mark.parametrize(("spec", "lab", "path"), ALTERNATIVES.values(), ids=ALTERNATIVES)
def test_every_accepted_alternative_reproduces_the_milestones(
    spec: LayerSpec, lab: LabUnderTest, path: Path, stack: Stack
) -> None:
    with using({one.topic: getattr(stack, one.field) for one in LAYERS if one.field != spec.field}):
        names = defined_names(load(Artifact.parse(path.name, lab.with_definitions(path)), f"other_{spec.field}"))
    theirs = replace(stack, **{spec.field: Layer(spec.topic, names, dict.fromkeys(names, "yours"))})  # type: ignore[arg-type]
    for milestone in MILESTONES:
        if spec.field in milestone.needs:
            assert reproduce(milestone, theirs).problem == ""
