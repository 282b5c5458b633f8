"""Parse the parameters of a CUDA C++ kernel from its source: names and types."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from mlsys_lab.errors import InputError, did_you_mean

POINTED = {
    "float": (torch.float32,),
    "double": (torch.float64,),
    "half": (torch.float16,),
    "__half": (torch.float16,),
    "bf16": (torch.bfloat16,),
    "__nv_bfloat16": (torch.bfloat16,),
    "char": (torch.int8,),
    "unsigned char": (torch.uint8,),
    "int": (torch.int32,),
    "unsigned": (torch.int32, torch.uint32),
    "unsigned int": (torch.int32, torch.uint32),
    "long long": (torch.int64,),
    "bool": (torch.bool,),
}
"""dtypes of tensors that may be passed as a pointer to each C type."""

SCALARS: dict[str, Any] = {
    "int": ctypes.c_int,
    "unsigned": ctypes.c_uint,
    "unsigned int": ctypes.c_uint,
    "long long": ctypes.c_longlong,
    "size_t": ctypes.c_size_t,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "bool": ctypes.c_bool,
}


@dataclass(frozen=True)
class Parameter:
    """A kernel's parameter: name, whether it is a pointer, and `type` (or the one pointed to) without qualifiers."""

    name: str
    type: str
    pointer: bool

    def __str__(self) -> str:
        return f"{self.type}{'*' if self.pointer else ''} {self.name}"


@lru_cache(maxsize=256)
def parameters(source: str, kernel: str, name: str) -> tuple[Parameter, ...]:
    """The parameters of `kernel` (template arguments are ignored) in the CUDA C++ source of the file `name`.

    Raises InputError if the source does not define the kernel.
    """
    wanted = kernel.partition("<")[0].strip()
    known = dict(_kernels(source))
    if wanted not in known:
        raise InputError(
            f"{name} has no such kernel",
            got=repr(wanted),
            expected=f"one of {', '.join(known)}" if known else "a function declared __global__",
            help=did_you_mean(wanted, known),
        )
    return tuple(_parameter(text) for text in known[wanted].split(",") if text.strip())


def _kernels(source: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the parameter list, as text, of each kernel."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", source, flags=re.S)
    for declared in re.finditer(r"\b__global__\b", text):
        at = declared.end()
        while found := re.compile(r"[^();{}]*?(\w+)\s*\(").match(text, at):
            end = _find_closing(text, found.end())
            if found[1] != "__launch_bounds__":
                yield found[1], text[found.end() : end]
                break
            at = end + 1


def _find_closing(text: str, start: int) -> int:
    """Position of the bracket that closes the one opened just before `start`."""
    depth = 1
    for at in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return at
    return len(text)


def _parameter(text: str) -> Parameter:
    words = re.sub(r"\b(const|volatile|__restrict__|__restrict|restrict)\b", " ", text)
    *kind, name = re.findall(r"[\w:<>]+", words)
    return Parameter(name, " ".join(kind), "*" in words)
