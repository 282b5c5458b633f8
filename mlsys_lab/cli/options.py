"""Options that name a model and devices, and what the commands read from them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from mlsys_lab.cli.app import argument, option
from mlsys_lab.configs.huggingface import omissions, read_config
from mlsys_lab.configs.presets import PRESETS, preset, preset_omissions
from mlsys_lab.configs.transformer import TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.flops.bounds import NETWORK_BYTES_PER_S, Machine, machine
from mlsys_lab.flops.defaults import DEVICE, SEQUENCE_TOKENS
from mlsys_lab.hardware import device, measure_cpu

GB = 1e9
RANKS = {
    "data": "data-parallel ranks",
    "tensor": "tensor-parallel ranks: matrices sharded",
    "pipeline": "pipeline stages: layers sharded",
    "expert": "expert-parallel ranks, taken from the data-parallel ones",
    "context": "context-parallel ranks: each training sequence sharded",
}


def rank_option(name: str) -> Any:
    """A Typer option for the number of ranks along one dimension of a layout."""
    return option(RANKS[name], "N", "Layout")


@dataclass(kw_only=True)
class ModelOptions:
    """A model, and the devices that it runs on with the links between them."""

    model: Annotated[str, argument(f"a config.json, or one of {', '.join(PRESETS)}")]
    device: Annotated[str, option('a device of the table, or "cpu" to measure this machine', "NAME")] = DEVICE
    node: Annotated[int | None, option("devices that the fast links connect (8 GPUs by default)", "N", "Devices")] = (
        None
    )
    network: Annotated[float, option("bandwidth between nodes, per device and direction", "GB/S", "Devices")] = (
        NETWORK_BYTES_PER_S / GB
    )


def read_model(model: str) -> tuple[TransformerConfig, tuple[str, ...]]:
    """Read a model from a preset's name or a path; also phrases for the parts of it that are not counted."""
    path = Path(model)
    written_as_path = path.suffix == ".json" or len(path.parts) > 1 or model.startswith(".")
    if written_as_path or (path / "config.json").is_file():
        return read_config(path), tuple(omissions(path))
    return preset(model), preset_omissions(model)


def read_machine(args: ModelOptions, precision: str) -> Machine:
    """Read the device with its links, for matrix products at a precision."""
    if args.node is not None and args.node < 1:
        raise InputError("--node out of range", got=args.node, expected="at least 1 device")
    one = measure_cpu() if args.device.lower() == "cpu" else device(args.device)
    return machine(one, precision, node=args.node, network_bytes_per_s=args.network * GB)


def read_tokens(sequence: int | None, config: TransformerConfig) -> int:
    """Read the tokens per sequence; by default the model's context, at most `SEQUENCE_TOKENS`."""
    return min(config.context, SEQUENCE_TOKENS) if sequence is None else sequence
