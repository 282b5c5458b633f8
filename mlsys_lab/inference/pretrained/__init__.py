"""Two small language models that have read this book: a target, and a draft that guesses what the target will write.

Both are built like LLaMA, share one tokenizer and a context of 512 tokens, and come with the package: on random weights
acceptance rates, perplexities and texts would mean nothing. `book/pretrain.py` made them, and measured them on a tenth
of the book's sections that it kept from them: `read_text("held-out")`. `read_text("calibration")` is a part of what
they were trained on, for quantisation that looks at activations.
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
    """A tokenizer and two models that share it: the draft writes worse than the target, and in a fraction of the work.

    Sizes are in `target.config` and `draft.config`.
    """

    tokenizer: Tokenizer
    target: Transformer
    draft: Transformer


def load_pair(*, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu") -> Pair:
    """The tokenizer, target and draft that come with the package; stored in bf16, on a CPU fastest in fp32.

    MissingToolError where a file is missing, InputError where one is damaged, each in one line.
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
