"""Trained weights as a checkpoint of `mlsys_lab.parallel.train`, which `mlsys-lab export` makes a model's folder of."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save_file

from mlsys_lab.capstone.model import check_weights
from mlsys_lab.configs import TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.parallel.train.checkpoint import ASSETS, MANIFEST, CheckpointShard, file_name


def save(
    folder: Path, config: TransformerConfig, weights: Mapping[str, torch.Tensor], step: int, assets: Sequence[Path] = ()
) -> Path:
    """Write a checkpoint of the weights after a step into a folder and return its path.

    `assets` are the tokenizer's files. The checkpoint appears under its name once it is complete. Raises InputError for
    weights that are not the configuration's, and for a step that the folder has already.
    """
    check_weights(config, weights)
    path = folder / f"step-{step:08d}"
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
    (dtype,) = {str(one.dtype).removeprefix("torch.") for one in weights.values()}
    manifest = {
        "model": asdict(config) | {"dtype": dtype, "window": None},
        "shapes": {name: list(one.shape) for name, one in weights.items()},
        "files": [file.stat().st_size],
        "steps_done": step,
    }
    (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    temporary.rename(path)
    return path
