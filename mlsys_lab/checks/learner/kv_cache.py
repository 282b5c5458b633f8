"""How lab 10's checks call the learner's code: caches by plans of what comes and goes, steps on a model that ages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from mlsys_lab.checks.learner.spec import Arrays
from mlsys_lab.checks.learner.values import array, number, pair, parts, whole, word
from mlsys_lab.errors import InputError

START, DROP, CUT = -1, -2, -10
"""What a plan does with the sequence of a column: begin it, drop it, or with CUT - n keep its first n tokens."""
SIZES = ("n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim", "d_ff", "vocab_size", "context")
"""A configuration is an int64 array of these, and of whether the head is tied."""
BOUNDS = ("compute", "memory")


def follow(plan: np.ndarray, cache: Any) -> Iterator[tuple[int, dict[int, int]]]:
    """Play a plan (steps, columns) on a cache: the steps in which tokens come, with how many by sequence.

    An entry above 0 is a number of new tokens, 0 is none, and the others are START, DROP and CUT - n.
    """
    numbers: dict[int, int] = {}
    for step, row in enumerate(plan.tolist()):
        for place, what in enumerate(row):
            if what == START:
                numbers[place] = cache.start()
            elif what == DROP:
                cache.drop(numbers.pop(place))
            elif what <= CUT:
                cache.truncate(numbers[place], CUT - what)
        if new := {numbers[place]: what for place, what in enumerate(row) if what > 0}:
            yield step, new


def _model(artifact: Any, arrays: Arrays) -> Any:
    """The case's model, as old as it begins."""
    weights = torch.from_numpy(arrays["weights"])
    return artifact.AgingModel(weights, position="learned" if arrays.get("learned") else "rotary")


def _tensors(arrays: Arrays, *names: str) -> list[torch.Tensor]:
    """Inputs as tensors on the arrays' own memory, so that changes show."""
    return [torch.from_numpy(arrays[name]) for name in names]


# --- caches and their parts -------------------------------------------------------------------------------------------


def cache(artifact: Any, arrays: Arrays) -> Arrays:
    """Play a plan on `Contiguous`: what each update gives back."""
    return _updates(_make(artifact, arrays, artifact.Contiguous, "capacity"), arrays)


def ring(artifact: Any, arrays: Arrays) -> Arrays:
    """Play a plan on `SlidingWindow`: what each update gives back."""
    return _updates(_make(artifact, arrays, artifact.SlidingWindow, "chunk"), arrays)


def _make(artifact: Any, arrays: Arrays, kind: Any, size: str) -> Any:
    """An empty cache for a model with the case's heads, window and precision."""
    model = artifact.AgingModel(kv_heads=arrays["k"].shape[1], window=int(arrays.get("window", 0)) or None)
    model = model.float() if arrays["k"].dtype == np.float32 else model
    return kind(model, sequences=int(arrays["sequences"]), **{size: int(arrays[size])})


def _updates(kept: Any, arrays: Arrays) -> Arrays:
    """Keys, values and positions of every update from step `told` on, in the order of their positions.

    The memory of new keys and values is used for something else as soon as the update has given back.
    """
    k, v = _tensors(arrays, "k", "v")  # (L, K, tokens, H)
    answers: Arrays = {}
    first = 0
    for step, new in follow(arrays["plan"], kept):
        for layer in range(len(k)):
            start = first
            for sequence, count in new.items():
                fresh = [x[layer, :, start : start + count].clone() for x in (k, v)]
                got = parts("update", kept.update(layer, sequence, *fresh), "keys", "values", "positions")
                if step >= int(arrays["told"]):
                    answers |= _found(f"of step {step}, layer {layer}, sequence {sequence}", got)
                for x in fresh:
                    x.fill_(torch.nan)
                start += count
        for sequence, count in new.items():
            kept.advance(sequence, count)
        first += sum(new.values())
    return answers


def _found(where: str, got: tuple[Any, ...]) -> Arrays:
    keys, values, places = (array(name, x) for name, x in zip(("keys", "values", "positions"), got, strict=True))
    if places.ndim == 1 and places.dtype.kind in "iu" and keys.shape[1:2] == values.shape[1:2] == places.shape:
        order = np.argsort(places, kind="stable")
        keys, values, places = keys[:, order], values[:, order], places[order].astype(np.int64)
    return {f"positions {where}": places, f"keys {where}": keys, f"values {where}": values}


def pack(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `pack` for sequences of given lengths: tokens, positions and ends as whole numbers."""
    lengths = dict(zip(arrays["sequences"].tolist(), arrays["lengths"].tolist(), strict=True))
    asked = SimpleNamespace(length=lengths.__getitem__, sequences=list(lengths))
    fed = iter(arrays["tokens"].tolist())
    counts = zip(arrays["fed"].tolist(), arrays["counts"].tolist(), strict=True)
    new = {sequence: [next(fed) for _ in range(count)] for sequence, count in counts}
    got = parts("pack", artifact.pack(asked, new), "tokens", "positions", "ends")
    return {name: _wholes(name, x) for name, x in zip(("tokens", "positions", "ends"), got, strict=True)}


def _wholes(name: str, got: Any) -> np.ndarray:
    found = array(name, got)
    if found.dtype.kind not in "iu":
        raise InputError(f"{name} are no whole numbers", got=str(found.dtype), expected="int64")
    return found.astype(np.int64)


def visible(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `visible`: the mask."""
    return {"mask": array("mask", artifact.visible(*_tensors(arrays, "queries", "keys")))}


def in_window(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `in_window`: the mask."""
    return {"mask": array("mask", artifact.in_window(*_tensors(arrays, "queries", "keys"), int(arrays["window"])))}


def attend(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `attend`: the heads."""
    return {"heads": array("heads", artifact.attend(*_tensors(arrays, "q", "keys", "values", "mask")))}


def attend_grouped(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `attend_grouped`: the heads."""
    return {"heads": array("heads", artifact.attend_grouped(*_tensors(arrays, "q", "keys", "values", "mask")))}


# --- steps of a model -------------------------------------------------------------------------------------------------


def extend(artifact: Any, arrays: Arrays) -> Arrays:
    """Play a plan on the learner's cache and model: the logits of every step, and all lengths in the end."""
    model, fed = _model(artifact, arrays), iter(arrays["tokens"].tolist())
    kept = artifact.Contiguous(model, sequences=arrays["plan"].shape[1], capacity=int(arrays["capacity"]))
    answers: Arrays = {}
    for step, counts in follow(arrays["plan"], kept):
        new = {sequence: [next(fed) for _ in range(count)] for sequence, count in counts.items()}
        if arrays["backwards"]:
            new = dict(reversed(new.items()))
        logits = artifact.extend(model, kept, new, every_token=bool(arrays["every_token"][step]))
        answers[f"logits of step {step}"] = array("logits", logits)
    lengths = [whole("length", kept.length(sequence)) for sequence in kept.sequences]
    return answers | {"lengths": np.array(lengths, dtype=np.int64)}


def prefill(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `prefill` on a cache that holds the prompt's beginning: its logits, and those of one token more."""
    model, prompt, held = _model(artifact, arrays), arrays["prompt"].tolist(), int(arrays["held"])
    kept = artifact.Contiguous(model, sequences=1, capacity=len(prompt) + 1)
    sequence = kept.start()
    if held:
        artifact.extend(model, kept, {sequence: prompt[:held]})
    logits = artifact.prefill(model, kept, sequence, prompt, int(arrays["chunk"]))
    answers = {"logits": array("logits", logits), "length": whole("length", kept.length(sequence))}
    after = artifact.extend(model, kept, {sequence: arrays["following"].tolist()})
    return answers | {"logits after one token more": array("logits", after)}


def generate(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `generate` for one prompt and then for another, on a cache with a single row."""
    model, size = _model(artifact, arrays), (int(arrays["count"]), int(arrays["chunk"]))
    kept = artifact.Contiguous(model, sequences=1, capacity=len(arrays["prompt"]) + size[0])
    return {
        f"tokens after {name}": _tokens("generate", artifact.generate(model, kept, arrays[name].tolist(), *size))
        for name in ("prompt", "another")
    }


def verify(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `verify` step after step: the tokens of each, and how many are kept."""
    model, text = _model(artifact, arrays), arrays["text"].tolist()
    k = arrays["drafts"].shape[1]
    kept = artifact.Contiguous(model, sequences=1, capacity=len(text) + len(arrays["drafts"]) * (k + 1) + k)
    sequence = kept.start()
    artifact.extend(model, kept, {sequence: text[:-1]})
    answers: Arrays = {}
    for step, given in enumerate(zip(*_tensors(arrays, "drafts", "proposed", "uniforms"), strict=True)):
        written = _tokens("verify", artifact.verify(model, kept, sequence, list(text), *given))
        answers |= {f"tokens of step {step}": written, f"length after step {step}": np.array(kept.length(sequence))}
        text += written.tolist()
    return answers


def _tokens(name: str, got: Any) -> np.ndarray:
    if not isinstance(got, list | tuple):
        raise InputError(f"{name} gives no list", got=type(got).__name__, expected="a list of tokens")
    return np.array([whole(f"a token of {name}", token) for token in got], dtype=np.int64)


def accept(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `accept` for every row of the case: how many drafts stay, and the token after them."""
    rows = zip(*_tensors(arrays, "drafts", "proposed", "wanted", "uniforms"), strict=True)
    got = [pair("accept", artifact.accept(*row), "how many stay", "token") for row in rows]
    stay = np.array([whole("how many stay", one) for one, _ in got], dtype=np.int64)
    return {"how many stay": stay, "token": np.array([whole("token", one) for _, one in got], dtype=np.int64)}


# --- numbers ----------------------------------------------------------------------------------------------------------


def fields_of(config: np.ndarray) -> dict[str, Any]:
    """The sizes of a configuration's array by name, and whether its head is tied."""
    *sizes, tied = config.tolist()
    return dict(zip(SIZES, sizes, strict=True)) | {"tied": bool(tied)}


def _asked(artifact: Any, arrays: Arrays) -> tuple[Any, list[tuple[int, int]], int | None]:
    steps: list[Sequence[int]] = arrays["parts"].tolist()
    config = artifact.TransformerConfig("a model", **fields_of(arrays["config"]))
    return config, [(new, past) for new, past in steps], int(arrays["window"]) or None


def step_work(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `step_work`: FLOPs and bytes."""
    config, steps, window = _asked(artifact, arrays)
    flops, moved = pair("step_work", artifact.step_work(config, steps, window, int(arrays["element_bytes"])), "F", "B")
    return {"FLOPs": whole("FLOPs", flops), "bytes": whole("bytes", moved)}


def predict_step(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `predict_step_s`: seconds, and what binds."""
    config, steps, window = _asked(artifact, arrays)
    machine = artifact.Machine(float(arrays["flops_per_s"]), float(arrays["bytes_per_s"]))
    got = artifact.predict_step_s(config, steps, machine, window, int(arrays["element_bytes"]))
    seconds, bound = pair("predict_step_s", got, "seconds", "what binds")
    return {"seconds": number("seconds", seconds), "bound": word("what binds", bound, BOUNDS)}
