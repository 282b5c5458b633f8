"""Right answers that are built differently make a stack that works: each accepted alternative of each lab in turn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from mlsys_lab.capstone import LAYERS, LayerSpec, Stack, load_stack
from mlsys_lab.capstone.job import Serving
from mlsys_lab.capstone.logits import logit_errors
from mlsys_lab.capstone.measurement import compare, measure
from mlsys_lab.capstone.serving import build_engine, generate_greedy
from mlsys_lab.capstone.sheet import predict
from mlsys_lab.capstone.training import train
from mlsys_lab.configs import TrainConfig, TransformerConfig
from mlsys_lab.inference.engine import SchedulerConfig
from mlsys_lab.models import Transformer
from mlsys_lab.stack.artifact import Artifact
from mlsys_lab.stack.workspace import Workspace
from tests.capstone.calibrations import plain_calibration
from tests.labs.harness import LabUnderTest, labs

LABS = {lab.info.topic: lab for lab in labs()}
ALTERNATIVES = {
    f"{spec.topic}: {path.stem}": (spec, LABS[spec.topic], path)
    for spec in LAYERS
    for path in LABS[spec.topic].alternatives
}
IDS = np.random.default_rng(0).integers(0, 53, 900)
CONFIG = TrainConfig(6, 11, 3, 1e-2)


@pytest.mark.weekly
@pytest.mark.parametrize(("spec", "lab", "path"), ALTERNATIVES.values(), ids=ALTERNATIVES)
def test_every_accepted_alternative_makes_a_working_stack(
    spec: LayerSpec,
    lab: LabUnderTest,
    path: Path,
    stack: Stack,
    config: TransformerConfig,
    model: Transformer,
    weights: dict[str, torch.Tensor],
    folder: Path,
    tmp_path: Path,
) -> None:
    workspace = Workspace.create(tmp_path)
    workspace.accept(spec.topic, Artifact.parse(path.name, lab.with_definitions(path)))
    theirs = load_stack(workspace)
    assert theirs.sources[spec.field].kind == "yours"
    prompts = [IDS[start : start + size].tolist() for start, size in ((0, 16), (0, 9), (30, 1), (60, 25))]
    if spec.field in ("engine", "cache", "capstone"):
        assert max(logit_errors(theirs, folder, prompts[0])) < 1e-10
    if spec.field in ("engine", "collectives", "data_parallel", "capstone"):
        whole = train(stack, config, weights, IDS, CONFIG, 4)
        first = train(theirs, config, weights, IDS, CONFIG, 4, until=1)
        rest = train(theirs, config, weights, IDS, CONFIG, 3, states=first.states)
        for name, weight in whole.weights.items():
            torch.testing.assert_close(rest.weights[name], weight, rtol=0, atol=1e-11)
    if spec.field in ("cache", "scheduler", "capstone"):
        ours, other = (
            generate_greedy(
                build_engine(one, model, num_blocks=20, block_size=3, config=SchedulerConfig(4, 16)), prompts, 8
            )
            for one in (stack, theirs)
        )
        assert other == ours
    if spec.field in ("engine", "arithmetic", "collectives", "data_parallel", "cache", "capstone"):
        single = {name: weight.float() for name, weight in weights.items()}
        serving = Serving(prompt_tokens=7, new_tokens=5)
        sheet = predict(theirs, config, CONFIG, 4, plain_calibration(config, CONFIG, 4), serving=serving)
        measured = measure(theirs, config, single, IDS, CONFIG, 4, serving=serving)
        assert not [row for row in compare(sheet, measured) if row.is_equal is False]
