"""Windows of a text to calibrate on and to compare on: no token is in both, and the seed chooses among many."""

from __future__ import annotations

from pathlib import Path

import torch

from mlsys_lab.cli.calibration_text import MAX_WINDOWS, read_windows
from mlsys_lab.inference.pretrained import FOLDER, read_text
from mlsys_lab.inference.text import load_tokenizer

TOKENIZER = load_tokenizer(FOLDER)
CONTEXT = 16


def test_the_last_quarter_of_a_text_is_held_out(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text(read_text("held-out"))
    ids = torch.tensor(TOKENIZER.encode_prompt(path.read_text()))
    calibration, held_out = read_windows(path, TOKENIZER, CONTEXT, seed=0)
    assert calibration.shape == held_out.shape == (MAX_WINDOWS, CONTEXT + 1)
    all_windows = ids.unfold(0, CONTEXT + 1, CONTEXT)
    cut = len(all_windows) - len(all_windows) // 4
    for chosen, allowed in ((calibration, all_windows[:cut]), (held_out, all_windows[cut:])):
        assert all((window == allowed).all(-1).any() for window in chosen)


def test_the_seed_chooses_and_the_book_is_the_default() -> None:
    first, again, other = (read_windows(None, TOKENIZER, CONTEXT, seed=seed) for seed in (1, 1, 2))
    for one, same, another in zip(first, again, other, strict=True):
        assert torch.equal(one, same) and not torch.equal(one, another)
    texts = [TOKENIZER.encode_prompt(read_text(name)) for name in ("calibration", "held-out")]
    for windows, text in zip(read_windows(None, TOKENIZER, 512, seed=0), texts, strict=True):
        assert windows.flatten()[0] == text[0] and len(windows) == min(MAX_WINDOWS, (len(text) - 1) // 512)
