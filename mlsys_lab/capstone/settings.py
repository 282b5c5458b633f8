"""Settings of a run of the capstone: the model, its training on the book's text, and the sequence that it generates."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from mlsys_lab.capstone.job import Serving
from mlsys_lab.capstone.sheet import check_training
from mlsys_lab.configs import TrainConfig, TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.inference.pretrained import FOLDER, TOKENIZER
from mlsys_lab.inference.text import BookTokenizer, Tokenizer
from mlsys_lab.models import Transformer, training
from mlsys_lab.models.training import Tokens
from mlsys_lab.parallel.train.data import Dataset, text_dataset
from mlsys_lab.parallel.train.sequences import digest
from mlsys_lab.scaling.text import course_text

TOKENIZER_FILE: Path = FOLDER / TOKENIZER
VOCAB_SIZE, VALIDATION_BATCH = 1024, 32
STEPS, RANKS, BATCH_SIZE, LR = 500, 4, 32, 4e-3
"""Defaults of `plan`: at most ten minutes of CPU time."""
MODELS = {
    "standard": TransformerConfig(
        "capstone", n_layers=4, d_model=128, n_heads=4, d_ff=352, vocab_size=VOCAB_SIZE, context=256, tied=True
    ),
    "tiny": TransformerConfig(
        "capstone-tiny", n_layers=1, d_model=16, n_heads=2, d_ff=32, vocab_size=VOCAB_SIZE, context=64, tied=True
    ),
}
"""Presets of the model: the capstone's, and one that tries out every command in seconds."""


@dataclass(frozen=True)
class BookData(Dataset):
    """The book's text as token ids (D,), and sequences held out."""

    train: Tokens


@dataclass(frozen=True)
class Settings:
    """What `mlsys-lab capstone plan` fixes. `data` is the digest of the training tokens.

    Raises InputError for a training run that the capstone cannot make.
    """

    model: TransformerConfig
    train: TrainConfig
    ranks: int
    serving: Serving
    data: str

    def __post_init__(self) -> None:
        check_training(self.model, self.train, self.ranks)
        self.serving.check(self.model)

    def to_json(self) -> str:
        """All settings as JSON."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Read what `to_json` wrote; InputError for anything else."""
        try:
            fields = json.loads(text)
            model, train = TransformerConfig(**fields.pop("model")), TrainConfig(**fields.pop("train"))
            return cls(model, train, serving=Serving(**fields.pop("serving")), **fields)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError("not settings of a run", got=" ".join(str(error).split())) from None

    def read_data(self) -> BookData:
        """The book's text as tokens, some held out. InputError if it is not the text that the run was planned on."""
        data = book_data(self.train.seq_len)
        if (found := digest(data.train)) != self.data:
            help_ = "plan another run, or install the version of the book that this run was planned on"
            raise InputError(
                "the book's text has changed since the run was planned", got=found, expected=self.data, help=help_
            )
        return data

    def new_weights(self) -> dict[str, torch.Tensor]:
        """Initial weights by name, from the seed."""
        return {name: one.detach() for name, one in training.new_model(self.model, self.train.seed).named_parameters()}


def make_settings(preset: str = "standard", steps: int = STEPS, seed: int = 0, ranks: int = RANKS) -> Settings:
    """Settings of a run of a preset of `MODELS` on sequences of half its context, on the book's text as it is here."""
    model = MODELS[preset]
    seq_len = model.context // 2
    data = digest(book_data(seq_len).train)
    return Settings(
        model, TrainConfig(BATCH_SIZE, seq_len, steps, LR, seed), ranks, Serving(seq_len, seq_len // 2), data
    )


def read_settings(path: Path) -> Settings:
    """Settings of a file like a run's settings.json, on the book's text as it is here. InputError for anything else."""
    try:
        settings = Settings.from_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}", got=error) from None
    if (found := settings.model.vocab_size) != VOCAB_SIZE:
        raise InputError(f"{path} is not for the book's tokenizer", got=f"vocab_size {found}", expected=VOCAB_SIZE)
    return replace(settings, data=digest(book_data(settings.train.seq_len).train))


def book_data(seq_len: int) -> BookData:
    """The book's text in sequences of `seq_len` tokens, a tenth of it held out."""
    data = text_dataset(BookTokenizer(Tokenizer.load(TOKENIZER_FILE)), [course_text()], seq_len)
    return BookData(**vars(data))


@torch.no_grad()
def bits_per_byte(model: Transformer, data: Dataset) -> float:
    """Bits per byte of a model on the text that is held out."""
    total = 0.0
    for first in range(0, len(data.validation), VALIDATION_BATCH):
        inputs, targets = data.validation[first : first + VALIDATION_BATCH]
        total += len(inputs) * training.loss(model, torch.cat([inputs, targets[:, -1:]], 1)).item()
    return data.bits_per_byte(total / len(data.validation))
