"""Train a transformer on this book's text, or on yours, in any layout, or simulate a training step on many GPUs.

torchrun starts a process for each rank; without it the ranks are threads of this process, which take turns: slower,
with the same losses. Progress lines show the loss before each update in nats per token, tokens per second, and MFU, the
fraction of this machine's peak FLOP/s. The last lines compare the bytes sent, by traffic tag, with their closed form.
The loss does not depend on the layout, except for rounding. A tenth of the data is held out, and its loss is printed
at the end, in bits per byte too. `mlsys-lab export` writes a checkpoint's model, with its tokenizer, for `transformers`
and `mlsys-lab serve`.

A run with --checkpoints resumes from the last one, in the same layout or another, on the same data. A finished run goes
on if --steps is larger: its learning rate continues as in a run of that length, so it rises again from zero to a point
on the longer decay.

examples:
  torchrun --nproc-per-node 4 -m mlsys_lab.parallel.train --layout data=2,tensor=2
  torchrun --nproc-per-node 2 -m mlsys_lab.parallel.train --layout data=2,zero=3 --checkpoints runs/first
  python -m mlsys_lab.parallel.train --init qwen2.5-0.5b --chat answers.jsonl --checkpoints runs/chat
  python -m mlsys_lab.parallel.train --layout data=2,tensor=2,pipeline=2,micro-batch=4 --simulate llama3-8b
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from typing import NoReturn

from mlsys_lab import comm
from mlsys_lab.comm.errors import ConnectionLostError
from mlsys_lab.comm.torchrun import is_torchrun, join_world
from mlsys_lab.configs.presets import preset
from mlsys_lab.errors import CourseError, InputError, UsageError
from mlsys_lab.flops import compute
from mlsys_lab.flops.bounds import machine
from mlsys_lab.flops.defaults import DEVICE, RECIPE
from mlsys_lab.flops.estimate import training_memory
from mlsys_lab.flops.memory import recipe
from mlsys_lab.flops.utilisation import mfu
from mlsys_lab.hardware import device
from mlsys_lab.parallel.train.options import add_arguments, make_config, make_train_config, parse_layout
from mlsys_lab.parallel.train.simulation import simulate_step

SIMULATED_RANKS = (8, 64, 512)
"""Numbers of ranks that `--simulate` simulates."""
VOCAB_SIZE = 1024
"""Vocabulary of the model that the options describe, if it is simulated."""
MAX_SEQUENCE = 4096
"""Default limit on the sequence length of a simulated preset."""
TIMEOUT_S = 600.0
"""Seconds that a rank waits for another one."""
GRACE_S = 2.0
"""Seconds that other ranks give rank 0 to print an error before torchrun ends them all."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message, help=f"see `{self.prog} --help`")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; errors that a user can fix are one line on stderr."""
    try:
        _run(argv)
    except CourseError as problem:
        is_rank_0 = os.environ.get("RANK", "0") == "0"
        if not is_rank_0 and isinstance(problem, (InputError, ConnectionLostError)):
            time.sleep(GRACE_S)  # rank 0 prints it, or why it has gone
        if is_rank_0 or not isinstance(problem, InputError):
            print(f"train: {problem}", file=sys.stderr, flush=True)
        return 2 if isinstance(problem, UsageError) else 1
    except KeyboardInterrupt:
        print("train: stopped", file=sys.stderr)
        return 130
    return 0


def _run(argv: Sequence[str] | None) -> None:
    description, _, examples = str(__doc__).partition("examples:")
    parser = _Parser(
        "mlsys_lab.parallel.train",
        description=description,
        epilog=f"examples:{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    args = parser.parse_args(argv)
    if args.simulate is not None:
        for line in simulate(args):
            print(line, flush=True)
        return
    from mlsys_lab.parallel.train.run import run

    layout = parse_layout(args.layout)
    if is_torchrun():
        with join_world(TIMEOUT_S) as world:
            run(world, args)
    else:
        comm.run(run, [args] * layout.devices, limit_s=TIMEOUT_S)


def simulate(args: argparse.Namespace) -> list[str]:
    """Report lines of a simulated step on H100s; more ranks mean more data-parallel ranks and a larger batch.

    Raises InputError for a layout that does not fit the model or any number of ranks, and for one that needs more
    memory than a device has on every number of ranks.
    """
    config = preset(args.simulate) if args.simulate else make_config(args, VOCAB_SIZE)
    train_config, layout = make_train_config(args, config.context), parse_layout(args.layout)
    h100 = machine(device(DEVICE), "bf16")
    precision = recipe(RECIPE)
    seq_len = args.seq_len or (min(config.context, MAX_SEQUENCE) if args.simulate else train_config.seq_len)
    replica = layout.devices // layout.data
    fitting = [ranks for ranks in SIMULATED_RANKS if ranks % replica == 0]
    if not fitting:
        got = f"{replica} ranks of tensor, context and pipeline parallelism"
        raise InputError(
            "no number of simulated ranks is a multiple of the layout's", got=got, expected=SIMULATED_RANKS
        )
    lines = [f"{config.name}, {seq_len} tokens per sequence, H100s in nodes of {h100.node}, computing at their peak"]
    required_bytes = []
    for ranks in fitting:
        wide = layout.replace(data=ranks // replica)
        batch = layout.micro_batches(train_config.batch_size) * layout.micro_batch * wide.data
        required_bytes.append(training_memory(config, wide, precision, batch=batch, tokens=seq_len).total)
        head = f"{ranks:4} ranks, data={wide.data:<3} batch {batch:5}: {required_bytes[-1] / 1e9:6.1f} GB"
        if required_bytes[-1] > h100.memory_bytes:
            lines.append(f"{head} on a device: does not fit in {h100.memory_bytes / 1e9:.1f}")
            continue
        timeline = simulate_step(config, wide, h100, precision, batch=batch, seq_len=seq_len)
        step_s, flops = timeline.end_s, compute.training(config, seq_len, batch, causal=True).model
        utilisation = mfu(flops, step_s, peak_flops_per_s=h100.peak_flops_per_s, devices=ranks)
        busy = timeline.busy_s(0) / step_s
        lines.append(
            f"{head}, step {step_s * 1e3:10.3f} ms, rank 0 computes {busy:5.1%} of it,"
            f" MFU {utilisation:5.1%} at best, {batch * seq_len / step_s:12,.0f} tokens/s"
        )
    if min(required_bytes) > h100.memory_bytes:
        got, expected = (f"{size / 1e9:,.1f} GB on a device" for size in (min(required_bytes), h100.memory_bytes))
        help_ = "shard it (tensor=, pipeline=, zero=) or recompute activations"
        raise InputError(f"{config.name} does not fit", got=got, expected=f"at most {expected}", help=help_)
    return lines


if __name__ == "__main__":
    sys.exit(main())
