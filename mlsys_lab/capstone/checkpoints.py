"""Checkpoints of the capstone: those of `mlsys_lab.parallel.train`, and what the learner's optimizer needs to resume.

The weights are in the format of `mlsys_lab.parallel.train.checkpoint`, so `mlsys-lab export` makes a model's folder of
them. Next to them lie the ranks' states, `state-0.safetensors` and so on, as lab 08's `save_state` returns them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from mlsys_lab.capstone.weights import check_weights
from mlsys_lab.configs import TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.parallel.train.checkpoint import ASSETS, MANIFEST, CheckpointShard, file_name


def save(
    folder: Path,
    config: TransformerConfig,
    weights: Mapping[str, torch.Tensor],
    step: int,
    *,
    states: Sequence[Mapping[str, torch.Tensor]] = (),
    assets: Sequence[Path] = (),
) -> Path:
    """Write a checkpoint of a run after a step into a folder and return its path.

    `states` are the ranks', `assets` the tokenizer's files. The checkpoint appears under its name once it is complete.
    Raises InputError for weights that are not the configuration's, and for a step that the folder has already.
    """
    check_weights(config, weights)
    path = folder / checkpoint_name(step)
    if path.exists():
        raise InputError("the folder has a checkpoint of this step", got=path, help="name another folder")
    temporary = folder / f"{path.name}.part"
    shutil.rmtree(temporary, ignore_errors=True)
    (temporary / ASSETS).mkdir(parents=True)
    for asset in assets:
        shutil.copy(asset, temporary / ASSETS)
    shards = [asdict(CheckpointShard(name, dim=0, index=0, num_shards=1, start=0)) for name in weights]
    tensors = {f"weight {number}": one.reshape(-1).clone() for number, one in enumerate(weights.values())}
    file = temporary / file_name(0)
    save_file(tensors, file, metadata={"shards": json.dumps(shards)})
    for rank, state in enumerate(states):
        save_file({name: one.contiguous() for name, one in state.items()}, temporary / state_name(rank))
    (dtype,) = {str(one.dtype).removeprefix("torch.") for one in weights.values()}
    manifest = {
        "model": asdict(config) | {"dtype": dtype, "window": None},
        "shapes": {name: list(one.shape) for name, one in weights.items()},
        "files": [file.stat().st_size],
        "steps_done": step,
        "num_states": len(states),
    }
    (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    temporary.rename(path)
    return path


def load_states(path: Path) -> list[dict[str, torch.Tensor]]:
    """States of the ranks of a checkpoint, none if it was saved without; InputError for one that is damaged."""
    try:
        num_states = json.loads((path / MANIFEST).read_text(encoding="utf-8"))["num_states"]
        return [load_file(path / state_name(rank)) for rank in range(num_states)]
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        got = " ".join(str(error).split())
        raise InputError(f"{path} cannot be resumed", got=got, help="resume from another checkpoint") from None


def state_name(rank: int) -> str:
    """Name of the file with a rank's state."""
    return f"state-{rank}.safetensors"


def checkpoint_name(step: int) -> str:
    """Name of the folder of a step's checkpoint."""
    return f"step-{step:08d}"
