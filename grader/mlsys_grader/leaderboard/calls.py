"""The sandboxed side of the leaderboard: a bundle's artifacts become a stack that fills in a sheet, or trains a model.

`order` is JSON as bytes (N,): artifacts by topic, and the settings of the run as plain numbers.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from mlsys_checks.sandboxed.spec import Arrays
from mlsys_lab.capstone.job import Calibration, Serving
from mlsys_lab.capstone.layers import LAYERS
from mlsys_lab.capstone.sheet import COSTS, predict
from mlsys_lab.capstone.stack import Stack, load_stack
from mlsys_lab.capstone.training import train
from mlsys_lab.configs import TrainConfig, TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.models.training import new_model
from mlsys_lab.stack.artifact import Artifact
from mlsys_lab.stack.workspace import Workspace


def fill_in_sheet(module: Any, arrays: Arrays) -> Arrays:
    """The stack's prediction sheet for the order's calibration: the numbers (N,) in the order of `COSTS`."""
    order = _read(arrays)
    calibration, serving = Calibration.from_json(order["calibration"]), Serving(**order["serving"])
    sheet = predict(_load(order), *_settings(order), calibration, serving=serving)
    return {"sheet": np.array([sheet[key] for key in COSTS], dtype=np.float64)}


def train_model(module: Any, arrays: Arrays) -> Arrays:
    """Weights by name that the stack trains on the token ids `ids` (D,), from the initial weights of the seed."""
    order = _read(arrays)
    config, train_config, ranks = _settings(order)
    initial = {name: one.detach() for name, one in new_model(config, train_config.seed).named_parameters()}
    result = train(_load(order), config, initial, arrays["ids"], train_config, ranks)
    return {name: one.detach().numpy() for name, one in result.weights.items()}


def _read(arrays: Arrays) -> dict[str, Any]:
    order: dict[str, Any] = json.loads(arrays["order"].tobytes())
    return order


def _settings(order: dict[str, Any]) -> tuple[TransformerConfig, TrainConfig, int]:
    return TransformerConfig(**order["model"]), TrainConfig(**order["train"]), order["ranks"]


def _load(order: dict[str, Any]) -> Stack:
    """Load the stack from a workspace that has the artifacts; InputError for one that does not define its layer."""
    workspace = Workspace.create(Path(tempfile.mkdtemp()))
    for topic, text in order["artifacts"].items():
        workspace.accept(topic, Artifact.parse(topic, text))
    stack = load_stack(workspace)
    for spec in LAYERS:
        source = stack.sources[spec.field]
        if spec.topic in order["artifacts"] and source.kind != "yours":
            raise InputError(f"the bundle's {spec.topic} is not its layer", got=source.reason)
    return stack
