"""Export a training run as a checkpoint in Hugging Face's format: config.json, safetensors, and the tokenizer.

CHECKPOINT is a folder that `mlsys_lab.parallel.train --checkpoints` has written, or one checkpoint in it; of a folder,
the newest complete one is taken. Any layout of ranks becomes one file. `transformers` reads the result, `mlsys-lab
serve --model` serves it, and `mlsys_lab.models.load` loads it.

examples:
  mlsys-lab export runs/first exported
  mlsys-lab export runs/first/step-00000050 exported --dtype bfloat16
"""

from __future__ import annotations

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
    if args.folder.exists() and (not args.folder.is_dir() or any(args.folder.iterdir())):
        raise InputError("the folder is not empty", got=args.folder, help="name one that does not exist")
    import torch

    from mlsys_lab.inference.pretrained import FOLDER, TOKENIZER
    from mlsys_lab.inference.text import Tokenizer
    from mlsys_lab.inference.text.saving import save_huggingface
    from mlsys_lab.models.saving import save
    from mlsys_lab.parallel.train.checkpoint import load_model, newest

    path = newest(args.checkpoint, lambda line: print(line, file=sys.stderr))
    model = load_model(path)
    save(model, args.folder, dtype=getattr(torch, args.dtype))
    save_huggingface(Tokenizer.load(FOLDER / TOKENIZER), args.folder)
    print(f"{path} is now in {args.folder}: {sum(one.numel() for one in model.parameters()):,} parameters")
    return 0
