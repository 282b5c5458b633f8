"""Triton's operations while recorded, held to what its compiler emits: `python -m tests.kernels.semantics`.

Each operation is compiled for sm_90, which takes no GPU, and what its PTX means (`ptx.py`) is computed for special
values of its types: zeros of both signs, infinities, NaN, subnormal numbers, ties of a rounding, ends of ranges. The
recorder runs the same kernel on the same values. A line is printed for each operation. Where the compiler refuses, the
recorder has to refuse; where only the recorder does, the line says so.

Left out, since the device's own answer is not one: division of integers by 0, `tl.argmax` of NaN, whose answer depends
on the layout, and `tl.clamp` of NaN between constants −c and c, which is c of NaN's own sign. Of shifts, those of an
int64 by a negative number.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mlsys_lab.errors import CourseError
from tests.kernels.compiled import ROOT
from tests.kernels.ptx import APPROXIMATE, SMALL, bits_of, execute, narrow, numbers_of, read, write

CACHE = ROOT / "build" / "triton-ptx"
WARP = 32
FLOATS = ("fp64", "fp32", "fp16", "bf16", "fp8e4nv", "fp8e5")
INTEGERS = ("i8", "u8", "i16", "i32", "u32", "i64", "u64")
TORCH = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e5": torch.float8_e5m2,
    "i1": torch.bool,
    "i8": torch.int8,
    "u8": torch.uint8,
    "i16": torch.int16,
    "i32": torch.int32,
    "u32": torch.uint32,
    "i64": torch.int64,
    "u64": torch.uint64,
}
PTX = {"fp64": "f64", "fp32": "f32", "fp16": "f16", "bf16": "bf16", "fp8e4nv": "e4m3", "fp8e5": "e5m2", "i1": "u8"}
PTX |= {name: name.replace("i", "s") for name in INTEGERS}
NAMES = {"fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
NAMES |= {"fp8e4nv": "float8e4nv", "fp8e5": "float8e5", "i1": "int1"}
NAMES |= {
    name: name.replace("u", "uint").replace("i", "int", 1) if name[0] == "i" else f"uint{name[1:]}" for name in INTEGERS
}
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 200.7, -300.5, 1 + 1.9 / 128, 1 + 1 / 256, 1 + 3 / 256, 464.0, 460.0]
SPECIAL += [
    0.001,
    2.0**-9,
    1.5 * 2**-10,
    2.0**-17,
    6e-8,
    1e-40,
    -1e-42,
    65504.0,
    65520.0,
    -1e5,
    3e9,
    -3e9,
    1e19,
    3.4e38,
]
SPECIAL += [np.inf, -np.inf, np.nan, 88.0, -103.5]
FEW = [0.0, -0.0, 1.0, -1.0, 2.5, -0.3, 1 + 1 / 1024, 1e-40, 300.0, 6e4, -3e38, np.inf, -np.inf, np.nan]
TOLERANCE = 2e-5
"""Relative error of what is computed by instructions that approximate."""


@dataclass(frozen=True)
class Operation:
    """An expression of x, y and z of the given types, and the type that its result is stored as."""

    expression: str
    types: tuple[str, ...]
    result: str
    nonzero: bool = False  # whether the last operand must not be 0
    no_nan: bool = False
    ordered: bool = False  # whether results depend on the order of additions


@dataclass(frozen=True)
class Outcome:
    """What became of an operation."""

    operation: Operation
    values: int
    mismatches: tuple[str, ...]
    verdict: str

    def __str__(self) -> str:
        operands = " ".join(self.operation.types)
        told = f"{self.operation.expression:44} {operands:>16} → {self.operation.result:8}"
        return f"{told} {self.values:5} values  {self.verdict}" + "".join(f"\n    {one}" for one in self.mismatches[:3])


def operations() -> Iterator[Operation]:
    """Every operation of the table."""
    for kind in ("fp32", "fp64", "fp16", "bf16", "fp8e4nv", "fp8e5"):
        wide = kind if kind in ("fp32", "fp64") else "fp32"
        for text in ("x + y", "x - y", "x * y"):
            yield Operation(text, (kind, kind), kind)
        yield Operation("x / y", (kind, kind), kind)
        if kind != "fp64":
            yield Operation("x % y", (kind, kind), wide)
        for name in ("maximum", "minimum"):
            yield Operation(f"tl.{name}(x, y)", (kind, kind), kind)
            yield Operation(f"tl.{name}(x, y, propagate_nan=tl.PropagateNan.ALL)", (kind, kind), kind)
        yield Operation("tl.clamp(x, y, z)", (kind,) * 3, kind)
        yield Operation("tl.clamp(x, y, z, propagate_nan=tl.PropagateNan.ALL)", (kind,) * 3, kind)
        yield Operation("tl.fma(x, y, z)", (kind,) * 3, kind)
        for text in ("<", "<=", ">", ">=", "==", "!="):
            yield Operation(f"x {text} y", (kind, kind), "i1")
        yield Operation("tl.where(x.to(tl.float32) > 0, x, y)", (kind, kind), kind)
        yield Operation("-x", (kind,), kind)
        yield Operation("tl.abs(x)", (kind,), kind)
        yield Operation("tl.where(x.to(tl.float32) > 0, x, 1.015)", (kind,), kind)
        for number in ("1.5", "1 + 1.9 / 128"):
            yield Operation(f"tl.full((32,), {number}, tl.{NAMES[kind]})", (kind,), kind)
        for name in ("max", "min"):
            yield Operation(f"tl.{name}(x, axis=0)", (kind,), kind)
        yield Operation("tl.sum(x, axis=0)", (kind,), kind, no_nan=True, ordered=True)
    for name in ("exp", "exp2", "log", "log2", "sqrt", "sqrt_rn", "rsqrt", "ceil", "floor", "sigmoid"):
        yield Operation(f"tl.{name}(x)", ("fp32",), "fp32")
    for name in ("sqrt_rn", "ceil", "floor"):
        yield Operation(f"tl.{name}(x)", ("fp64",), "fp64")
    for name in ("div_rn", "fdiv"):
        yield Operation(f"tl.{name}(x, y)", ("fp32", "fp32"), "fp32")
    for name in ("argmax", "argmin"):
        yield Operation(f"tl.{name}(x, axis=0)", ("fp32",), "i32", no_nan=True)
    for kind in ("i32", "u32", "i8", "i64"):
        for text in (
            "x + y",
            "x - y",
            "x * y",
            "x & y",
            "x | y",
            "x ^ y",
            *(("x << y", "x >> y") if kind != "i64" else ()),
        ):
            yield Operation(text, (kind, kind), kind)
        for text in ("x // y", "x % y"):
            yield Operation(text, (kind, kind), kind, nonzero=True)
        for text in ("<", ">=", "=="):
            yield Operation(f"x {text} y", (kind, kind), "i1")
        for name in ("maximum", "minimum"):
            yield Operation(f"tl.{name}(x, y)", (kind, kind), kind)
        for text in ("-x", "~x", "tl.abs(x)", "tl.max(x, axis=0)", "tl.min(x, axis=0)"):
            yield Operation(text, (kind,), kind)
        yield Operation("x / y", (kind, kind), "fp32", nonzero=True)
    for kind in ("i32", "u32"):
        yield Operation("tl.umulhi(x, y)", (kind, kind), kind)
        yield Operation("tl.sum(x, axis=0)", (kind,), kind)
    for text in ("x + y", "x & y", "x | y", "x ^ y"):
        yield Operation(text, ("i1", "i1"), "i1")
    for source, target in itertools.permutations((*FLOATS, *INTEGERS), 2):
        yield Operation(f"x.to(tl.{NAMES[target]})", (source,), target)
    for target in ("fp16", "bf16", "fp8e5"):
        yield Operation(f'x.to(tl.{NAMES[target]}, fp_downcast_rounding="rtz")', ("fp32",), target)


@cache
def special(kind: str, few: bool) -> np.ndarray:
    """Bits of the special values of a type."""
    if kind == "i1":
        return np.array([0, 1], dtype=np.uint64)
    if kind in INTEGERS:
        width = bits_of(kind)
        most = (1 << width - 1 if kind[0] == "i" else 1 << width) - 1
        least = -most - 1 if kind[0] == "i" else 0
        values = [
            0,
            1,
            2,
            3,
            7,
            -1,
            -7,
            -8,
            33,
            31,
            8,
            most,
            most - 1,
            least,
            least + 1,
            2**24 + 1,
            257,
            65520,
            2**60 + 1,
        ]
        return write([v for v in values[: 14 if few else None] if least <= v <= most], PTX[kind])
    values = np.array(FEW if few else SPECIAL)
    if kind in ("fp64", "fp32"):
        with np.errstate(all="ignore"):
            return write(values, PTX[kind])
    return np.unique(narrow(values, PTX[kind]))


def inputs_of(operation: Operation) -> list[np.ndarray]:
    """Bits of each operand: all pairs or triples of special values, to a multiple of a warp."""
    several = len(operation.types) > 1
    columns = list(zip(*itertools.product(*(special(kind, several).tolist() for kind in operation.types)), strict=True))
    made = [np.array(column, dtype=np.uint64) for column in columns]
    keep = np.ones(len(made[0]), dtype=bool)
    for bits, kind in zip(made, operation.types, strict=True):
        if operation.no_nan and kind in FLOATS:
            numbers = values_of(bits, kind)
            keep &= np.isfinite(numbers) & (np.abs(numbers.astype(np.float64)) < 1e5)
    if operation.nonzero:
        keep &= made[-1] != 0
    return [np.resize(bits[keep], -(-int(keep.sum()) // WARP) * WARP) for bits in made]


def values_of(bits: np.ndarray, kind: str) -> np.ndarray:
    """The numbers of bits, for comparison."""
    ptx = PTX[kind]
    if ptx in SMALL and ptx != "f16":
        return numbers_of(ptx)[(bits % np.uint64(1 << (16 if ptx == "bf16" else 8))).astype(int)]
    return read(bits, ptx)


def text_of(cases: Iterable[Operation]) -> str:
    """A module with a kernel for each operation."""
    lines = ["from mlsys_lab.kernels.triton_language import tl, triton", ""]
    for number, case in enumerate(cases):
        names = "xyz"[: len(case.types)]
        lines += ["", "@triton.jit", f"def k{number}({', '.join(f'{name}_ptr' for name in names)}, o_ptr):"]
        lines += [f"    i = tl.program_id(0) * {WARP} + tl.arange(0, {WARP})"]
        lines += [f"    {name} = tl.load({name}_ptr + i)" for name in names]
        lines += [f"    tl.store(o_ptr + i, {case.expression})"]
    return "\n".join(lines) + "\n"


def load(file: Path) -> Any:
    """The module of a file."""
    spec = importlib.util.spec_from_file_location("semantics_kernels", file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compile_all(file: Path, cases: list[Operation]) -> list[str]:
    """The PTX of each kernel of a file, "" where the compiler refuses, from a process that compiles."""
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(CACHE)}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *sys.path])
    given = json.dumps([[case.types, case.result] for case in cases])
    command = [sys.executable, "-m", "tests.kernels.semantics", "compile", str(file)]
    done = subprocess.run(command, input=given, env=environment, cwd=ROOT, text=True, capture_output=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def compile_here(file: Path) -> None:
    """The process that compiles: types on its standard input, PTX on its standard output."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import CUDABackend
    from triton.compiler import ASTSource

    CUDABackend.make_cubin = lambda *_: b""  # which takes most of the time
    module, target, found = load(file), GPUTarget("cuda", 90, 32), []
    for number, (types, result) in enumerate(json.loads(sys.stdin.read())):
        signature = {f"{name}_ptr": f"*{kind}" for name, kind in zip("xyz", types, strict=False)} | {
            "o_ptr": f"*{result}"
        }
        try:
            kernel = triton.compile(
                ASTSource(getattr(module, f"k{number}"), signature, {}, {}), target=target, options={"num_warps": 1}
            )
            found.append(kernel.asm["ptx"])
        except Exception:  # of many kinds, by the stage that refuses
            found.append("")
    print(json.dumps(found))


def recorded(kernel: Any, case: Operation, inputs: list[np.ndarray]) -> np.ndarray:
    """Bits that the kernel stores while it is recorded."""
    from mlsys_lab.kernels.trace.triton_interpreter import record

    def tensor(bits: np.ndarray, kind: str) -> torch.Tensor:
        size = TORCH[kind].itemsize
        return torch.from_numpy(bits.astype(f"u{size}")).view(TORCH[kind])

    operands = [tensor(bits, kind) for bits, kind in zip(inputs, case.types, strict=True)]
    out = tensor(np.zeros(len(inputs[0]), dtype=np.uint64), case.result)
    record(kernel, len(inputs[0]) // WARP, *operands, out)
    unsigned = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}[out.itemsize]
    return np.asarray(out.view(unsigned).numpy().astype(np.uint64))


def held(case: Operation, ptx: str, kernel: Any) -> Outcome:
    """One line of the table."""
    inputs = inputs_of(case)
    try:
        got: np.ndarray | None = recorded(kernel, case, inputs)
        refusal = ""
    except CourseError as error:
        got, refusal = None, str(error)
    if not ptx or got is None:
        if bool(ptx) == (got is None) and "bfloat16" not in refusal:
            who = "the compiler" if ptx else "the recorder"
            return Outcome(case, len(inputs[0]), (f"only {who} computes it{f': {refusal}' if refusal else ''}",), "")
        return Outcome(case, len(inputs[0]), (), f"refused{'' if not ptx else ' while recorded: bfloat16 arithmetic'}")
    width = TORCH[case.result].itemsize * 8
    mask = np.uint64(2**width - 1)
    want = execute(ptx, inputs) & mask
    body = re.findall(r"^\s*([a-z]\w*\.[\w.]*)", ptx, re.MULTILINE)
    close = TOLERANCE if APPROXIMATE.search(" ".join(body).replace(".", " ")) or case.ordered else 0.0
    a, b = values_of(got, case.result), values_of(want, case.result)
    same = got == want
    if case.result in FLOATS:
        a, b = a.astype(np.float64), b.astype(np.float64)
        with np.errstate(all="ignore"):
            near = (np.abs(a - b) <= close * np.abs(b) + (3e-45 if close else 0)) & (close > 0)
        same |= (np.isnan(a) & np.isnan(b)) | near
    shown = []
    for i in np.flatnonzero(~same):
        operands = (values_of(bits[i : i + 1], kind)[0] for bits, kind in zip(inputs, case.types, strict=True))
        shown.append(f"{', '.join(map(str, operands))}: recorded {a[i]}, compiled {b[i]}")
    return Outcome(case, len(want), tuple(shown), f"{len(shown)} mismatches" if shown else "0 mismatches")


def table(every: int = 1) -> list[Outcome]:
    """What becomes of every operation, or of each `every`-th."""
    cases = list(operations())[::every]
    file = CACHE / "semantics_kernels.py"  # a place of its own, as Triton keeps what it compiled by place too
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text_of(cases))
    compiled = compile_all(file, cases)
    module = load(file)
    return [
        held(case, ptx, getattr(module, f"k{number}"))
        for number, (case, ptx) in enumerate(zip(cases, compiled, strict=True))
    ]


def main() -> int:
    """Print the table; the exit status is 1 where an operation differs."""
    outcomes = table()
    print("\n".join(map(str, outcomes)))
    wrong = [one for one in outcomes if one.mismatches]
    refused = sum(one.verdict.startswith("refused") for one in outcomes)
    print(f"{len(outcomes)} operations, {sum(one.values for one in outcomes)} values: ", end="")
    print(f"{len(wrong)} operations differ, {refused} are refused")
    return int(bool(wrong))


if __name__ == "__main__":
    if sys.argv[1:2] == ["compile"]:
        compile_here(Path(sys.argv[2]))
    else:
        sys.exit(main())
