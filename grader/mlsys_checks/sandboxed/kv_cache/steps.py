"""Steps of a model that ages: ragged batches, prompts, greedy text, drafts that are checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from mlsys_checks.sandboxed.inputs import unchanged
from mlsys_checks.sandboxed.kv_cache.plans import follow, make_cache, make_model, tensors
from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.values import array, describe_value, pair, parts, whole
from mlsys_lab.errors import InputError

PROMPTS = ("prompt", "another", "prompt")
"""What `generate` is called with, call after call."""


def pack(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `pack` for sequences of given lengths: tokens, positions and ends as whole numbers."""
    lengths = dict(zip(arrays["sequences"].tolist(), arrays["lengths"].tolist(), strict=True))
    asked = SimpleNamespace(length=lengths.__getitem__, sequences=list(lengths))
    fed = iter(arrays["tokens"].tolist())
    counts = zip(arrays["fed"].tolist(), arrays["counts"].tolist(), strict=True)
    new = {sequence: [next(fed) for _ in range(count)] for sequence, count in counts}
    with unchanged(new=new):
        got = parts("pack", artifact.pack(asked, new), "tokens", "positions", "ends")
    return {name: _wholes(name, x) for name, x in zip(("tokens", "positions", "ends"), got, strict=True)}


def _wholes(name: str, got: Any) -> np.ndarray:
    found = array(name, got)
    if found.dtype.kind not in "iu":
        raise InputError(f"{name} are no whole numbers", got=str(found.dtype), expected="int64")
    return found


def extend(artifact: Any, arrays: Arrays) -> Arrays:
    """Play a plan on the learner's cache and a model: the logits of every step, and all lengths in the end.

    The step `fails`, if there is one, is tried on a model that fails first.
    """
    model, fed = make_model(arrays), iter(arrays["tokens"].tolist())
    kept = make_cache(artifact, arrays, model, arrays["plan"].shape[1])
    answers: Arrays = {}
    for step, counts in follow(arrays["plan"], kept):
        new = {sequence: [next(fed) for _ in range(count)] for sequence, count in counts.items()}
        if arrays["backwards"]:
            new = dict(reversed(new.items()))
        if step == arrays.get("fails"):
            with suppress(MemoryError), torch.set_grad_enabled(True), _uncounted(kept), _failing(model):
                artifact.extend(model, kept, new)
        with unchanged(new=new), _left_as_it_was(model, tracked=step % 2 == 1):
            logits = artifact.extend(model, kept, new, every_token=bool(arrays["every_token"][step]))
        if isinstance(logits, torch.Tensor) and logits.requires_grad:
            raise InputError("logits keep the graph of a gradient", expected="a pass under torch.no_grad()")
        answers[f"logits of step {step}"] = array("logits", logits)
    lengths = [whole("length", kept.length(sequence)) for sequence in kept.sequences]
    return answers | {"lengths": np.array(lengths, dtype=np.int64)}


@contextmanager
def _uncounted(kept: Any) -> Iterator[None]:
    """Raise `InputError` where a pass that fails leaves sequences of a cache with other lengths."""

    def lengths() -> dict[int, int]:
        return {sequence: kept.length(sequence) for sequence in kept.sequences}

    before = lengths()
    try:
        yield
    finally:
        if (after := lengths()) != before:
            raise InputError("a pass that failed counts tokens in", got=f"lengths {after}", expected=f"{before}")


@contextmanager
def _failing(model: Any) -> Iterator[None]:
    """Let passes of a model raise `MemoryError` behind their last layer."""

    def fail(*given: Any) -> None:
        raise MemoryError("a pass that fails behind its last layer")

    hook = model.norm.register_forward_pre_hook(fail)
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def _left_as_it_was(model: Any, tracked: bool) -> Iterator[None]:
    """Track gradients or not; raise `InputError` where that, or how the model trains, is another in the end."""

    def state() -> dict[str, bool]:
        trained = all(parameter.requires_grad for parameter in model.parameters())
        return {"gradients on": torch.is_grad_enabled(), "training": model.training, "weights trained": trained}

    with torch.set_grad_enabled(tracked):
        before = state()
        yield
        if (after := state()) != before:
            raise InputError("extend changes how the model is trained", got=str(after), expected=str(before))


def prefill(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `prefill` on a cache that holds the prompt's beginning: its logits, and those of one token more."""
    model, prompt, held = make_model(arrays), arrays["prompt"].tolist(), int(arrays["held"])
    kept = artifact.Contiguous(model, sequences=1, capacity=len(prompt) + 1)
    sequence = kept.start()
    if held:
        artifact.extend(model, kept, {sequence: prompt[:held]})
    with unchanged(prompt=prompt):
        logits = artifact.prefill(model, kept, sequence, prompt, int(arrays["chunk"]))
    answers = {"logits": array("logits", logits), "length": whole("length", kept.length(sequence))}
    after = artifact.extend(model, kept, {sequence: arrays["following"].tolist()})
    answers["logits after one token more"] = array("logits", after)
    kept.truncate(sequence, len(prompt))
    again = artifact.prefill(model, kept, sequence, prompt, int(arrays["chunk"]))
    return answers | {"logits of the prompt once more": array("logits", again)}


def generate(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `generate` for one prompt, for another and for the first again, beside sequences that stay."""
    model, size = make_model(arrays), (int(arrays["count"]), int(arrays["chunk"]))
    beside = arrays["beside"]
    longest = max(len(arrays["prompt"]) + size[0], beside.shape[1])
    kind = _holding(artifact, arrays) if "beginning" in arrays else artifact.Contiguous
    kept = kind(model, sequences=len(beside) + 1, capacity=longest)
    following = _begin_others(artifact, model, kept, arrays)
    answers: Arrays = {}
    for call, name in enumerate(PROMPTS):
        prompt = arrays[name].tolist()
        with unchanged(prompt=prompt):
            written = artifact.generate(model, kept, prompt, *size)
        answers[f"tokens of call {call}"] = _tokens("generate", written)
    return answers | _end_others(artifact, model, kept, following)


def _holding(artifact: Any, arrays: Arrays) -> type:
    """The learner's `Contiguous`, but sequences whose prompt begins as the case's start with that beginning kept."""
    beginning, held = tensors(arrays, "beginning")[0], arrays["prompt"].tolist()[: int(arrays["held"])]

    class Holding(artifact.Contiguous):  # type: ignore[misc]
        def start(self, prompt: Sequence[int] = ()) -> int:
            sequence: int = super().start(prompt)
            if list(prompt)[: len(held)] == held:
                for layer, (k, v) in enumerate(beginning):
                    self.update(layer, sequence, k, v)
                self.advance(sequence, len(held))
            return sequence

    return Holding


def _begin_others(artifact: Any, model: Any, kept: Any, arrays: Arrays) -> dict[int, list[int]]:
    """Feed the texts beside, all but their last tokens: these, by sequence."""
    texts = {kept.start(): text for text in arrays["beside"].tolist()}
    if texts:
        artifact.extend(model, kept, {sequence: text[:-1] for sequence, text in texts.items()})
    return {sequence: text[-1:] for sequence, text in texts.items()}


def _end_others(artifact: Any, model: Any, kept: Any, following: Mapping[int, list[int]]) -> Arrays:
    """Which sequences are left, how long they are, and the logits after the last tokens of those beside."""
    left = sorted(kept.sequences)
    answers = {
        "sequences that are left": np.array(left, dtype=np.int64),
        "lengths of these": np.array([kept.length(sequence) for sequence in left], dtype=np.int64),
    }
    if not following or not following.keys() <= set(left):
        return answers
    return answers | {"logits of the others": array("logits", artifact.extend(model, kept, following))}


def verify(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `verify` step after step: the tokens of each, and how many are kept."""
    model, text = make_model(arrays), arrays["text"].tolist()
    k = arrays["drafts"].shape[1]
    beside, longest = arrays["beside"], len(text) + len(arrays["drafts"]) * (k + 1) + k
    kept = artifact.Contiguous(model, sequences=len(beside) + 1, capacity=max(longest, beside.shape[1]))
    following = _begin_others(artifact, model, kept, arrays)
    sequence = kept.start()
    if text[:-1]:
        artifact.extend(model, kept, {sequence: text[:-1]})
    answers: Arrays = {}
    for step, given in enumerate(zip(*tensors(arrays, "drafts", "proposed", "uniforms"), strict=True)):
        with unchanged(text=text):
            written = _tokens("verify", artifact.verify(model, kept, sequence, text, *given))
        answers |= {f"tokens of step {step}": written, f"length after step {step}": np.array(kept.length(sequence))}
        text += written.tolist()
    return answers | _end_others(artifact, model, kept, following)


def _tokens(name: str, got: Any) -> np.ndarray:
    if not isinstance(got, list | tuple):
        raise InputError(f"{name} gives no list", got=describe_value(got), expected="a list of tokens")
    return np.array([whole(f"a token of {name}", token) for token in got], dtype=np.int64)


def accept(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `accept` for every row of the case: how many drafts stay, and the token after them."""
    rows = zip(*tensors(arrays, "drafts", "proposed", "wanted", "uniforms"), strict=True)
    got = [pair("accept", artifact.accept(*row), "how many stay", "token") for row in rows]
    stay = np.array([whole("how many stay", one) for one, _ in got], dtype=np.int64)
    return {"how many stay": stay, "token": np.array([whole("token", one) for _, one in got], dtype=np.int64)}
