"""Compile the C program and run it: here, or on an emulated Cortex-M4."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlsys_lab.efficiency.embedded.c_code import FOLDER
from mlsys_lab.errors import InputError, MissingToolError

WARNINGS = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
COMPILE = (
    *("arm-none-eabi-gcc", *WARNINGS, "-mcpu=cortex-m4", "-mthumb", "-ffreestanding"),
    "-fno-tree-loop-distribute-patterns",  # a loop that copies does not become a call of memcpy
)
EMULATE = (
    *("qemu-system-arm", "-M", "mps2-an386", "-display", "none", "-monitor", "none", "-serial", "none"),
    *("-chardev", "stdio,id=output", "-semihosting-config", "enable=on,target=native,chardev=output"),
    *("-icount", "shift=0"),  # the emulated clock advances by 1 ns for each instruction
)
INSTRUCTIONS_PER_TICK = 40
"""Instructions of 1 ns each, between two ticks of the board's timer at 25 MHz."""
PACKAGES = {"arm-none-eabi-gcc": "gcc-arm-none-eabi", "arm-none-eabi-size": "binutils-arm-none-eabi"}
"""Debian packages with another name than their program."""
TIMEOUT_S = 300


class BoardRun(NamedTuple):
    """What a program printed and needed on the emulated board.

    `flash_bytes` holds code, constants and images; `ram_bytes` the static variables, arena included; `stack_bytes` is
    the largest stack. `instructions` are those that QEMU executed for one image: not cycles, since QEMU has no model of
    the pipeline, nor of wait states of the flash.
    """

    logits: NDArray[np.int8]  # (B, classes)
    flash_bytes: int
    ram_bytes: int
    stack_bytes: int
    instructions: float


def run_here(source: str) -> NDArray[np.int8]:
    """The logits that a program prints when compiled for this machine. Raises MissingToolError without gcc."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "network.c")
        program.write_text(source, encoding="utf-8")
        checks = ("-fsanitize=undefined", "-fno-sanitize-recover")  # undefined behaviour ends the program
        _run(["gcc", *WARNINGS, "-O1", *checks, "-o", "network", "network.c"], folder)
        return _logits(_run(["./network"], folder).splitlines())


def run_on_board(source: str, level: str = "-Os") -> BoardRun:
    """Compile a program for a Cortex-M4 with 128 KiB of flash and 64 KiB of RAM, and run it in QEMU.

    `level` is the compiler's level of optimization. Raises MissingToolError without arm-none-eabi-gcc or
    qemu-system-arm, and InputError for a program that does not
    compile, needs more memory than the board has, or crashes.
    """
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "network.c")
        program.write_text(source, encoding="utf-8")
        _run(board_command("network.c", "network.elf", level), folder)
        text, data, bss = map(int, _run(["arm-none-eabi-size", "network.elf"], folder).splitlines()[1].split()[:3])
        *lines, ticks, stack = _run([*EMULATE, "-kernel", "network.elf"], folder).splitlines()
    logits = _logits(lines)
    instructions = INSTRUCTIONS_PER_TICK * int(ticks.removeprefix("ticks ")) / len(logits)
    return BoardRun(logits, text + data, data + bss, int(stack.removeprefix("stack ")), instructions)


def board_command(source: str, program: str, level: str = "-Os") -> list[str]:
    """The command that compiles a program for the board."""
    link = ("-nostdlib", "-T", str(FOLDER / "board.ld"))
    return [*COMPILE, level, *link, "-o", program, source, str(FOLDER / "board.c"), "-lgcc"]


def _logits(lines: Sequence[str]) -> NDArray[np.int8]:
    return np.array([[int(code) for code in line.split()] for line in lines], np.int8)


def _run(command: Sequence[str], folder: str) -> str:
    """What a command prints; InputError with its first error otherwise."""
    program = command[0]
    if not program.startswith("./") and shutil.which(program) is None:
        help = f"apt install {PACKAGES.get(program, program)}"
        raise MissingToolError(f"{program} is not on this machine", help=help)
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"{program} did not end", expected=f"an end within {TIMEOUT_S} s") from None
    if done.returncode:
        said = re.search(r"error: .*|region .* (?:overflowed|has) .*", done.stderr)
        raise InputError(f"{program} failed", got=said[0] if said else f"status {done.returncode}")
    return done.stdout
