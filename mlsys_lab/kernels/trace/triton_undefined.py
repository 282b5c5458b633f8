"""Taint tracking of undefined lanes in Triton blocks: masked loads without `other`, and everything computed from them.

Each block carries, next to its values, the origin of each undefined lane: 0 for a defined lane. Elementwise operations
propagate origins lane by lane; `tl.where` takes that of the chosen side; a reduction, a scan and `tl.dot` make a result
undefined if any of its inputs is. An undefined lane is reported where it takes effect: in a store, an address, a mask,
or a branch. A lane that is computed and then masked off is harmless.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from mlsys_lab.kernels.trace.addresses import POISON
from mlsys_lab.kernels.trace.events import BRANCH, Undefined
from mlsys_lab.kernels.triton_arithmetic import replace_members

Handle = Any  # Triton's TensorHandle: a NumPy array and the type of its elements
KEY = "undefined"
"""The attribute of a handle that holds the origins of its lanes."""
MEMORY = ("load", "store", "atomic", "descriptor", "block_ptr", "advance", "print", "assert", "assume", "barrier")
"""Parts of the names of operations that `triton_recorder` hooks, or that compute nothing."""
MOVING = ("reshape", "trans", "expand_dims", "broadcast", "cat", "join", "split", "splat", "unsplat")
"""Operations that move lanes without changing them."""


class UndefinedLanes:
    """Origins of one launch's undefined lanes, and where they take effect.

    `locate` returns the index of the running source line, `program` that of the program. `decided` is called when a
    value decides a branch or a loop.
    """

    def __init__(
        self, builder: Any, locate: Callable[[], int], program: Callable[[], int], decided: Callable[[], None]
    ) -> None:
        self.builder, self.locate, self.program, self.decided = builder, locate, program, decided
        self.effects: dict[tuple[int, int, int, str], Undefined] = {}
        self._origins: list[tuple[int, int]] = [(-1, -1)]  # sites of the load and of a reduction, −1 for none
        self._numbers: dict[tuple[int, int], int] = {(-1, -1): 0}

    @contextmanager
    def hook_into(self, interpreter: Any) -> Iterator[None]:
        """Track all of the interpreter's operations in the body of a `with`."""
        hooks = {
            name: self._follow(name.removeprefix("create_"), getattr(self.builder, name))
            for name in dir(self.builder)
            if name.startswith("create_") and not any(part in name for part in MEMORY)
        }
        original = interpreter._patch_lang

        def patch(function: Any) -> Any:
            scope = original(function)
            self._watch_decisions(interpreter)
            return scope

        with ExitStack() as stack:
            stack.enter_context(replace_members(self.builder, hooks))
            stack.enter_context(replace_members(interpreter, {"_patch_lang": patch}))
            stack.enter_context(replace_members(interpreter.tl, {"flip": _flip}))
            for place, combine in ((interpreter.ReduceOps, _reduce), (interpreter.ScanOps, _scan)):
                apply = self._follow_reduction(place.apply_impl, combine)
                stack.enter_context(replace_members(place, {"apply_impl": apply}))
            yield

    def mark(self, handle: Handle, which: np.ndarray, *, fault: bool = False) -> None:
        """Make lanes of a loaded block undefined; those of a `fault` are poison, reported elsewhere."""
        if which.any():
            origin = self._number(-2 if fault else self.locate(), -1)
            _set(handle, np.where(which, origin, _get(handle, which.shape)))

    def inherit(self, handle: Handle, other: Handle | None, which: np.ndarray) -> None:
        """Make the lanes `which` of a loaded block as undefined as those of `other`."""
        if other is not None and KEY in other.attr:
            _set(handle, np.where(which, _get(other, which.shape), _get(handle, which.shape)))

    def note(self, handle: Handle, effect: str, which: Any, describe: Callable[[int], str] = str) -> np.ndarray:
        """Note that lanes of a block take effect; return which of them are undefined.

        `describe` names the target of a lane, by the lane's index.
        """
        shape = np.shape(which)
        origins = np.where(which, _get(handle, shape), 0)
        for origin in np.unique(origins[origins > 0]).tolist():
            load, reduction = self._origins[origin]
            lanes = np.flatnonzero(origins == origin)
            key = (load, reduction, self.locate(), effect)
            if load >= 0 and key not in self.effects:
                place = describe(int(lanes[0]))
                self.effects[key] = Undefined(*key, program=self.program(), place=place)
        return np.asarray(origins > 0)

    def _number(self, load: int, reduction: int) -> int:
        if (load, reduction) not in self._numbers:
            self._numbers[load, reduction] = len(self._origins)
            self._origins.append((load, reduction))
        return self._numbers[load, reduction]

    def _reduced(self, origins: np.ndarray) -> np.ndarray:
        """Origins of a reduction's result at the running line; the first reduction is remembered."""
        found = np.zeros_like(origins)
        for origin in np.unique(origins[origins > 0]).tolist():
            load, reduction = self._origins[origin]
            found[origins == origin] = self._number(load, self.locate() if reduction < 0 else reduction)
        return found

    def _follow(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap an operation of the builder so that its result inherits the origins of its operands."""

        def operate(*args: Any, **keywords: Any) -> Any:
            result = original(*args, **keywords)
            if any(KEY in getattr(one, "attr", ()) for one in args):
                self._propagate(name, original, args, result)
            return result

        return operate

    def _propagate(self, name: str, original: Callable[..., Any], args: tuple[Any, ...], result: Any) -> None:
        operands = [one for one in args if hasattr(one, "attr")]
        if name in MOVING:
            moved = original(*(_origins_of(one) if hasattr(one, "attr") else one for one in args))
            parts = zip(result, moved, strict=True) if isinstance(result, tuple) else [(result, moved)]
            for part, origins in parts:
                _set(part, origins.data)
            return
        shape = result.data.shape
        if name == "gather":
            source, indices, axis = args
            found = np.take_along_axis(_get(source, source.data.shape), indices.data, axis=axis)
            found = np.maximum(found, _get(indices, shape))
        elif name == "select":
            condition, left, right = args
            chosen = np.where(condition.data, _get(left, shape), _get(right, shape))
            found = np.maximum(_get(condition, shape), chosen)
        elif name == "dot":
            a, b, d, *_ = args
            rows, columns = _get(a, a.data.shape).max(axis=-1), _get(b, b.data.shape).max(axis=-2)
            reduced = self._reduced(np.maximum(rows[..., :, None], columns[..., None, :]))
            found = np.maximum(_get(d, shape), reduced)
        elif name == "histogram":
            found = np.broadcast_to(self._reduced(np.max(_get(args[0], args[0].data.shape), keepdims=True)), shape)
        else:
            found = np.maximum.reduce([_get(one, shape) for one in operands])
            for one in operands if name in ("and", "or", "mul") else ():
                decided = _get(one, shape) == 0
                decided &= np.broadcast_to(_decides(name, one.data), shape)
                found = np.where(decided, 0, found)
        _set(result, found)

    def _follow_reduction(self, original: Callable[..., Any], combine: Callable[..., np.ndarray]) -> Callable[..., Any]:
        def apply(operation: Any, blocks: tuple[Any, ...]) -> Any:
            results = original(operation, blocks)
            if any(KEY in block.handle.attr for block in blocks):
                shape = blocks[0].handle.data.shape
                origins = np.maximum.reduce([_get(block.handle, shape) for block in blocks])
                reduced = self._reduced(combine(operation, origins))
                for result in results if isinstance(results, tuple | list) else (results,):
                    handle = result.handle
                    _set(handle, np.broadcast_to(reduced, handle.data.shape))
                    poison(handle, handle.attr[KEY] > 0)
            return results

        return apply

    def _watch_decisions(self, interpreter: Any) -> None:
        """Note undefined values that decide a branch or the trip count of a loop."""
        tensor = interpreter.tl.tensor
        if getattr(tensor.__bool__, "watches", None) is self:
            return

        def watch(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
            def decide(block: Any) -> Any:
                self.decided()
                self.note(block.handle, BRANCH, np.ones(block.handle.data.shape, dtype=bool))
                return original(block)

            decide.watches = self  # type: ignore[attr-defined]
            return decide

        tensor.__bool__, tensor.__index__ = watch(tensor.__bool__), watch(tensor.__index__)
        tensor.T = property(lambda block: interpreter.interpreter_semantic.permute(block, (1, 0)))


def poison(handle: Handle, which: np.ndarray) -> Handle:
    """Overwrite lanes of a block with poison: NaN, or −1 for integers."""
    if which.any():
        data = np.array(np.broadcast_to(handle.data, which.shape))
        data[which] = np.frombuffer(bytes([POISON]) * data.itemsize, dtype=data.dtype)[0]
        handle.data = data
    return handle


def _flip(block: Any, dim: Any = None) -> Any:
    """`tl.flip`, which Triton implements with sums of pairs, where one undefined lane would taint the other."""
    axis = -1 if (number := getattr(dim, "value", dim)) is None else number
    handle = type(block.handle)(np.flip(block.handle.data, axis), block.handle.dtype)
    if KEY in block.handle.attr:
        _set(handle, np.flip(_get(block.handle, handle.data.shape), axis))
    return type(block)(handle, block.type)


def _get(handle: Handle, shape: tuple[int, ...]) -> np.ndarray:
    return np.broadcast_to(getattr(handle, "attr", {}).get(KEY, np.int32(0)), shape)


def _set(handle: Handle, origins: np.ndarray) -> None:
    handle.attr = {**handle.attr, KEY: np.asarray(origins, dtype=np.int32)}


def _origins_of(handle: Handle) -> Handle:
    """A handle whose values are the origins of another's lanes."""
    int32 = type(handle.dtype.scalar)("int32")
    return type(handle)(np.array(_get(handle, handle.data.shape)), int32)


def _decides(name: str, values: np.ndarray) -> Any:
    """Where a defined operand determines the result by itself: x & 0, x | −1, and 0 · x of integers."""
    if values.dtype.kind not in "biu":
        return False
    return values == (~np.zeros_like(values) if name == "or" else 0)


def _reduce(operation: Any, origins: np.ndarray) -> np.ndarray:
    return np.asarray(np.max(origins, axis=operation.axis, keepdims=operation.keep_dims))


def _scan(operation: Any, origins: np.ndarray) -> np.ndarray:
    ordered = np.flip(origins, axis=operation.axis) if operation.reverse else origins
    found = np.maximum.accumulate(ordered, axis=operation.axis)
    return np.flip(found, axis=operation.axis) if operation.reverse else found
