"""A small diffusion model of handwritten digits, and the classifier that judged it, both in the package.

`book/pretrain_digits.py` made them in a minute of one core, on the training part of
`mlsys_lab.diffusion.digits.load_digits`. How the loss fell stands in the file of weights (`read_metadata`), how good
the model is in book/data/measurements.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

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
MODEL, JUDGE = "digits.safetensors", "classifier.safetensors"


def load_digits_model(dtype: torch.dtype = torch.float32) -> Preconditioned:
    """The trained denoiser of digits (B, 1, 8, 8) in [-1, 1], classes 0 to 9, null class 10; stored in bf16.

    MissingToolError where its file is missing, InputError where it is damaged, each in one line.
    """
    told = read_metadata(MODEL)
    network = DiT(read_config())
    _fill(network, MODEL)
    denoiser = Preconditioned(network, told["prediction"], told["data_deviation"])
    return denoiser.to(dtype).requires_grad_(False).eval()


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
    save_file(weights, FOLDER / name, metadata={"format": "pt", "told": json.dumps(told)})


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


def _fill(network: nn.Module, name: str) -> None:
    with _open(name) as file:
        weights = {key: file.get_tensor(key).float() for key in file.keys()}  # noqa: SIM118 - no mapping
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
