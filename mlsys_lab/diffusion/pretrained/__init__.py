"""A small diffusion model of handwritten digits, students distilled to few steps, and a classifier.

`book/pretrain_digits.py` trained model and classifier in a minute on one core, on the training part of
`mlsys_lab.diffusion.digits.load_digits`, and `book/distil_digits.py` the students. The weight files record the loss
curves (`read_metadata`), book/data/measurements the quality.
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
from mlsys_lab.diffusion.schedules import edm_grid
from mlsys_lab.errors import InputError, MissingToolError
from mlsys_lab.flops.dit import DiTConfig

FOLDER = Path(__file__).parent
MODEL, CLASSIFIER, STUDENT = "digits.safetensors", "classifier.safetensors", "student-{}.safetensors"
STUDENTS = (1, 2, 4, 8)
"""Numbers of steps with a student."""
SIGMA_MIN, SIGMA_MAX = 0.02, 20.0
"""Noise levels between which the digit model is sampled."""
SCALES = ".scales"
"""Suffix of the row scales of an 8-bit matrix."""


class Student(NamedTuple):
    """A distilled denoiser, and the only noise schedule (S + 1,) that it supports, for DDIM."""

    denoiser: Preconditioned
    grid: torch.Tensor


def load_digits_model(dtype: torch.dtype = torch.float32) -> Preconditioned:
    """The trained denoiser of digits (B, 1, 8, 8) in [-1, 1], classes 0 to 9, null class 10; stored in bf16.

    MissingToolError if its file is missing, InputError if it is damaged, each in one line.
    """
    return _load_denoiser(MODEL).to(dtype)


def default_grid(steps: int) -> torch.Tensor:
    """The digit model's noise schedule (S + 1,) with `steps` steps."""
    return edm_grid(steps, SIGMA_MIN, SIGMA_MAX)


def load_student(steps: int) -> Student:
    """The digit model distilled to 1, 2, 4 or 8 steps; its matrices are stored in 8 bits with a scale per row.

    InputError for another number of steps; file errors as `load_digits_model`.
    """
    if steps not in STUDENTS:
        raise InputError("no student of that many steps", got=steps, expected=f"one of {', '.join(map(str, STUDENTS))}")
    name = STUDENT.format(steps)
    return Student(_load_denoiser(name), torch.tensor(read_metadata(name)["grid"], dtype=torch.float64))


def read_config() -> DiTConfig:
    """The digit model's network configuration, without its weights."""
    return DiTConfig(**read_metadata()["config"])


def load_classifier() -> Classifier:
    """The classifier of clean and noisy digits. Errors as `load_digits_model`."""
    judge = Classifier()
    _fill(judge, CLASSIFIER)
    return judge.requires_grad_(False).eval()


def save(network: nn.Module, name: str, metadata: dict[str, Any]) -> None:
    """Write a network's weights in bf16, with metadata as JSON, to a file of the package."""
    weights = {key: value.detach().to(torch.bfloat16).contiguous() for key, value in network.state_dict().items()}
    _write(weights, name, metadata)


def save_student(denoiser: Preconditioned, grid: torch.Tensor, metadata: dict[str, Any]) -> None:
    """Write the student for `grid` (S + 1,), with metadata, to its file; matrices in 8 bits."""
    weights: dict[str, torch.Tensor] = {}
    for key, value in denoiser.network.state_dict().items():
        weights[key] = value.detach().contiguous()
        if value.ndim == 2:
            weights[key + SCALES] = value.abs().amax(1, keepdim=True) / 127
            weights[key] = (value / weights[key + SCALES].clamp(min=1e-30)).round().to(torch.int8)
    _write(weights, STUDENT.format(len(grid) - 1), {**describe(denoiser), "grid": grid.tolist(), **metadata})


def describe(denoiser: Preconditioned) -> dict[str, Any]:
    """Metadata that `load_digits_model` needs: the network's configuration and prediction type."""
    network = denoiser.network
    if not isinstance(network, DiT):
        raise InputError("not a network that is saved", got=type(network).__name__, expected="DiT")
    return {
        "config": asdict(network.config),
        "prediction": denoiser.prediction,
        "data_deviation": denoiser.sigma_data,
    }


def read_metadata(name: str = MODEL) -> dict[str, Any]:
    """Metadata of a weight file: configuration, prediction type, training, and `curve`, (step, mean loss) pairs."""
    with _open(name) as file:
        metadata: dict[str, Any] = json.loads((file.metadata() or {}).get("told", "{}"))
    return metadata


def _load_denoiser(name: str) -> Preconditioned:
    metadata = read_metadata(name)
    network = DiT(DiTConfig(**metadata["config"]))
    _fill(network, name)
    return Preconditioned(network, metadata["prediction"], metadata["data_deviation"]).requires_grad_(False).eval()


def _write(weights: dict[str, torch.Tensor], name: str, metadata: dict[str, Any]) -> None:
    save_file(weights, FOLDER / name, metadata={"format": "pt", "told": json.dumps(metadata)})


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
