"""A small diffusion model of handwritten digits, its students of few steps, and the classifier that judged them.

`book/pretrain_digits.py` made model and classifier in a minute of one core, on the training part of
`mlsys_lab.diffusion.digits.load_digits`, and `book/distil_digits.py` the students. How the loss fell stands in the file
of weights (`read_metadata`), how good they are in book/data/measurements.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from mlsys_lab.diffusion.digits.classifier import Classifier
from mlsys_lab.diffusion.networks import DiT
from mlsys_lab.diffusion.preconditioning import Preconditioned
from mlsys_lab.errors import InputError, MissingToolError
from mlsys_lab.flops.dit import DiTConfig

FOLDER = Path(__file__).parent
MODEL, JUDGE, STUDENT = "digits.safetensors", "classifier.safetensors", "student-{}.safetensors"
STUDENTS = (1, 2, 4, 8)
"""Numbers of steps for which there is a student."""
SCALES = ".scales"
"""What follows the name of a matrix in 8 bits in that of its rows' scales."""


class Student(NamedTuple):
    """A distilled denoiser, and the levels (S + 1,) that DDIM is to take it down: it knows no others."""

    denoiser: Preconditioned
    grid: torch.Tensor


def load_digits_model(dtype: torch.dtype = torch.float32) -> Preconditioned:
    """The trained denoiser of digits (B, 1, 8, 8) in [-1, 1], classes 0 to 9, null class 10; stored in bf16.

    MissingToolError where its file is missing, InputError where it is damaged, each in one line.
    """
    return _load_denoiser(MODEL).to(dtype)


def load_student(steps: int) -> Student:
    """The digit model distilled to 1, 2, 4 or 8 steps; its matrices are stored in 8 bits, a scale for each row.

    InputError for another number of steps; errors of files as `load_digits_model`.
    """
    if steps not in STUDENTS:
        raise InputError("no student of that many steps", got=steps, expected=f"one of {', '.join(map(str, STUDENTS))}")
    name = STUDENT.format(steps)
    return Student(_load_denoiser(name), torch.tensor(read_metadata(name)["grid"], dtype=torch.float64))


def read_config() -> DiTConfig:
    """Sizes of the digit model's network, without its weights."""
    return DiTConfig(**read_metadata()["config"])


def load_judge() -> Classifier:
    """The classifier of digits that was trained apart; it reads noisy ones too. Errors as `load_digits_model`."""
    judge = Classifier()
    _fill(judge, JUDGE)
    return judge.requires_grad_(False).eval()


def save(network: nn.Module, name: str, told: dict[str, Any]) -> None:
    """Write a network's weights, in bf16, and what is told of it, as JSON, to a file of the package."""
    weights = {key: value.detach().to(torch.bfloat16).contiguous() for key, value in network.state_dict().items()}
    _write(weights, name, told)


def save_student(denoiser: Preconditioned, grid: torch.Tensor, told: dict[str, Any]) -> None:
    """Write the student of levels `grid` (S + 1,), with what is told of it, to its file; matrices in 8 bits."""
    weights: dict[str, torch.Tensor] = {}
    for key, value in denoiser.network.state_dict().items():
        weights[key] = value.detach().contiguous()
        if value.ndim == 2:
            weights[key + SCALES] = value.abs().amax(1, keepdim=True) / 127
            weights[key] = (value / weights[key + SCALES].clamp(min=1e-30)).round().to(torch.int8)
    _write(weights, STUDENT.format(len(grid) - 1), {**describe(denoiser), "grid": grid.tolist(), **told})


def describe(denoiser: Preconditioned) -> dict[str, Any]:
    """What `load_digits_model` needs to know beside weights: the network's sizes and what it predicts."""
    network = denoiser.network
    if not isinstance(network, DiT):
        raise InputError("not a network that is saved", got=type(network).__name__, expected="DiT")
    return {
        "config": asdict(network.config),
        "prediction": denoiser.prediction,
        "data_deviation": denoiser.data_deviation,
    }


def read_metadata(name: str = MODEL) -> dict[str, Any]:
    """What a file of weights says of itself: sizes, prediction, training, and `curve`, (step, mean loss) pairs."""
    with _open(name) as file:
        told: dict[str, Any] = json.loads((file.metadata() or {}).get("told", "{}"))
    return told


def _load_denoiser(name: str) -> Preconditioned:
    told = read_metadata(name)
    network = DiT(DiTConfig(**told["config"]))
    _fill(network, name)
    return Preconditioned(network, told["prediction"], told["data_deviation"]).requires_grad_(False).eval()


def _write(weights: dict[str, torch.Tensor], name: str, told: dict[str, Any]) -> None:
    save_file(weights, FOLDER / name, metadata={"format": "pt", "told": json.dumps(told)})


def _fill(network: nn.Module, name: str) -> None:
    with _open(name) as file:
        weights = {key: file.get_tensor(key).float() for key in file.keys()}  # noqa: SIM118 - no mapping
    for key in [key for key in weights if key + SCALES in weights]:
        weights[key] *= weights.pop(key + SCALES)
    if broken := [key for key, value in weights.items() if not bool(value.isfinite().all())]:
        raise InputError("weights are not numbers", got=f"{broken[0]} of {name}", help="install mlsys-lab again")
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise InputError(
            "weights do not fit the network", got=f"{name}: {reason}", help="install mlsys-lab again"
        ) from None


def _open(name: str) -> Any:
    path = FOLDER / name
    if not path.exists():
        raise MissingToolError("a file of the trained models is missing", got=path, help="install mlsys-lab again")
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise InputError(
            "a file of weights is damaged", got=f"{path.name}: {error}", help="install mlsys-lab again"
        ) from None
