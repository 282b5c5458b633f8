"""Export a training run as a checkpoint in Hugging Face's format: config.json, safetensors, and the tokenizer.

CHECKPOINT is a folder that `mlsys_lab.parallel.train --checkpoints` has written, or one checkpoint in it; of a folder,
the newest complete one is taken. Any layout of ranks becomes one file. A model that was fine-tuned (--init) keeps its
architecture and its tokenizer. `transformers` reads the result, `mlsys-lab serve --model` serves it, and
`mlsys_lab.models.load` loads it.

examples:
  mlsys-lab export runs/first exported
  mlsys-lab export runs/first/step-00000050 exported --dtype bfloat16
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from mlsys_lab.cli.app import argument, option
from mlsys_lab.errors import InputError


@dataclass(kw_only=True)
class Arguments:
    """The run, and where its model is written to."""

    checkpoint: Annotated[Path, argument("a folder of checkpoints, or a checkpoint")]
    folder: Annotated[Path, argument("where to write to; it must not exist, or be empty")]
    dtype: Annotated[Literal["float32", "bfloat16"], option("of the stored weights")] = "float32"


def run(args: Arguments) -> int:
    """Write the folder; returns exit code 0."""
    path, parameters = export(args.checkpoint, args.folder, args.dtype)
    print(f"{path} is now in {args.folder}: {parameters:,} parameters")
    return 0


def export(checkpoint: Path, folder: Path, dtype: str = "float32") -> tuple[Path, int]:
    """Write the model of a checkpoint into a new folder; return the checkpoint taken, and its number of parameters."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError("the folder is not empty", got=folder, help="name one that does not exist")
    import torch

    from mlsys_lab.inference.text import BookTokenizer, load_tokenizer
    from mlsys_lab.inference.text.loading import asset_files
    from mlsys_lab.inference.text.saving import save_huggingface
    from mlsys_lab.models.saving import CONFIG, save
    from mlsys_lab.parallel.train.checkpoint import ASSETS, load_model, newest

    path = newest(checkpoint, lambda line: print(line, file=sys.stderr))
    model, assets, tokenizer = load_model(path), path / ASSETS, load_tokenizer(path / ASSETS)
    config = assets / CONFIG
    fields = json.loads(config.read_text(encoding="utf-8")) if config.exists() else None
    save(model, folder, dtype=getattr(torch, dtype), fields=fields)
    if isinstance(tokenizer, BookTokenizer):
        save_huggingface(tokenizer.tokenizer, folder)
    else:
        for asset in asset_files(assets):
            if asset.name != CONFIG:
                shutil.copy(asset, folder)
    return path, sum(one.numel() for one in model.parameters())
