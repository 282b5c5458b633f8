"""Write a classifier of handwritten digits as one C file in int8, and print its figures.

The classifier is trained now, in seconds, and quantized. The program prints the logits of the 360 held-out digits; it
runs on an emulated Cortex-M4, where its logits are compared with the simulation.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from mlsys_lab.efficiency.embedded import generate_c, plan_arena, quantize_network, run_on_board, simulate
from mlsys_lab.efficiency.embedded.digits import load_digits, train_classifier
from mlsys_lab.efficiency.embedded.programs import EMULATE, board_command
from mlsys_lab.errors import CourseError, InputError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; errors that a user can fix are one line on stderr."""
    parser = argparse.ArgumentParser("python -m mlsys_lab.efficiency.embedded", description=__doc__)
    parser.add_argument("output", type=Path, metavar="OUTPUT.c", help="the C file to write")
    try:
        _write(parser.parse_args(argv).output)
    except CourseError as problem:
        print(f"embedded: {problem}", file=sys.stderr)
        return 1
    return 0


def _write(output: Path) -> None:
    if output.suffix != ".c":
        raise InputError("the output is a C file", got=output, expected="a name that ends in .c")
    training, held_out = load_digits()
    model = train_classifier(training)
    network = quantize_network(model, training.images)
    codes = network.encode(held_out.images.numpy())
    logits = simulate(network, codes)
    try:
        output.write_text(source := generate_c(network, codes), encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {output}", got=error.strerror) from None
    labels = held_out.labels.numpy()
    exact = float((model(held_out.images).argmax(1) == held_out.labels).float().mean())
    print(f"accuracy    {exact:.1%} in fp32, {(logits.argmax(1) == labels).mean():.1%} in int8, {len(labels)} digits")
    print(f"network     {network.macs:,} multiply-adds an image, {network.constant_bytes:,} bytes of constants")
    print(f"arena       {plan_arena(network).size_bytes:,} bytes")
    program = output.with_suffix(".elf")
    print(f"compile     gcc -std=c99 -o {shlex.quote(str(output.with_suffix('')))} {shlex.quote(str(output))}")
    print(f"            {shlex.join(board_command(str(output), str(program)))}")
    print(f"emulate     {shlex.join([*EMULATE, '-kernel', str(program)])}")
    run = run_on_board(source)
    if (run.logits != logits).any():
        raise InputError("the board's logits differ from the simulation's", got=f"{(run.logits != logits).sum()} codes")
    print(f"Cortex-M4   {logits.size:,} logits equal the simulation's, bit for bit")
    print(f"flash       {run.flash_bytes:,} bytes, of which {codes.nbytes:,} are the digits' pixels")
    print(f"RAM         {run.ram_bytes:,} bytes with the arena, and {run.stack_bytes:,} of stack")
    print(f"executed    {run.instructions:,.0f} instructions an image (emulated: a count, not cycles)")


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
