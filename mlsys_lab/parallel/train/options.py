"""Command-line options of training: the layout, and the model and run that the other options describe."""

from __future__ import annotations

import argparse
from typing import Any

from mlsys_lab.configs.transformer import Experts, TransformerConfig
from mlsys_lab.errors import InputError, did_you_mean
from mlsys_lab.flops.layout import Layout
from mlsys_lab.parallel.train.trainer import TrainConfig

LAYOUT_FIELDS = {
    "data": "data",
    "tensor": "tensor",
    "pipeline": "pipeline",
    "interleave": "interleave",
    "context": "context",
    "expert": "expert",
    "zero": "zero_stage",
    "micro-batch": "micro_batch",
}
"""Parts of a layout that take a number, and the field of `Layout` that each sets."""
RECOMPUTE, SEQUENCE_PARALLEL = "recompute", "sequence-parallel"
HEAD_DIM = 16
DEFAULT_SEQ_LEN = 64


def parse_layout(text: str) -> Layout:
    """Parse a layout from the command line; raises InputError for an unknown part.

    >>> parse_layout("data=2,tensor=2,zero=1,sequence-parallel,recompute=full").devices
    4
    """
    fields: dict[str, Any] = {}
    known = (*LAYOUT_FIELDS, RECOMPUTE, SEQUENCE_PARALLEL)
    for part in text.split(","):
        name, _, value = (word.strip() for word in part.partition("="))
        if name == SEQUENCE_PARALLEL and not value:
            fields["sequence_parallel"] = True
        elif name == RECOMPUTE:
            fields["recomputation"] = value
        elif name in LAYOUT_FIELDS and value.isascii() and value.isdigit():
            fields[LAYOUT_FIELDS[name]] = int(value)
        else:
            near = "" if name in known else did_you_mean(name, known)
            raise InputError("unknown part of a layout", got=repr(part), expected="data=2,tensor=2,…", help=near)
    return Layout(**fields)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of training: layout, model, run, checkpoints, simulation."""
    names = (
        f"{', '.join(f'{name}=N' for name in LAYOUT_FIELDS)}, {SEQUENCE_PARALLEL}, {RECOMPUTE}=none, selective or full"
    )
    parser.add_argument("--layout", default="data=1", metavar="LAYOUT", help=f"comma-separated: {names}")
    parser.add_argument("--layers", type=int, default=4, metavar="L", help="layers of the model (4)")
    parser.add_argument(
        "--hidden-size", type=int, default=64, metavar="D", help=f"hidden size, in heads of {HEAD_DIM} (64)"
    )
    parser.add_argument(
        "--experts", type=int, default=0, metavar="E", help="experts in place of each MLP, top-2 routing"
    )
    parser.add_argument("--steps", type=int, default=100, metavar="N", help="training steps (100)")
    parser.add_argument("--batch", type=int, default=16, metavar="B", help="global batch size, in sequences (16)")
    parser.add_argument("--seq-len", type=int, metavar="T", help=f"tokens of a sequence ({DEFAULT_SEQ_LEN})")
    parser.add_argument("--lr", type=float, default=4e-3, help="peak learning rate (0.004)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights and of the data order (0)")
    parser.add_argument("--checkpoints", metavar="FOLDER", help="write checkpoints here, and resume from the last one")
    parser.add_argument("--save-interval", type=int, default=50, metavar="N", help="steps between checkpoints (50)")
    words = "instead of training, simulate a step on 8, 64 and 512 H100s, of this model or of a preset"
    parser.add_argument("--simulate", nargs="?", const="", metavar="MODEL", help=words)


def make_config(args: argparse.Namespace, vocab_size: int) -> TransformerConfig:
    """The model that the options describe: LLaMA-like, MLPs of three times the hidden size, a tied head."""
    if args.hidden_size < HEAD_DIM or args.hidden_size % HEAD_DIM:
        raise InputError(
            "the hidden size does not divide into heads", got=args.hidden_size, expected=f"a multiple of {HEAD_DIM}"
        )
    return TransformerConfig(
        f"{args.layers} layers of {args.hidden_size}",
        n_layers=args.layers,
        d_model=args.hidden_size,
        n_heads=args.hidden_size // HEAD_DIM,
        d_ff=3 * args.hidden_size,
        vocab_size=vocab_size,
        context=args.seq_len or DEFAULT_SEQ_LEN,
        tied=True,
        experts=Experts(count=args.experts, active=2, d_ff=3 * args.hidden_size) if args.experts else None,
    )


def make_train_config(args: argparse.Namespace) -> TrainConfig:
    """The run that the options describe; InputError for fewer than one step, in total or between checkpoints."""
    for name in ("steps", "save_interval"):
        if getattr(args, name) < 1:
            raise InputError(f"--{name.replace('_', '-')} out of range", got=getattr(args, name), expected="at least 1")
    return TrainConfig(args.batch, args.seq_len or DEFAULT_SEQ_LEN, args.steps, args.lr, args.seed)
