"""Command-line options of training: the layout, and the model and run that the other options describe."""

from __future__ import annotations

import argparse
from typing import Any

from mlsys_lab.configs import TrainConfig
from mlsys_lab.configs.huggingface import read_config
from mlsys_lab.configs.transformer import Experts, TransformerConfig
from mlsys_lab.errors import InputError, did_you_mean
from mlsys_lab.flops.layout import Layout

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
DEFAULT_LAYERS, DEFAULT_HIDDEN_SIZE, DEFAULT_SEQ_LEN = 4, 64, 64
DEFAULT_LR = 4e-3
FINE_TUNING_SEQ_LEN, FINE_TUNING_LR = 512, 1e-4
"""Defaults with --init: a trained model has a longer context, and larger steps would undo what it has learnt."""


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
    """Add the options of training: layout, data, model, run, checkpoints, simulation."""
    names = (
        f"{', '.join(f'{name}=N' for name in LAYOUT_FIELDS)}, {SEQUENCE_PARALLEL}, {RECOMPUTE}=none, selective or full"
    )
    parser.add_argument("--layout", default="data=1", metavar="LAYOUT", help=f"comma-separated: {names}")
    words = 'train on this text, UTF-8, or on the field "text" of each line of a .jsonl; may be repeated'
    parser.add_argument("--text", action="append", metavar="FILE", help=f"{words} (this book's text)")
    words = 'train on conversations, {"messages": [...]} per line of a .jsonl, to predict the assistant\'s tokens'
    parser.add_argument("--chat", metavar="FILE", help=f"{words}; each is padded to a sequence of its own")
    words = "fine-tune the model of a Hugging Face folder, with its tokenizer"
    parser.add_argument("--init", metavar="FOLDER", help=f"{words}; sizes are then the model's")
    parser.add_argument("--layers", type=int, metavar="L", help=f"layers of the model ({DEFAULT_LAYERS})")
    words = f"hidden size, in heads of {HEAD_DIM} ({DEFAULT_HIDDEN_SIZE})"
    parser.add_argument("--hidden-size", type=int, metavar="D", help=words)
    parser.add_argument("--experts", type=int, metavar="E", help="experts in place of each MLP, top-2 routing")
    words = "training steps (100); more than a finished run had extend it from its last checkpoint"
    parser.add_argument("--steps", type=int, default=100, metavar="N", help=words)
    parser.add_argument("--batch", type=int, default=16, metavar="B", help="global batch size, in sequences (16)")
    words = f"tokens of a sequence ({DEFAULT_SEQ_LEN}; with --init {FINE_TUNING_SEQ_LEN}, or the model's context)"
    parser.add_argument("--seq-len", type=int, metavar="T", help=words)
    parser.add_argument("--lr", type=float, help=f"peak learning rate ({DEFAULT_LR}; with --init {FINE_TUNING_LR})")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights and of the data order (0)")
    parser.add_argument("--checkpoints", metavar="FOLDER", help="write checkpoints here, and resume from the last one")
    parser.add_argument("--save-interval", type=int, default=50, metavar="N", help="steps between checkpoints (50)")
    words = "instead of training, simulate a step on 8, 64 and 512 H100s, of this model or of a preset"
    parser.add_argument("--simulate", nargs="?", const="", metavar="MODEL", help=words)


def make_config(args: argparse.Namespace, vocab_size: int) -> TransformerConfig:
    """The model that the options describe: LLaMA-like, MLPs of three times the hidden size, a tied head.

    With --init that of the folder; InputError for sizes given too.
    """
    if args.init is not None:
        sizes = {"--layers": args.layers, "--hidden-size": args.hidden_size, "--experts": args.experts}
        if given := [f"{name} {value}" for name, value in sizes.items() if value is not None]:
            raise InputError("--init has sizes of its own", got=" ".join(given), help="leave out one or the other")
        return read_config(args.init)
    layers = DEFAULT_LAYERS if args.layers is None else args.layers
    hidden_size = DEFAULT_HIDDEN_SIZE if args.hidden_size is None else args.hidden_size
    if hidden_size < HEAD_DIM or hidden_size % HEAD_DIM:
        raise InputError(
            "the hidden size does not divide into heads", got=hidden_size, expected=f"a multiple of {HEAD_DIM}"
        )
    return TransformerConfig(
        f"{layers} layers of {hidden_size}",
        n_layers=layers,
        d_model=hidden_size,
        n_heads=hidden_size // HEAD_DIM,
        d_ff=3 * hidden_size,
        vocab_size=vocab_size,
        context=args.seq_len or DEFAULT_SEQ_LEN,
        tied=True,
        experts=Experts(count=args.experts, active=2, d_ff=3 * hidden_size) if args.experts else None,
    )


def make_train_config(args: argparse.Namespace, context: int) -> TrainConfig:
    """The run that the options describe, of a model with this context.

    InputError for fewer than one step, in total or between checkpoints, and for two kinds of data.
    """
    if args.text and args.chat:
        raise InputError("--text and --chat are different kinds of data", help="train on one, then on the other")
    for name in ("steps", "save_interval"):
        if getattr(args, name) < 1:
            raise InputError(f"--{name.replace('_', '-')} out of range", got=getattr(args, name), expected="at least 1")
    seq_len, lr = (DEFAULT_SEQ_LEN, DEFAULT_LR) if args.init is None else (FINE_TUNING_SEQ_LEN, FINE_TUNING_LR)
    return TrainConfig(
        args.batch, args.seq_len or min(seq_len, context), args.steps, lr if args.lr is None else args.lr, args.seed
    )
