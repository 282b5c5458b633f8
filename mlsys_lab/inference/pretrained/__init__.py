"""Two small language models trained on this book: a target model and a draft model.

Both have LLaMA's architecture, one tokenizer and a context of 512 tokens, and come with the package, because acceptance
rates, perplexities and texts of random weights would mean nothing. `book/pretrain.py` trained them, and evaluated them
on a tenth of the book's sections, `read_text("held-out")`. `read_text("calibration")` is a part of the training data,
for quantization schemes that need activations.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

import torch

from mlsys_lab.errors import MissingToolError
from mlsys_lab.inference.text import Tokenizer
from mlsys_lab.models import Transformer, load

FOLDER = Path(__file__).parent
TOKENIZER, TARGET, DRAFT = "tokenizer.json", "target", "draft"


class Pair(NamedTuple):
    """A tokenizer and two models that share it: the draft model is worse than the target, at a fraction of its cost.

    Sizes are in `target.config` and `draft.config`.
    """

    tokenizer: Tokenizer
    target: Transformer
    draft: Transformer


def load_pair(*, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu") -> Pair:
    """Load the tokenizer, target and draft model of the package; stored in bf16, on a CPU fastest in fp32.

    MissingToolError if a file is missing, InputError if one is damaged.
    """
    for name in (TOKENIZER, TARGET, DRAFT):
        _require(FOLDER / name)
    target, draft = (load(FOLDER / name, dtype=dtype, device=device).eval() for name in (TARGET, DRAFT))
    return Pair(Tokenizer.load(FOLDER / TOKENIZER), target, draft)


def read_text(name: Literal["held-out", "calibration"]) -> str:
    """Text of the book that the pair never saw ("held-out"), or some that it was trained on ("calibration")."""
    path = FOLDER / f"{name}.txt"
    _require(path)
    return path.read_text(encoding="utf-8")


def _require(path: Path) -> None:
    if not path.exists():
        raise MissingToolError("a file of the trained models is missing", got=path, help="install mlsys-lab again")
