"""Text for commands that quantize a model: one part to calibrate on, another to compare on.

Dimension letters: W windows, T tokens of a window.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mlsys_lab.errors import InputError
from mlsys_lab.inference.pretrained import FOLDER, read_text
from mlsys_lab.inference.text import load_tokenizer
from mlsys_lab.models.training import windows

if TYPE_CHECKING:
    import torch

    from mlsys_lab.inference.text import ChatTokenizer

MAX_WINDOWS, MAX_WINDOW_TOKENS = 16, 512
"""At most this many windows to calibrate on and as many to compare on, each at most this long."""
HELD_OUT = 4
"""The last of this many parts of a text is held out."""


def read_windows(
    path: Path | None, tokenizer: ChatTokenizer, context: int, *, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids to calibrate on, and held-out ones to compare on: (W, T + 1) each, T at most the context.

    They are of one text, or of the two of the book without a `path`. `seed` chooses windows of a long text. InputError
    for a text that cannot be read or is too short, and without one for another tokenizer than the course's.
    """
    size = min(context, MAX_WINDOW_TOKENS)
    texts = [_read(path)] if path else _read_book(tokenizer)
    parts = [np.array(tokenizer.encode_prompt(text)) for text in texts]
    starts = [np.arange((len(part) - 1) // size) * size for part in parts]
    if path:
        cut = len(starts[0]) - max(1, len(starts[0]) // HELD_OUT)
        parts, starts = parts * 2, [starts[0][:cut], starts[0][cut:]]
    if not all(map(len, starts)):
        got, expected = f"{len(parts[0])} tokens", f"at least {2 * size + 1}"
        raise InputError("too little text", got=got, expected=expected, help="give more with --text")
    random = np.random.default_rng(seed)
    chosen = [np.sort(random.permutation(one)[:MAX_WINDOWS]) for one in starts]
    calibration, held_out = (windows(part, one, size) for part, one in zip(parts, chosen, strict=True))
    return calibration, held_out


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError("no text to read", got=f"{path}: {error}", expected="a file in UTF-8") from None


def _read_book(tokenizer: ChatTokenizer) -> list[str]:
    """The calibration text and the held-out text of the book."""
    texts = [read_text("calibration"), read_text("held-out")]
    course, sample = load_tokenizer(FOLDER), texts[1][:1000]
    if course.encode_prompt(sample) != tokenizer.encode_prompt(sample):
        expected = "--text FILE, about 10,000 tokens of what the model is for"
        raise InputError("no text to calibrate and compare on", expected=expected)
    return texts
