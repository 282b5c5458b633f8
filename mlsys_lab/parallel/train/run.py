"""A run on this rank: text, model, steps with a line of progress now and then, checkpoints, and bytes in the end."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from pathlib import Path

import numpy as np
import torch

from mlsys_lab.comm import Rank
from mlsys_lab.comm.collectives.rooted import broadcast_tree
from mlsys_lab.comm.collectives.scattered import all_gather_ring
from mlsys_lab.comm.tally import tally
from mlsys_lab.flops import compute
from mlsys_lab.flops.parameters import parameters
from mlsys_lab.flops.utilisation import mfu
from mlsys_lab.hardware import measure_cpu
from mlsys_lab.inference.pretrained import FOLDER, TOKENIZER
from mlsys_lab.inference.text import Tokenizer
from mlsys_lab.models import training
from mlsys_lab.models.training import Tokens
from mlsys_lab.parallel.train.checkpoint import restore_latest, save
from mlsys_lab.parallel.train.options import make_config, make_plan, parse_layout
from mlsys_lab.parallel.train.traffic import predict_bytes
from mlsys_lab.parallel.train.trainer import Trainer
from mlsys_lab.scaling.text import course_text

LINES = 20
"""How often a run says where it stands."""


def run(world: Rank, args: argparse.Namespace) -> list[float]:
    """Train as the command line says, printing on rank 0; returns the loss of each step taken."""
    rank, sent = tally(world)
    layout, plan = parse_layout(args.layout), make_plan(args)
    tokenizer = Tokenizer.load(FOLDER / TOKENIZER)
    config = make_config(args, tokenizer.vocab_size)

    def say(line: str) -> None:
        if rank.rank == 0:
            print(line, flush=True)

    with training.one_thread():
        ids = read_text(rank, tokenizer)
        trainer = Trainer(training.new_model(config, plan.seed), ids, plan, layout, rank)
        folder = Path(args.checkpoints) if args.checkpoints else None
        if folder:
            restore_latest(trainer, folder, say)
        peak = measure_peak(rank)
        say(f"{parameters(config).total:,} parameters, {len(ids):,} tokens of text, {args.layout} on {rank.size} ranks")
        flops = compute.training(config, plan.sequence, plan.batch).model
        sent.clear()
        first, losses, started = trainer.done, [], time.perf_counter()
        while trainer.done < plan.steps:
            losses.append(trainer.step())
            if trainer.done % max(1, plan.steps // LINES) == 0 or trainer.done in (first + 1, plan.steps):
                step_s = (time.perf_counter() - started) / (trainer.done - first)
                speed = plan.batch * plan.sequence / step_s
                share = mfu(flops, step_s, peak_flops_per_s=peak)
                say(f"step {trainer.done:5}  loss {losses[-1]:.4f}  {speed:9,.0f} tokens/s  MFU {share:6.2%}")
            if folder and (trainer.done % args.every == 0 or trainer.done == plan.steps):
                save(trainer, folder)
        closed = predict_bytes(config, layout, batch=plan.batch, tokens=plan.sequence, element_bytes=4)
        for line in table(add_up(rank, sent), closed, len(losses)):
            say(line)
    return losses


def read_text(rank: Rank, tokenizer: Tokenizer) -> Tokens:
    """Token ids (D,) of the book's chapters, which rank 0 reads and sends to all others."""
    ids = torch.tensor(tokenizer.encode(course_text()) if rank.rank == 0 else [], dtype=torch.int64)
    length = broadcast_tree(rank, torch.tensor(len(ids)))
    text: Tokens = broadcast_tree(rank, ids if rank.rank == 0 else ids.new_empty(int(length))).numpy()
    return text


def measure_peak(rank: Rank) -> float:
    """FLOP/s at which this machine multiplies fp32 matrices with all of its cores, while the other ranks wait."""
    peak = torch.zeros(1, dtype=torch.float64)
    if rank.rank == 0:
        threads = torch.get_num_threads()
        torch.set_num_threads(os.cpu_count() or 1)
        peak[0] = measure_cpu().peaks["fp32"]
        torch.set_num_threads(threads)
    return float(broadcast_tree(rank, peak))


def add_up(rank: Rank, sent: Counter[str]) -> Counter[str]:
    """Add up the bytes that ranks have sent, by purpose."""
    own = torch.from_numpy(np.frombuffer(json.dumps(sent).encode(), dtype=np.uint8).copy())
    total: Counter[str] = Counter()
    for one in all_gather_ring(rank, own):
        total.update(json.loads(one.numpy().tobytes()))
    return total


def table(sent: Counter[str], closed: dict[str, float], steps: int) -> list[str]:
    """Lines that hold the bytes of a step, counted, against the closed forms; none where no step was taken."""
    if not steps or not sent:
        return []
    lines = [f"{'bytes sent a step, all ranks':<34}{'counted':>14}{'closed form':>14}"]
    for purpose in sorted(closed.keys() | sent.keys(), key=lambda one: -closed.get(one, 0)):
        lines.append(f"{purpose:<34}{sent[purpose] / steps:14,.0f}{closed.get(purpose, 0):14,.0f}")
    return lines
