"""A command-line training run on one rank: data, model, steps with progress lines, checkpoints, bytes sent."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from mlsys_lab.comm import Rank
from mlsys_lab.comm.collectives.reduce_scatter import all_gather
from mlsys_lab.comm.collectives.rooted import broadcast
from mlsys_lab.comm.instrumentation import count_sent_bytes
from mlsys_lab.flops import compute
from mlsys_lab.flops.parameters import parameters
from mlsys_lab.flops.utilisation import mfu
from mlsys_lab.hardware import measure_cpu
from mlsys_lab.inference.pretrained import FOLDER, TOKENIZER
from mlsys_lab.inference.text import BookTokenizer, ChatTokenizer, Tokenizer, load_tokenizer
from mlsys_lab.inference.text.loading import asset_files
from mlsys_lab.models import Transformer, load, training
from mlsys_lab.models.training import Tokens
from mlsys_lab.parallel.train.checkpoint import restore_latest, save
from mlsys_lab.parallel.train.data import Dataset, chat_dataset, read_conversations, read_documents, text_dataset
from mlsys_lab.parallel.train.options import make_config, make_train_config, parse_layout
from mlsys_lab.parallel.train.sequences import Sequences
from mlsys_lab.parallel.train.traffic import predict_bytes
from mlsys_lab.parallel.train.trainer import Trainer
from mlsys_lab.scaling.text import course_text

PROGRESS_LINES = 20
"""Largest number of progress lines at equal intervals; the first and the last step print one too."""


def run(world: Rank, args: argparse.Namespace) -> list[float]:
    """Train with the options of the command line, printing on rank 0; return the loss of each step."""
    group, sent = count_sent_bytes(world)
    layout = parse_layout(args.layout)
    model, tokenizer = load_start(args)
    config, train_config = model.config, make_train_config(args, model.config.context)
    assets = asset_files(Path(args.init or FOLDER))

    def log(line: str) -> None:
        if group.rank == 0:
            print(line, flush=True)

    with training.one_thread():
        dataset = load_dataset(group, args, tokenizer, train_config.seq_len, log)
        trainer = Trainer(model, dataset.train, train_config, layout, group)
        folder = Path(args.checkpoints) if args.checkpoints else None
        if folder:
            restore_latest(trainer, folder, log)
            if trainer.steps_done == train_config.steps:
                log(f"this run has taken its {train_config.steps} steps; a larger --steps extends it")
        peak = measure_peak_flops_per_s(group)
        log(f"{parameters(config).total:,} parameters, {dataset.describe()}, {args.layout} on {group.size} ranks")
        flops = compute.training(config, train_config.seq_len, train_config.batch_size).model
        sent.clear()
        first_step, training_s = trainer.steps_done, 0.0
        losses: list[float] = []
        while trainer.steps_done < train_config.steps:
            started = time.perf_counter()
            losses.append(trainer.step())
            training_s += time.perf_counter() - started
            if is_progress_step(trainer.steps_done, first_step + 1, train_config.steps):
                step_s = training_s / (trainer.steps_done - first_step)
                tokens_per_s = train_config.batch_size * train_config.seq_len / step_s
                utilisation = mfu(flops, step_s, peak_flops_per_s=peak)
                progress = f"step {trainer.steps_done:5}  loss {losses[-1]:.4f}  {tokens_per_s:9,.0f} tokens/s"
                log(f"{progress}  MFU {utilisation:6.2%}")
            if folder and (trainer.steps_done % args.save_interval == 0 or trainer.steps_done == train_config.steps):
                save(trainer, folder, assets)
        predicted = predict_bytes(
            config, layout, batch=train_config.batch_size, seq_len=train_config.seq_len, element_bytes=4
        )
        for line in byte_table(sum_over_ranks(group, sent), predicted, len(losses)):
            log(line)
        loss, num_targets = trainer.evaluate(dataset.validation), dataset.validation.num_targets
        bits = dataset.bits_per_byte(loss)
        log(f"validation loss {loss:.4f}, {bits:.4f} bits per byte, on {num_targets:,} tokens held out")
    return losses


def load_start(args: argparse.Namespace) -> tuple[Transformer, ChatTokenizer]:
    """The model that training starts from, in fp32, and its tokenizer: those of --init, or a new model of the course's.

    Raises InputError for a folder that cannot be loaded, and for options that do not go together.
    """
    if args.init is not None:
        make_config(args, 0)
        return load(args.init, dtype=torch.float32), load_tokenizer(Path(args.init))
    tokenizer = Tokenizer.load(FOLDER / TOKENIZER)
    return training.new_model(make_config(args, tokenizer.vocab_size), args.seed), BookTokenizer(tokenizer)


def is_progress_step(step: int, first: int, last: int) -> bool:
    """Whether a run from step `first` to `last` prints a progress line after this step."""
    return step % -(-last // PROGRESS_LINES) == 0 or step in (first, last)


def load_dataset(
    group: Rank, args: argparse.Namespace, tokenizer: ChatTokenizer, seq_len: int, log: Callable[[str], object]
) -> Dataset:
    """The data of --text or --chat, or the book's chapters, which rank 0 reads and broadcasts."""
    own = _read_dataset(args, tokenizer, seq_len, log) if group.rank == 0 else None
    held_out = _broadcast_sequences(group, own.validation if own else None, seq_len)
    num_bytes = int(broadcast(group, torch.tensor(own.validation_bytes if own else 0)))
    if args.chat:
        conversations = own.train if own and isinstance(own.train, Sequences) else None
        return Dataset(_broadcast_sequences(group, conversations, seq_len), held_out, num_bytes)
    ids = own.train if own and not isinstance(own.train, Sequences) else None
    return Dataset(_broadcast_ids(group, ids), held_out, num_bytes)


def _read_dataset(
    args: argparse.Namespace, tokenizer: ChatTokenizer, seq_len: int, log: Callable[[str], object]
) -> Dataset:
    if args.chat:
        return chat_dataset(tokenizer, read_conversations(Path(args.chat)), seq_len, log)
    texts = [text for path in args.text for text in read_documents(Path(path))] if args.text else [course_text()]
    return text_dataset(tokenizer, texts, seq_len)


def _broadcast_ids(group: Rank, ids: Tokens | None) -> Tokens:
    """Rank 0's ids (D,) on every rank; the other ranks have None."""
    length = broadcast(group, torch.tensor(0 if ids is None else len(ids)))
    received = torch.empty(int(length), dtype=torch.int64) if ids is None else torch.from_numpy(ids)
    shared: Tokens = broadcast(group, received).numpy()
    return shared


def _broadcast_sequences(group: Rank, own: Sequences | None, seq_len: int) -> Sequences:
    inputs, targets = (None, None) if own is None else (own.inputs.reshape(-1), own.targets.reshape(-1))
    return Sequences(*(_broadcast_ids(group, one).reshape(-1, seq_len) for one in (inputs, targets)))


def measure_peak_flops_per_s(group: Rank) -> float:
    """FLOP/s of fp32 matrix products on all of this machine's cores, measured by rank 0 while the other ranks wait."""
    peak = torch.zeros(1, dtype=torch.float64)
    if group.rank == 0:
        threads = torch.get_num_threads()
        torch.set_num_threads(os.cpu_count() or 1)
        peak[0] = measure_cpu().peaks["fp32"]
        torch.set_num_threads(threads)
    return float(broadcast(group, peak))


def sum_over_ranks(group: Rank, sent: Counter[str]) -> Counter[str]:
    """Bytes that all ranks have sent, by traffic tag."""
    own = torch.from_numpy(np.frombuffer(json.dumps(sent).encode(), dtype=np.uint8).copy())
    total: Counter[str] = Counter()
    for one in all_gather(group, own):
        total.update(json.loads(one.numpy().tobytes()))
    return total


def byte_table(sent: Counter[str], predicted: dict[str, float], steps: int) -> list[str]:
    """Table of the bytes sent in a step, counted and predicted by the closed forms; empty without a step."""
    if not steps or not sent:
        return []
    lines = [f"{'bytes sent per step, all ranks':<34}{'counted':>14}{'closed form':>14}"]
    for tag in sorted(predicted.keys() | sent.keys(), key=lambda one: -predicted.get(one, 0)):
        lines.append(f"{tag:<34}{sent[tag] / steps:14,.0f}{predicted.get(tag, 0):14,.0f}")
    return lines
