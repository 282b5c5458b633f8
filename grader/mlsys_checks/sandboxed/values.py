"""What a learner's function gave back, as arrays that may cross to the trusted side: one meaning for every lab.

A number is real and alone: of Python, of NumPy, or the only element of an array or a tensor without axes. True and
False are none. A whole number is one whose type has no fractions, so 3.0 is none. Each function here takes the name by
which a message calls the value, and raises `InputError` where it is something else.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from types import BuiltinFunctionType, FunctionType, GeneratorType, MethodType
from typing import Any

import numpy as np

from mlsys_lab.errors import InputError

SHOWN = 80
"""Characters of a wrong value that a message shows."""


def number(name: str, got: Any) -> np.ndarray:
    """A real number as a float64 array without axes."""
    scalar = _scalar(got)
    if isinstance(scalar, bool) or not isinstance(scalar, int | float | np.floating):
        raise InputError(f"{name} is not a number", got=describe_value(got), expected="float")
    try:
        return np.array(float(scalar))
    except OverflowError:
        raise InputError(f"{name} is out of range", got=str(scalar)[:SHOWN], expected="less than 2**1024") from None


def whole(name: str, got: Any) -> np.ndarray:
    """A whole number as an int64 array without axes."""
    scalar = _scalar(got)
    if isinstance(scalar, bool) or not isinstance(scalar, int):
        rounding = ": of ints // gives one, so divide by // or round by math.ceil or int"
        advice = rounding if isinstance(scalar, float | np.floating) else ""
        raise InputError(f"{name} is not a whole number", got=describe_value(got), expected=f"int{advice}")
    if abs(scalar) >= 2**63:
        raise InputError(f"{name} is out of range", got=str(scalar)[:SHOWN], expected="less than 2**63")
    return np.array(scalar, dtype=np.int64)


def integer(name: str, got: Any) -> int:
    """A whole number as an int of Python, for a log of many."""
    return got if type(got) is int and abs(got) < 2**63 else int(whole(name, got))


def count(name: str, got: Any) -> np.ndarray:
    """A whole number of up to 256 bits, as the text in which it crosses."""
    scalar = _scalar(got)
    if isinstance(scalar, int) and 2**63 <= abs(scalar) < 2**256:
        return encode_text(scalar)
    return encode_text(int(whole(name, got)))


def word(name: str, got: Any, known: Sequence[str]) -> np.ndarray:
    """One of the words that are known, as the bytes in which it crosses."""
    if not isinstance(got, str) or got not in known:
        raise InputError(
            f"{name} names something else", got=describe_value(got), expected=" or ".join(map(repr, known))
        )
    return encode_text(got)


def parts(name: str, got: Any, *names: str) -> tuple[Any, ...]:
    """The entries of a tuple, list or array of as many entries as there are names."""
    if _is_sequence(got) and len(got) == len(names):
        return tuple(got)
    raise InputError(f"{name} gives something else", got=describe_value(got), expected=f"a tuple ({', '.join(names)})")


def pair(name: str, got: Any, *names: str) -> tuple[Any, Any]:
    """The two entries of a tuple or list, which are of different kinds."""
    if isinstance(got, tuple | list) and len(got) == 2:
        return got[0], got[1]
    raise InputError(f"{name} gives no pair", got=describe_value(got), expected=f"a tuple ({', '.join(names)})")


def numbers(name: str, got: Any, *names: str) -> dict[str, np.ndarray]:
    """A tuple, list or array of as many real numbers as there are names, each as a float64 array without axes."""
    return {one: number(one, value) for one, value in zip(names, parts(name, got, *names), strict=True)}


def wholes(name: str, got: Any, keys: Sequence[str]) -> dict[str, np.ndarray]:
    """A mapping of whole numbers with exactly these keys, each as an int64 array without axes."""
    if not isinstance(got, Mapping) or set(got) != set(keys):
        found = ", ".join(map(str, got)) if isinstance(got, Mapping) else describe_value(got)
        raise InputError(f"{name} is not a dictionary of what was asked for", got=found, expected=", ".join(keys))
    return {key: whole(f"{name}[{key!r}]", got[key]) for key in keys}


def column(name: str, got: Any) -> np.ndarray:
    """A one-dimensional array or list of real numbers as float64, (R,)."""
    try:
        found = np.asarray(got)
    except ValueError:
        found = np.array(None)
    if found.dtype.kind not in "fiu" or found.ndim != 1:
        given = f"{found.dtype} of shape {found.shape}"
        raise InputError(f"{name} is not a column of numbers", got=given, expected="floats of shape (R,)")
    return found.astype(np.float64)


def columns(name: str, got: Any, *names: str) -> dict[str, np.ndarray]:
    """A tuple, list or array of as many columns as there are names, each float64 and all of one length, (R,)."""
    found = {one: column(one, value) for one, value in zip(names, parts(name, got, *names), strict=True)}
    if len({one.shape for one in found.values()}) > 1:
        shapes = ", ".join(f"{called} {one.shape}" for called, one in found.items())
        raise InputError(f"the columns of {name} differ in length", got=shapes, expected="one length")
    return found


def array(name: str, got: Any) -> np.ndarray:
    """A copy of the numbers of an array, a torch.Tensor, an engine's tensor (whose `data` is one) or nested lists."""
    import torch

    if got is None:
        got = "nothing: a function ended without `return`, or no gradient reached it"
        raise InputError(f"{name} is None", got=got, expected="a torch.Tensor")
    if isinstance(got, np.ndarray | np.generic | list | tuple | int | float):
        try:
            found = np.array(got)
        except (ValueError, TypeError, RuntimeError):
            found = np.array(None)
        if found.dtype.kind not in "biuf":
            raise InputError(
                f"{name} does not hold numbers", got=describe_value(got), expected="a torch.Tensor of numbers"
            )
        return found
    tensor = got if isinstance(got, torch.Tensor) else getattr(got, "data", got)
    if not isinstance(tensor, torch.Tensor):
        raise InputError(f"{name} is not a tensor", got=describe_value(got), expected="a torch.Tensor")
    return np.array(tensor.cpu().numpy())


def encode_text(said: object) -> np.ndarray:
    """A text, or what `str` makes of another object, as the bytes in which it crosses, (n,) uint8."""
    return np.frombuffer(str(said).encode(), np.uint8).copy()


def decode_text(letters: np.ndarray) -> str:
    """The text that crossed as bytes; what is no UTF-8 in it is replaced."""
    return letters.tobytes().decode(errors="replace")


def encode_value(value: Any) -> np.ndarray:
    """Lists, dictionaries with texts for keys, numbers, texts and None as the bytes of their JSON, (n,) uint8."""
    return encode_text(json.dumps(value, separators=(",", ":")))


def decode_value(letters: np.ndarray) -> Any:
    """The value that crossed as JSON; raises ValueError or RecursionError where the bytes are none."""
    return json.loads(letters.tobytes())


def write_number(value: float) -> str:
    """The shortest code that makes this very number again.

    >>> write_number(1e9), write_number(0.1), write_number(3.0)
    ('1e+09', '0.1', '3')
    """
    texts = (f"{value:.{digits}g}" for digits in range(1, 18))
    exact = next(text for text in texts if float(text) == value)
    return min(exact, f"{value:.0f}", key=len) if value == int(value) else exact


def describe_value(got: Any) -> str:
    """Tell what a value is that is not what was asked for: its type, what is short of it, and a common cause.

    >>> describe_value([1, 2]), describe_value("12"), describe_value(None)
    ('list of 2', "str '12'", 'None, as from a function that ends without `return`')
    """
    kind = type(got).__name__
    if got is None:
        return "None, as from a function that ends without `return`"
    if isinstance(got, GeneratorType):
        return "generator, as from a function with `yield`: nothing of it has run yet"
    if isinstance(got, FunctionType | BuiltinFunctionType | MethodType):
        return f"{kind} {got.__name__[:SHOWN]}, which has not been called"
    if isinstance(got, tuple | list):
        return f"{kind} of {len(got)}"
    if isinstance(got, str | int | float | complex) and not isinstance(got, np.generic):
        return f"{kind} {got!r}"[:SHOWN]
    return kind


def _scalar(got: Any) -> Any:
    """What a number of NumPy or an array or tensor without axes holds, as a number of Python; others as they are."""
    torch = sys.modules.get("torch")  # who has made a tensor has imported it
    kinds = (np.generic, np.ndarray) if torch is None else (np.generic, np.ndarray, torch.Tensor)
    return got.item() if isinstance(got, kinds) and got.ndim == 0 else got


def _is_sequence(got: Any) -> bool:
    return isinstance(got, tuple | list) or (isinstance(got, np.ndarray) and got.ndim > 0)
