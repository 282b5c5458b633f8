"""Run the learner's code for lab 10's checks: caches, masks, passes of a model, and functions.

Calls to make (a script) and sizes arrive as JSON in the array `case`. A function is called with right predecessors, so
that one mistake costs points once: `lend` replaces those of its own module. What is lent is right where it is lent,
but fails the check of its own name, or gives made-up numbers (`PretendEngine`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch

from mlsys_checks.sandboxed.inputs import unchanged
from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.values import array, decode_value, describe_value, encode_value, number, pair, parts, whole
from mlsys_checks.sandboxed.values import word as named
from mlsys_lab.errors import InputError
from mlsys_lab.models.aging import AgingModel

VOCABULARY = AgingModel().config.vocab_size
STALE = 7.0
"""Keys and values of passes that fail, and of another cache."""
COSTS = ("flops", "weight_bytes", "cache_read_bytes", "cache_written_bytes")
BINDS = ("compute", "memory")


@contextmanager
def lend(artifact: Any, **predecessors: Any) -> Iterator[None]:
    """Replace the learner's functions of these names in the block."""
    names = vars(artifact)
    own = {name: names[name] for name in predecessors if name in names}
    names.update(predecessors)
    try:
        yield
    finally:
        for name in predecessors:
            del names[name]
        names.update(own)


def _tensors(arrays: Arrays, *names: str) -> list[torch.Tensor]:
    """Return inputs as tensors on the memory of the arrays, so that changes show."""
    return [torch.from_numpy(arrays[name]) for name in names]


def make_model(case: dict[str, Any], arrays: Arrays) -> AgingModel:
    """Create the case's model, with its weights if it has any: no model of the notebook's, which could hide passes."""
    weights = torch.from_numpy(arrays["weights"]) if "weights" in arrays else None
    return AgingModel(weights, **case["model"])


def make_cache(artifact: Any, case: dict[str, Any], model: Any) -> Any:
    """Create the learner's empty cache for a model: a ring buffer if the case has a chunk."""
    kind = artifact.SlidingWindow if "chunk" in case["cache"] else artifact.Contiguous
    return kind(model, **case["cache"])


# --- Tasks 1 and 6: caches --------------------------------------------------------------------------------------------


def update(artifact: Any, arrays: Arrays) -> Arrays:
    """Run a script of calls on a cache; return what `update` returned in each recorded pass, by sequence.

    Keys, values and positions of all layers are stacked, in the order of positions, when the pass is over. The memory
    of new keys and values is overwritten as soon as `update` returns.
    """
    case, (k, v) = decode_value(arrays["case"]), _tensors(arrays, "k", "v")
    model = make_model(case, {})
    model = model.float() if k.dtype == torch.float32 else model
    cache, others = make_cache(artifact, case, model), dict[int, Any]()
    answers: Arrays = {}
    first = num_passes = 0
    for call, *arguments in case["script"]:
        if call in ("start", "drop", "truncate"):
            getattr(cache, call)(*arguments)
            continue
        num_tokens = sum(count for _, count in arguments[0])
        if call == "feed":
            found = _update_layers(cache, arguments[0], k, v, first)
            if num_passes >= case["recorded"]:
                answers |= _stack_layers(num_passes, found)
            for sequence, count in arguments[0]:
                cache.advance(sequence, count)
            first, num_passes = first + num_tokens, num_passes + 1
            continue
        stale = torch.full((*k.shape[:2], num_tokens, k.shape[3]), STALE, dtype=k.dtype)
        target, fed = cache, arguments[0]
        if call == "feed_other":
            fed = [[i, count] for i, (_, count) in enumerate(fed)]
            target = others.setdefault(0, make_cache(artifact, case, model))
            for _ in range(case["cache"]["sequences"] if not target.sequences else 0):
                target.start()
        _update_layers(target, fed, stale, stale, 0)
    return answers


def _update_layers(cache: Any, fed: Any, k: torch.Tensor, v: torch.Tensor, first: int) -> dict[int, list[Any]]:
    """Update all layers with tokens from `first` on; return what came back, by sequence and layer."""
    found: dict[int, list[Any]] = {sequence: [] for sequence, _ in fed}
    for layer in range(len(k)):
        start = first
        for sequence, count in fed:
            new = [x[layer, :, start : start + count].clone() for x in (k, v)]
            got = parts("update", cache.update(layer, sequence, *new), "keys", "values", "positions")
            found[sequence].append(got)
            for x in new:
                x.fill_(torch.nan)
            start += count
    return found


def _stack_layers(number: int, found: Mapping[int, list[Any]]) -> Arrays:
    answers: Arrays = {}
    for sequence, layers in found.items():
        sorted_layers = [_sort_by_position(*layer) for layer in layers]
        for name, stack in zip(("positions", "keys", "values"), zip(*sorted_layers, strict=True), strict=True):
            where = f"{name} in pass {number}, sequence {sequence}"
            if len(shapes := {one.shape for one in stack}) > 1:
                raise InputError(f"layers differ in the shape of {where}", got=str(shapes), expected="one shape")
            answers[where] = np.stack(stack)
    return answers


def _sort_by_position(keys: Any, values: Any, positions: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    k, v, at = (array(*x) for x in (("keys", keys), ("values", values), ("positions", positions)))
    if at.ndim == 1 and at.dtype.kind in "iu" and k.shape[1:2] == v.shape[1:2] == at.shape:
        order = np.argsort(at, kind="stable")
        k, v, at = k[:, order], v[:, order], at[order]
    return at, k, v


# --- Tasks 2, 3, 5 and 6: positions and attention ---------------------------------------------------------------------


def pack(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `pack` for sequences of given lengths."""
    case = decode_value(arrays["case"])
    cache = artifact.Cache(len(case["lengths"]))
    for length in case["lengths"]:
        cache.advance(cache.start(), length)
    new = {sequence: list(tokens) for sequence, tokens in case["new"]}
    with unchanged(new=new):
        got = parts("pack", artifact.pack(cache, new), "tokens", "positions", "last")
    answers = {name: array(name, x) for name, x in zip(("tokens", "positions", "last"), got, strict=True)}
    for name, found in answers.items():
        if found.dtype.kind not in "iu":
            raise InputError(f"pack returned {name} that are no integers", got=str(found.dtype), expected="int64")
    return answers


def causal_mask(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `causal_mask`."""
    return {"mask": array("mask", artifact.causal_mask(*_tensors(arrays, "query_positions", "key_positions")))}


def sliding_window_mask(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `sliding_window_mask`."""
    positions = _tensors(arrays, "query_positions", "key_positions")
    return {"mask": array("mask", artifact.sliding_window_mask(*positions, int(arrays["window"])))}


def attend(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `attend`."""
    return {"output": array("output", artifact.attend(*_tensors(arrays, "q", "keys", "values", "mask")))}


def attend_grouped(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `attend_grouped`, with an `attend` that overflows for large scores."""
    with lend(artifact, attend=_attend):
        return {"output": array("output", artifact.attend_grouped(*_tensors(arrays, "q", "keys", "values", "mask")))}


def _attend(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    weights = (q @ keys.mT / q.shape[-1] ** 0.5).exp() * mask
    output: torch.Tensor = weights / weights.sum(-1, keepdim=True) @ values
    return output


# --- Tasks 3 and 6: passes of a model ---------------------------------------------------------------------------------


def extend(artifact: Any, arrays: Arrays) -> Arrays:
    """Run a script of passes with a cache, `pack` and `attend_sequence` that are lent."""
    case = decode_value(arrays["case"])
    with lend(artifact, pack=_pack, attend_sequence=_attend_sequence):
        return _run_passes(artifact, case, make_model(case, arrays), _make_lent_cache(artifact, case))


def windowed(artifact: Any, arrays: Arrays) -> Arrays:
    """Run a script of passes with the learner's own cache and attention."""
    case = decode_value(arrays["case"])
    model = make_model(case, arrays)
    return _run_passes(artifact, case, model, make_cache(artifact, case, model))


def _run_passes(artifact: Any, case: dict[str, Any], model: Any, cache: Any) -> Arrays:
    """Return the logits of every pass, and all lengths at the end."""
    answers: Arrays = {}
    embedded: list[tuple[int, bool]] = []  # tokens of a pass, and whether gradients were on
    model.embedding.register_forward_pre_hook(lambda _, x: embedded.append((x[0].numel(), torch.is_grad_enabled())))
    for step, (call, *arguments) in enumerate(case["script"]):
        if call in ("start", "drop", "truncate"):
            getattr(cache, call)(*arguments)
            continue
        new = {sequence: list(tokens) for sequence, tokens in arguments[0]}
        if call == "fail":
            with suppress(MemoryError), torch.set_grad_enabled(True), _lengths_kept(cache), _failing(model):
                artifact.extend(model, cache, new)
            continue
        embedded.clear()
        with unchanged(new=new), _settings_kept(model, is_tracked=step % 2 == 1):
            logits = artifact.extend(model, cache, new, every_token=arguments[1])
        if any(has_gradients for _, has_gradients in embedded):
            raise InputError("extend ran the model with gradients on", expected="a pass under torch.no_grad()")
        answers[f"tokens computed by pass {len(answers) // 2}"] = np.array(sum(count for count, _ in embedded))
        answers[f"logits of pass {len(answers) // 2}"] = array("logits", logits)
    lengths = [whole("length", cache.length(sequence)) for sequence in cache.sequences]
    return answers | {"lengths": np.array(lengths, np.int64)}


def _make_lent_cache(artifact: Any, case: dict[str, Any]) -> Any:
    kept: dict[tuple[int, int], list[Any]] = {}

    class LentCache(artifact.Cache):  # type: ignore[misc]
        """A list of tokens for each sequence and layer, in float64 whatever the model has."""

        def update(self, layer: int, sequence: int, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
            before = kept.get((sequence, layer), [])[: self.length(sequence)]
            now = [*before, *zip(k.double().clone().unbind(1), v.double().clone().unbind(1), strict=True)]
            kept[sequence, layer] = now
            return *(torch.stack(x, 1) for x in zip(*now, strict=True)), torch.arange(len(now))

    return LentCache(case["cache"]["sequences"])


def _pack(cache: Any, new: Mapping[int, Sequence[int]]) -> tuple[torch.Tensor, ...]:
    rows = [(token, cache.length(s) + i, i + 1 == len(part)) for s, part in new.items() for i, token in enumerate(part)]
    tokens, positions, ends = np.array(rows, np.float64).T  # right for short sequences
    return *(torch.from_numpy(x).long()[None] for x in (tokens, positions)), torch.from_numpy(ends).nonzero()[:, 0]


def _attend_sequence(
    model: Any, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, queries: torch.Tensor, at: torch.Tensor
) -> torch.Tensor:
    """Attention of one sequence in a model without a window, query by query."""
    group, rows = len(q) // len(keys), []
    for t, position in enumerate(queries.tolist()):
        seen = at <= position
        k, v = (x[:, seen].repeat_interleave(group, 0) for x in (keys, values))
        rows.append((k @ q[:, t, :, None] / q.shape[-1] ** 0.5).softmax(1).mT @ v)
    return torch.cat(rows, 1)


@contextmanager
def _lengths_kept(cache: Any) -> Iterator[None]:
    before = {sequence: cache.length(sequence) for sequence in cache.sequences}
    try:
        yield
    finally:
        if (after := {sequence: cache.length(sequence) for sequence in cache.sequences}) != before:
            what = "extend changed lengths although the pass failed: `advance` belongs after the pass, and nothing else"
            raise InputError(what, got=f"lengths {after}", expected=f"{before}")


@contextmanager
def _failing(model: Any) -> Iterator[None]:
    """Let passes of a model raise `MemoryError` behind their last layer."""

    def fail(*_: Any) -> None:
        raise MemoryError("a pass that fails behind its last layer")

    hook = model.norm.register_forward_pre_hook(fail)
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def _settings_kept(model: Any, is_tracked: bool) -> Iterator[None]:
    def read() -> dict[str, bool]:
        trainable = all(parameter.requires_grad for parameter in model.parameters())
        return {"gradients on": torch.is_grad_enabled(), "training": model.training, "weights trainable": trainable}

    with torch.set_grad_enabled(is_tracked):
        before = read()
        yield
        if (after := read()) != before:
            raise InputError("extend changed settings of torch or of the model", got=str(after), expected=str(before))


# --- Tasks 4 and 8: functions that call `extend` ----------------------------------------------------------------------


class PretendEngine:
    """Stand-in for `extend`, `prefill` and `accept`: made-up numbers that depend on every argument, and a log.

    A pass of the log is a list of [sequence, cached tokens, new tokens]. Logits depend on all tokens of a sequence and
    on the pass in which each one was computed.
    """

    def __init__(self) -> None:
        self.passes: list[list[Any]] = []
        self.kept: dict[int, list[tuple[int, int]]] = {}
        self.problem: tuple[str, str, str] | None = None
        self.wanted = torch.empty(0)  # at the last call of `accept`

    @contextmanager
    def lend(self, artifact: Any, **predecessors: Any) -> Iterator[None]:
        """Lend functions; what they find wrong with a call is the problem, not an exception of the learner's code."""
        try:
            with lend(artifact, extend=self.extend, **predecessors):
                yield
        except Exception:
            if self.problem is None:
                raise
            raise InputError(self.problem[0], got=self.problem[1], expected=self.problem[2]) from None

    def _refuse(self, what: str, got: object, expected: object) -> None:
        self.problem = what, str(got), str(expected)
        raise InputError(what)

    def extend(self, model: Any, cache: Any, new: Any, *, every_token: bool = False) -> torch.Tensor:
        """Log a pass, and advance its sequences."""
        rows, entries = [], []
        for sequence, tokens in new.items():
            length, tokens = cache.length(sequence), [int(token) for token in tokens]
            if not tokens:
                self._refuse(f"extend was called without a new token of sequence {sequence}", dict(new), "1 or more")
            history = self.kept.get(sequence, [])[:length]
            entries.append([sequence, length, tokens])
            for token in tokens:
                history.append((token, len(self.passes)))
                rows.append(pretend_logits(history))
            rows = rows if every_token else [*rows[: len(entries) - 1], rows[-1]]
            self.kept[sequence] = history
        self.passes.append(entries)
        for sequence, tokens in new.items():
            cache.advance(sequence, len(tokens))
        return torch.from_numpy(np.stack(rows))

    def prefill(self, model: Any, cache: Any, sequence: int, prompt: Any, chunk: int) -> torch.Tensor:
        """Feed what is not cached of a prompt."""
        chunk = whole("the chunk that greedy_decode passes to prefill", chunk).item()
        cache.truncate(sequence, min(cache.length(sequence), len(prompt) - 1))
        for start in range(cache.length(sequence), len(prompt), chunk):
            logits = self.extend(model, cache, {sequence: prompt[start : start + chunk]})
        return logits[0]

    def accept(self, drafts: Any, proposed: Any, wanted: Any, uniforms: Any) -> tuple[int, int]:
        """Return how many of the drafts are accepted in a made-up way, and a token."""
        shapes = [tuple(x.shape) for x in (drafts, proposed, wanted, uniforms)]
        k = len(drafts)
        if shapes != (expected := [(k,), (k, VOCABULARY), (k + 1, VOCABULARY), (k + 1,)]):
            self._refuse("accept was called with drafts, proposed, wanted, uniforms of other shapes", shapes, expected)
        if not torch.allclose(wanted.sum(-1), torch.ones(1).to(wanted), atol=1e-6):
            what = "accept was called with rows of `wanted` that do not sum to 1"
            self._refuse(what, wanted.sum(-1).tolist(), "the softmax over the vocabulary, row by row")
        self.wanted = wanted.float()
        return pretend_accept(*(x.numpy() for x in (drafts, proposed, wanted, uniforms)))

    def answer(self, cache: Any, **arrays: np.ndarray) -> Arrays:
        """Return the log, and what is left in the cache."""
        left = [[s, whole("length", cache.length(s)).item()] for s in sorted(cache.sequences)]
        return {"log": encode_value({"passes": self.passes, "left": left}), **arrays}


def pretend_logits(history: Sequence[tuple[int, int]]) -> np.ndarray:
    """Made-up logits (V,) after tokens, each with the pass in which it was computed."""
    at, (tokens, passes) = np.arange(len(history)), np.array(history).T
    state = np.sin(0.37 * at + 1.3 * tokens + 2.1 * passes).sum()
    return np.asarray(2 * np.sin((state + 1) * np.arange(1, VOCABULARY + 1)))


def pretend_accept(drafts: Any, proposed: Any, wanted: Any, uniforms: Any) -> tuple[int, int]:
    """Made-up number of accepted drafts and token, which depend on all four arguments."""
    k, likely = len(drafts), wanted.argmax(-1)
    num_accepted = int(likely.sum() + drafts.sum() + proposed.argmax(-1).sum() + (97 * uniforms).astype(int).sum())
    return num_accepted % (k + 1), int((3 * likely[num_accepted % (k + 1)] + likely[-1]) % VOCABULARY)


def prefill(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `prefill` on a cache that holds a prefix of the prompt, and once more when it holds all of it and a token.

    The passes in between are the engine's own.
    """
    case, engine, model = decode_value(arrays["case"]), PretendEngine(), AgingModel()
    prompt, cache = list(case["prompt"]), artifact.Cache(1)
    sequence = cache.start()
    if case["cached"]:
        engine.extend(model, cache, {sequence: prompt[: case["cached"]]})
    answers = {}
    with engine.lend(artifact):
        for call in ("first", "second"):
            with unchanged(prompt=prompt):
                logits = artifact.prefill(model, cache, sequence, prompt, case["chunk"])
            answers[f"logits of the {call} call"] = array("logits", logits)
            engine.extend(model, cache, {sequence: [case["following"]]})
            cache.truncate(sequence, min(cache.length(sequence), len(prompt)))
    return engine.answer(cache, **answers)


def greedy_decode(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `greedy_decode` for one prompt, for another and for the first again, next to sequences that stay."""
    case, engine, model = decode_value(arrays["case"]), PretendEngine(), AgingModel()
    prefix = case["prompts"][0][: case["cached"]]

    class PrefixCache(artifact.Cache):  # type: ignore[misc]
        """A cache that holds a prefix of the first prompt."""

        def start(self, prompt: Sequence[int] = ()) -> int:
            sequence: int = super().start(prompt)
            if prefix and list(prompt)[: len(prefix)] == prefix:
                engine.kept[sequence] = [(token, -1) for token in prefix]
                self.advance(sequence, len(prefix))
            return sequence

    cache, answers = PrefixCache(len(case["others"]) + 1), {}
    for tokens in case["others"]:
        engine.extend(model, cache, {cache.start(): tokens})
    with engine.lend(artifact, prefill=engine.prefill):
        for call, prompt in enumerate(case["prompts"]):
            with unchanged(prompt=prompt):
                output = artifact.greedy_decode(model, cache, prompt, case["max_tokens"], case["chunk"])
            answers[f"output of call {call}"] = _token_ids("greedy_decode", output)
    return engine.answer(cache, **answers)


def speculative_step(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `speculative_step` step after step, next to sequences that stay."""
    case, engine, model = decode_value(arrays["case"]), PretendEngine(), AgingModel()
    cache, token_ids, answers = artifact.Cache(len(case["others"]) + 1), list(case["token_ids"]), Arrays()
    for tokens in case["others"]:
        engine.extend(model, cache, {cache.start(): tokens})
    sequence = cache.start()
    if token_ids[:-1]:
        engine.extend(model, cache, {sequence: token_ids[:-1]})
    drawn = zip(*_tensors(arrays, "drafts", "proposed", "uniforms"), strict=True)
    with engine.lend(artifact, accept=engine.accept):
        for step, given in enumerate(drawn):
            with unchanged(token_ids=token_ids):
                output = artifact.speculative_step(model, cache, sequence, token_ids, *given)
            answers[f"tokens of step {step}"] = _token_ids("speculative_step", output)
            answers[f"wanted (p) in step {step}"] = array("wanted", engine.wanted)
            token_ids += answers[f"tokens of step {step}"].tolist()
    return engine.answer(cache, **answers)


def _token_ids(name: str, got: Any) -> np.ndarray:
    if not isinstance(got, list | tuple):
        raise InputError(f"{name} returned no list", got=describe_value(got), expected="a list of token ids")
    return np.array([whole(f"a token of {name}", token) for token in got], np.int64)


def accept(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `accept` for every row of the case."""
    rows = zip(*_tensors(arrays, "drafts", "proposed", "wanted", "uniforms"), strict=True)
    got = [pair("accept", artifact.accept(*row), "number accepted", "token") for row in rows]
    columns = zip(("number accepted", "token"), zip(*got, strict=True), strict=True)
    return {name: np.array([whole(name, one) for one in column]) for name, column in columns}


# --- Task 7: the cost of a step ---------------------------------------------------------------------------------------


def step_cost(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `step_cost` for each call of the case."""
    answers: Arrays = {}
    for i, call in enumerate(decode_value(arrays["case"])["calls"]):
        config = artifact.TransformerConfig("a model", **call["config"])
        steps = [(new, cached) for new, cached in call["parts"]]
        with unchanged(parts=steps):
            cost = artifact.step_cost(config, steps, **call["options"])
        if missing := [name for name in COSTS if not hasattr(cost, name)]:
            got = f"{describe_value(cost)}, without {', '.join(missing)}"
            raise InputError("step_cost returned no StepCost", got=got, expected=f"StepCost({', '.join(COSTS)})")
        answers |= {f"{name} of call {i}": whole(name, getattr(cost, name)) for name in COSTS}
    return answers


def least_time(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `least_time` for each call of the case."""
    answers: Arrays = {}
    for i, call in enumerate(decode_value(arrays["case"])["calls"]):
        work, machine = artifact.StepCost(*call["work"]), artifact.Machine(*call["machine"])
        time_s, binds = pair("least_time", artifact.least_time(work, machine), "time_s", "binds")
        answers |= {f"time_s of call {i}": number("time_s", time_s), f"binds of call {i}": named("binds", binds, BINDS)}
    return answers
