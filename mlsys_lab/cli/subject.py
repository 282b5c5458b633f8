"""What `estimate` and `plan` are about: a model and devices, as both commands take them from the command line."""

from __future__ import annotations

import argparse
from pathlib import Path

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
    "tensor": "tensor-parallel ranks: matrices divided",
    "pipeline": "pipeline stages: layers divided",
    "expert": "ranks among which experts are divided, taken from the data-parallel ones",
    "context": "ranks among which each training sequence is divided",
}


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name a model and a device."""
    parser.add_argument("model", metavar="MODEL", help=f"a config.json, or one of {', '.join(PRESETS)}")
    parser.add_argument("--device", default=DEVICE, help='a device of the table, or "cpu" to measure this machine')


def add_wires(parser: argparse._ArgumentGroup) -> None:
    """Add the options that say how devices are connected."""
    parser.add_argument("--node", type=int, metavar="N", help="devices that the fast links connect (8 GPUs)")
    network = f"between nodes, a device and direction ({NETWORK_BYTES_PER_S / GB:g})"
    parser.add_argument("--network", type=float, metavar="GB/S", default=NETWORK_BYTES_PER_S / GB, help=network)


def read_model(model: str) -> tuple[TransformerConfig, tuple[str, ...]]:
    """The model of a preset's name or a path, and phrases for what is not counted of it."""
    path = Path(model)
    written_as_path = path.suffix == ".json" or len(path.parts) > 1 or model.startswith(".")
    if written_as_path or (path / "config.json").is_file():
        return read_config(path), tuple(omissions(path))
    return preset(model), preset_omissions(model)


def read_machine(args: argparse.Namespace, precision: str) -> Machine:
    """The device of the command line with its wires, multiplying at a precision."""
    if args.node is not None and args.node < 1:
        raise InputError("--node out of range", got=args.node, expected="at least 1 device")
    one = measure_cpu() if args.device.lower() == "cpu" else device(args.device)
    return machine(one, precision, node=args.node, network_bytes_per_s=args.network * GB)


def read_tokens(args: argparse.Namespace, config: TransformerConfig) -> int:
    """Tokens of a sequence: those of the command line, or the model's context, `SEQUENCE_TOKENS` at most."""
    return min(config.context, SEQUENCE_TOKENS) if args.sequence is None else int(args.sequence)
