"""Generators of lab 10's cases, oracles, and cases rendered as code.

`draw_…` returns the inputs of a case, `expect_…` what a right solution returns, `render_…` a public case as code to
paste into the notebook. Caches are replayed on lists of tokens, and passes on a model that attends pair by pair.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from mlsys_checks.sandboxed.kv_cache import BINDS, COSTS, STALE, VOCABULARY, PretendEngine, make_model, pretend_accept
from mlsys_checks.sandboxed.spec import Arrays, Case, Mismatch
from mlsys_checks.sandboxed.values import decode_value, encode_text, encode_value
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.logs import BrokenRuleError, require_form
from mlsys_lab.models.aging import AgingModel

Rng = np.random.Generator
HEAD_DIM = AgingModel().config.head_dim
CONTEXT = AgingModel().config.context
MAX_RECORDED = 60
"""Updates of one layer whose results a case asks for: an answer has at most 256 arrays."""
FAR = 2**53 + 2**31 - 4
"""From here on float64 cannot tell whole numbers apart, and int32 wraps after four of them."""
NUM_ROWS = 40
"""Steps of a case of `accept`."""


def _as_case(**case: Any) -> Arrays:
    return {"case": encode_value(case)}


# --- Scripts of calls on a cache --------------------------------------------------------------------------------------


def _draw_script(rng: Rng, p: Mapping[str, Any], capacity: int, chunk: int | None) -> list[Any]:
    """Draw calls on a cache with rows of `capacity` tokens, or on a ring for passes of up to `chunk` tokens.

    A pass is ["feed", [[sequence, number of tokens], …]]; "fail" is one that is not counted, "feed_other" one on
    another cache. `full`: all rows are taken at first. `fill`: passes of `longest` tokens only, if 2 on new sequences.
    `turnover`: the oldest sequence stays, while sequences of other rows come and go.
    """
    num_started, num_recorded = p["rows"] if p.get("full") else 0, 0
    lengths = dict.fromkeys(range(num_started), 0)
    removable: dict[int, int] = {}  # tokens that may be truncated from a ring
    script: list[Any] = [["start"] for _ in lengths]
    while len(script) < p["calls"] and num_recorded < MAX_RECORDED:
        room = {s: min(capacity - length, p["longest"]) for s, length in lengths.items() if length < capacity}
        call = "feed" if p.get("fill") else rng.choice([*["feed"] * 6, "start", "start", "drop", "truncate", "fail"])
        call = ("start", "feed", "feed", "drop")[len(script) % 4] if p.get("turnover") else call
        if not lengths or (call == "start" and len(lengths) < p["rows"]):
            script.append(["start"])
            lengths[num_started], num_started = 0, num_started + 1
        elif call == "drop" or not room:
            gone = int(rng.choice([*lengths][p.get("turnover", 0) :]))
            script.append(["drop", gone])
            del lengths[gone]
            removable.pop(gone, None)
        elif call == "truncate":
            sequence = int(rng.choice([*lengths]))
            most = lengths[sequence] if chunk is None else removable.pop(sequence, 0)
            lengths[sequence] -= int(rng.integers(0, most + 1))
            script.append(["truncate", sequence, lengths[sequence]])
        elif call in ("feed", "fail"):
            count = 1 if p.get("fill") else int(rng.integers(1, len(room) + 1))
            sequences = rng.permutation([*room])[:count].tolist()
            single = rng.random() < 0.4
            fed = [[s, room[s] if p.get("fill") else 1 if single else _draw_edge(rng, room[s])] for s in sequences]
            other = call == "fail" and rng.random() < 0.3 and p.get("others")
            script.append(["feed_other" if other else str(call), fed])
            for s, n in fed:
                removable[s] = n if call == "feed" else 0
                lengths[s] += n if call == "feed" else 0
            num_recorded += len(fed) if call == "feed" and not p.get("fill") else 0
            if p.get("fill") == 2 and len(script) < p["calls"] - 3:
                script.append(["drop", fed[0][0]])
                del lengths[fed[0][0]]
    return script


def _draw_edge(rng: Rng, most: int) -> int:
    """Draw a number from 1 to `most`, often `most`."""
    return most if rng.random() < 0.3 else int(rng.integers(1, most + 1))


class _Sequences:
    """Sequences of a script: a list of whatever stands for each token."""

    def __init__(self) -> None:
        self.kept: dict[int, list[Any]] = {}
        self.num_started = 0

    def start(self) -> int:
        self.kept[self.num_started] = []
        self.num_started += 1
        return self.num_started - 1

    def drop(self, sequence: int) -> None:
        del self.kept[sequence]

    def truncate(self, sequence: int, length: int) -> None:
        del self.kept[sequence][length:]

    def length(self, sequence: int) -> int:
        return len(self.kept[sequence])

    def advance(self, sequence: int, num_tokens: int) -> None:
        self.kept[sequence] += [None] * num_tokens

    def follow(self, script: Sequence[Any]) -> Iterator[Any]:
        """Make all calls but passes, which are yielded."""
        for call, *arguments in script:
            if call in ("start", "drop", "truncate"):
                getattr(self, call)(*arguments)
            elif call == "feed":
                yield arguments


def draw_updates(rng: Rng, case: Case) -> Arrays:
    """Draw a script, keys and values of all tokens, and the sizes of the cache."""
    p = case.params
    heads = int(rng.choice([1, 2, 4])) if "kv_heads" not in p else p["kv_heads"]
    model, cache = {"n_layers": p["n_layers"], "kv_heads": heads}, {"sequences": p["rows"]}
    capacity = p.get("capacity", 10**6)
    if "window" in p:
        model["window"], cache["chunk"] = p["window"], p["longest"]
    else:
        cache["capacity"] = capacity
    script = _draw_script(rng, p, capacity, cache.get("chunk"))
    passes = [call[1] for call in script if call[0] == "feed"]
    shape = (p["n_layers"], heads, sum(n for fed in passes for _, n in fed), HEAD_DIM)
    dtype = np.float32 if p.get("single") else np.float64
    drawn = {name: rng.standard_normal(shape).astype(dtype) for name in "kv"}
    recorded = len(passes) - 1 if p.get("fill") else 0
    return _as_case(model=model, cache=cache, script=script, recorded=recorded) | drawn


def expect_updates(arrays: Arrays) -> Arrays:
    """Return all tokens that a sequence has, or those that the first new one sees in a window and the new ones."""
    case, sequences, first, answers = decode_value(arrays["case"]), _Sequences(), 0, Arrays()
    window = case["model"].get("window", 10**6)
    for number, (fed,) in enumerate(sequences.follow(case["script"])):
        for sequence, count in fed:
            columns = sequences.kept[sequence]
            oldest = max(0, len(columns) - window + 1)
            columns += range(first, first + count)
            first += count
            where = f"in pass {number}, sequence {sequence}"
            if number >= case["recorded"]:
                shown = np.array(columns[oldest:])
                at = np.arange(oldest, len(columns))
                answers[f"positions {where}"] = np.tile(at, (case["model"]["n_layers"], 1))
                answers |= {f"{name} {where}": arrays[x][:, :, shown] for name, x in (("keys", "k"), ("values", "v"))}
    return answers | {name: arrays[name] for name in "kv"}


def compare_updates(got: Arrays, expected: Arrays) -> Mismatch | None:
    """Compare what `update` returned pass by pass; say whose keys or values stand where others belong."""
    right = {name: x for name, x in expected.items() if name not in ("k", "v")}
    for name, want in right.items():
        found = got.get(name)
        mismatch = close({name: found} if found is not None else {}, {name: want})
        if mismatch is None or found is None or found.dtype != want.dtype:
            pass
        elif name.startswith("positions"):
            shown = (str(x[0].tolist() if x.ndim == 2 else x.tolist())[:90] for x in (found, want))
            return Mismatch(f"update returned the wrong {name}", *shown)
        elif found.shape == want.shape:
            layer, head, at = (int(i) for i in np.argwhere((found != want).any(-1))[0])
            what = f"update returned wrong {name}: layer {layer}, KV head {head}, entry {at} in the order of positions"
            return Mismatch(what, *(_identify(x[layer, head, at], expected) for x in (found, want)))
        if mismatch is not None:
            return mismatch
    return close(got, right)


def _identify(numbers: np.ndarray, given: Arrays) -> str:
    """Say which token's key or value these numbers are."""
    if np.isnan(numbers).any():
        return "NaN: the memory of k or v, which the caller has used for other numbers since"
    for name, kind in (("k", "key"), ("v", "value")):
        if len(found := np.argwhere((given[name] == numbers).all(-1))):
            layer, head, token = found[0].tolist()
            return f"the {kind} of token {token} of all that are fed, from 0; layer {layer}, KV head {head}"
    known = {STALE: "what a pass that was not counted left behind", 0.0: "zeros: memory that was never written"}
    return known.get(float(numbers[0]) if (numbers == numbers[0]).all() else np.nan, str(numbers))


FEED = """k, v = map(torch.from_numpy, (given["k"], given["v"]))  # (layers, KV heads, tokens, head dim)
num_fed = 0
def feed(fed, cache, is_counted=True):
    global num_fed
    for layer in range(len(k)):
        first = num_fed
        for sequence, count in fed:
            new = [x[layer, :, first : first + count].clone() for x in (k, v)]
            if not is_counted: new = [torch.full_like(x, {stale}) for x in new]
            keys, values, positions = cache.update(layer, sequence, *new)
            first += count
            if layer == 0: print(sequence, positions.tolist(), keys.shape)
    for sequence, count in fed * is_counted:
        cache.advance(sequence, count)
        num_fed += count"""


def _render_calls(script: Sequence[Any], passes: Mapping[str, Any]) -> list[str]:
    """Render calls; `passes` has a function for each kind of pass."""
    lines = []
    for call, *arguments in script:
        if call in passes:
            lines.append(passes[call](*arguments))
        else:
            lines.append(f"cache.{call}({', '.join(map(str, arguments))})")
    return [line.replace("cache.start()", "_ = cache.start()") for line in lines]


def _render_model(case: Mapping[str, Any], *weights: str) -> str:
    return f"AgingModel({', '.join([*weights, *(f'{name}={x!r}' for name, x in case['model'].items())])})"


def _render_cache(case: Mapping[str, Any]) -> str:
    kind = "SlidingWindow" if "chunk" in case["cache"] else "Contiguous"
    return f"{kind}(model, {', '.join(f'{name}={value}' for name, value in case['cache'].items())})"


def render_updates(arrays: Arrays) -> str:
    """Render a script with a function that makes a pass."""
    case = decode_value(arrays["case"])
    single, made = ".float()" if arrays["k"].dtype == np.float32 else "", _render_cache(case)
    lines = [FEED.format(stale=STALE), f"model = {_render_model(case)}{single}", f"cache, other = {made}, {made}"]
    lines += [f"for _ in range({case['cache']['sequences']}): _ = other.start()"]
    passes = {
        "feed": lambda fed: f"feed({fed}, cache)",
        "fail": lambda fed: f"feed({fed}, cache, is_counted=False)",
        "feed_other": lambda fed: f"feed({[[i, n] for i, (_, n) in enumerate(fed)]}, other, is_counted=False)",
    }
    return "\n".join([*lines, *_render_calls(case["script"], passes)])


# --- Positions and attention ------------------------------------------------------------------------------------------


def draw_pack(rng: Rng, case: Case) -> Arrays:
    """Draw lengths of sequences, and new tokens for some of them in any order."""
    p = case.params
    lengths = [0 if rng.random() < 0.3 else int(rng.integers(0, 20)) for _ in range(p["sequences"])]
    lengths[0] += FAR if p.get("far") else 0
    fed = rng.permutation(len(lengths))[: max(1, p["fed"] * len(lengths) // 4)].tolist()
    return _as_case(lengths=lengths, new=[[s, draw_tokens(rng, _draw_edge(rng, p["longest"]))] for s in fed])


def draw_tokens(rng: Rng, count: int) -> list[int]:
    """Draw token ids."""
    return [int(token) for token in rng.integers(0, VOCABULARY, count)]


def expect_pack(arrays: Arrays) -> Arrays:
    """Return tokens, positions and last rows, sequence by sequence."""
    case, tokens, positions, last = decode_value(arrays["case"]), list[int](), list[int](), list[int]()
    for sequence, new in case["new"]:
        tokens += new
        positions += range(case["lengths"][sequence], case["lengths"][sequence] + len(new))
        last.append(len(tokens) - 1)
    return {"tokens": np.array([tokens]), "positions": np.array([positions]), "last": np.array(last)}


def render_pack(arrays: Arrays) -> str:
    """Render the call."""
    case = decode_value(arrays["case"])
    lines = [f"cache = Cache({len(case['lengths'])})", f"for length in {case['lengths']}:"]
    return "\n".join([*lines, "    cache.advance(cache.start(), length)", f"pack(cache, {dict(case['new'])})"])


def draw_positions(rng: Rng, case: Case) -> Arrays:
    """Draw positions of queries and keys: of a chunk, or some of them in any order; near 0 or very large."""
    p = case.params
    end = p["cached"] + p["new"]
    first = int(rng.integers(0, p["cached"] + 1)) if rng.random() < 0.4 else 0
    keys, queries = np.arange(first, end), np.arange(p["cached"], end)
    if p.get("disorder", rng.random() < 0.7):
        keys = rng.permutation(keys)
        queries = rng.permutation(queries)[: int(rng.integers(1, len(queries) + 1))]
    offset = FAR if p.get("far") else 0
    window = {"window": np.array(p["window"])} if "window" in p else {}
    return {"query_positions": queries + offset, "key_positions": keys + offset, **window}


def expect_mask(arrays: Arrays) -> Arrays:
    """Return which keys each query sees, pair by pair."""
    queries, keys = arrays["query_positions"].tolist(), arrays["key_positions"].tolist()
    window = int(arrays["window"]) if "window" in arrays else 10**18
    mask = np.array([[query - window < key <= query for key in keys] for query in queries])
    return {"mask": mask, **{name: arrays[name] for name in ("query_positions", "key_positions")}}


def compare_mask(got: Arrays, expected: Arrays) -> Mismatch | None:
    """Name the positions of the first wrong pair."""
    mismatch, want = close(got, {"mask": expected["mask"]}), expected["mask"]
    if mismatch is None or mismatch.is_form:
        return mismatch
    wrong = np.argwhere(got["mask"] != want)
    query, key = expected["query_positions"][wrong[0][0]], expected["key_positions"][wrong[0][1]]
    what = f"{len(wrong)} of {want.size} pairs are wrong, first the query at position {query}, the key at {key}"
    return Mismatch(what, *(str(mask[tuple(wrong[0])]) for mask in (got["mask"], want)))


def draw_attention(rng: Rng, case: Case) -> Arrays:
    """Draw queries, keys, values and a mask: causal, or any with which every query sees something.

    `size`: of queries, so that scores are large. `below`: scores far below 0, those of a hidden key aside. `zeros`: a
    query and a key of zeros.
    """
    p = case.params
    t, s, h = p["T"], p["T"] + p["cached"], p["H"]
    mask = np.arange(s) <= np.arange(s - t, s)[:, None]
    if s > 1 and p.get("any", rng.random() < 0.5):
        mask = rng.random((t, s)) < 0.5
        seen, steps = rng.integers(1, s, (2, t))
        mask[np.arange(t), seen] = True
        mask[np.arange(t), (seen + steps) % s] = False
    drawn = {"q": rng.standard_normal((p["K"] * p["G"], t, h)) * p.get("size", 1.0)}
    drawn |= {name: rng.standard_normal((p["K"], s, h)) for name in ("keys", "values")}
    if p.get("below"):
        drawn |= {"q": -3e4 * np.abs(drawn["q"]), "keys": np.abs(drawn["keys"])}
        drawn["keys"][:, 0] *= 1e-3
        mask[:-1, 0] = False
        mask[:, -1] = True
    if p.get("zeros"):
        drawn["q"][0], drawn["keys"][:, -1] = 0.0, 0.0
    dtype = np.float32 if p.get("single") else np.float64
    return {name: x.astype(dtype) for name, x in drawn.items()} | {"mask": mask}


def expect_attention(arrays: Arrays) -> Arrays:
    """Return attention, query by query in float64."""
    q, keys, values = arrays["q"], arrays["keys"], arrays["values"]
    output, group = np.empty(q.shape, q.dtype), len(q) // len(keys)
    for n in range(len(q)):
        for t, seen in enumerate(arrays["mask"]):
            output[n, t] = attend_to(q[n, t], keys[n // group, seen], values[n // group, seen])
    return {"output": output}


def attend_to(q: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Attention of a query (..., H) over keys and values (S, ..., H), in float64."""
    scores = (keys.astype(np.float64) * q).sum(-1) / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(0))
    return np.asarray((weights[..., None] * values).sum(0) / weights.sum(0)[..., None])


# --- Passes of a model ------------------------------------------------------------------------------------------------


def draw_passes(rng: Rng, case: Case) -> Arrays:
    """Draw a script with tokens, a model whose logits are clearly apart, and the sizes of a cache."""
    p = case.params
    heads = int(rng.choice([1, 2, 4])) if p.get("grouped") else 4
    model: dict[str, Any] = {"n_layers": p["n_layers"], "kv_heads": heads}
    model |= {"position": "learned"} if p.get("learned") else {}
    cache = {"sequences": p["rows"], "capacity": min(p["capacity"], CONTEXT)}
    if "window" in p:
        model["window"] = p["window"]
        cache = {"sequences": p["rows"], "chunk": p["longest"]} if p["ring"] else cache
    script = _draw_script(rng, p, min(p["capacity"], CONTEXT), cache.get("chunk"))
    for call in script:
        if call[0] in ("feed", "fail"):
            call[1] = [[sequence, draw_tokens(rng, count)] for sequence, count in call[1]]
        if call[0] == "feed":
            call.append(bool(rng.random() < 0.4))
    weights = [
        1 + 0.2 * rng.standard_normal(x.numel())
        if x.ndim == 1
        else rng.standard_normal(x.numel()) * 1.5 / x.shape[1] ** 0.5
        for x in AgingModel(**model).parameters()
    ]
    return _as_case(model=model, cache=cache, script=script) | {"weights": np.concatenate(weights)}


@torch.no_grad()
def expect_passes(arrays: Arrays) -> Arrays:
    """Return the logits of each pass, from lists with each token's keys and values of its own pass."""
    case, sequences, answers = decode_value(arrays["case"]), _Sequences(), Arrays()
    model = make_model(case, arrays)
    for fed, every_token in sequences.follow(case["script"]):
        logits = _feed(model, sequences.kept, fed)
        last = np.cumsum([len(tokens) for _, tokens in fed]) - 1
        answers[f"tokens computed by pass {len(answers) // 2}"] = np.array(len(logits))
        answers[f"logits of pass {len(answers) // 2}"] = logits if every_token else logits[last]
    return answers | {"lengths": np.array([len(tokens) for tokens in sequences.kept.values()], np.int64)}


def _feed(model: Any, kept: dict[int, list[Any]], fed: Sequence[Any]) -> np.ndarray:
    """Return logits after each new token of a pass, (Q, V); `kept` has a token's key and value by layer."""
    owners = [sequence for sequence, tokens in fed for _ in tokens]
    positions = [len(kept[sequence]) + i for sequence, tokens in fed for i in range(len(tokens))]
    for sequence in owners:
        kept[sequence].append({})

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        output, group = np.empty(q.shape), q.shape[1] // k.shape[1]
        pairs = list(zip(owners, positions, strict=True))
        queries, keys, values = (x[0].numpy().repeat(n, 0) for x, n in ((q, 1), (k, group), (v, group)))
        for i, (sequence, position) in enumerate(pairs):
            kept[sequence][position][layer] = (keys[:, i], values[:, i])
        for i, (sequence, position) in enumerate(pairs):
            oldest = max(0, position + 1 - (model.window or CONTEXT))
            seen = [token[layer] for token in kept[sequence][oldest : position + 1]]
            output[0, :, i] = attend_to(queries[:, i], *map(np.stack, zip(*seen, strict=True)))
        return torch.from_numpy(output)

    tokens = [token for _, new in fed for token in new]
    logits = model(torch.tensor([tokens]), positions=torch.tensor([positions]), attend=attend)
    return np.asarray(logits[0])


def compare_logits(got: Arrays, expected: Arrays) -> Mismatch | None:
    """Name the first pass with wrong logits, and its wrong rows."""
    for name, want in expected.items():
        mismatch = close({name: got[name]} if name in got else got, {name: want})
        if mismatch is not None and not mismatch.is_form and name in got and want.ndim == 2:
            rows = [i for i, row in enumerate(want) if close({"": got[name][i]}, {"": row})]
            what = f"the {name} are wrong in rows {rows} of {len(want)}; those of earlier passes are right"
            return Mismatch(what, mismatch.got, mismatch.expected)
        if mismatch is not None:
            return mismatch
    return close(got, expected)


FAIL = """def fail(*_): raise MemoryError("a pass that fails behind its last layer")
hook = model.norm.register_forward_pre_hook(fail)
try: failed = extend(model, cache, {new})
except MemoryError: hook.remove()"""


def render_passes(arrays: Arrays) -> str:
    """Render a script of passes."""
    case = decode_value(arrays["case"])
    passes = {
        "feed": lambda fed, every: f"extend(model, cache, {dict(fed)}{', every_token=True' * every})",
        "fail": lambda fed: FAIL.format(new=dict(fed)),
    }
    made = ["model = " + _render_model(case, 'torch.from_numpy(given["weights"])'), f"cache = {_render_cache(case)}"]
    return "\n".join([*made, *_render_calls(case["script"], passes)])


# --- Functions that call `extend` -------------------------------------------------------------------------------------


def compare_passes(got: Arrays, expected: Arrays) -> Mismatch | None:
    """Compare the logged passes one by one, then what is left in the cache, then the arrays."""
    form = {"passes": [[(range(10**6), range(10**6), [range(VOCABULARY)])]], "left": [(range(10**6), range(10**6))]}
    try:
        log, want = decode_value(got["log"]), decode_value(expected["log"])
        require_form(log, form)
    except (KeyError, ValueError, RecursionError):
        return Mismatch("the log cannot be read")
    except BrokenRuleError as broken:
        return broken.mismatch
    for number in range(max(len(log["passes"]), len(want["passes"]))):
        found, right = (_render_pass(one["passes"], number) for one in (log, want))
        if found != right:
            return Mismatch(f"pass {number} (a call of extend) differs", found, right)
    if log["left"] != want["left"]:
        shown = (", ".join(f"{n} tokens of sequence {s}" for s, n in one["left"]) or "nothing" for one in (log, want))
        return Mismatch("the cache does not hold at the end what it should", *shown)
    return close(*({name: x for name, x in arrays.items() if name != "log"} for arrays in (got, expected)))


def _render_pass(passes: Sequence[Any], number: int) -> str:
    if number >= len(passes):
        return f"no pass: there are {len(passes)}"
    return ", ".join(f"tokens {new} after {cached} cached ones of sequence {s}" for s, cached, new in passes[number])


def draw_prefill(rng: Rng, case: Case) -> Arrays:
    """Draw a prompt, how much of it is cached, and a chunk size."""
    p = case.params
    prompt = draw_tokens(rng, p["tokens"])
    cached = {"all": len(prompt), "but one": len(prompt) - 1}.get(p.get("held", ""), 0)
    if p.get("held") == "some":
        cached = int(rng.integers(0, len(prompt)))
    return _as_case(prompt=prompt, cached=cached, chunk=p["chunk"], following=int(rng.integers(VOCABULARY)))


def expect_prefill(arrays: Arrays) -> Arrays:
    """Make the passes of `prefill`, and those in between."""
    case, engine, cache, answers = decode_value(arrays["case"]), PretendEngine(), _Sequences(), Arrays()
    prompt, sequence = case["prompt"], cache.start()
    if case["cached"]:
        engine.extend(None, cache, {sequence: prompt[: case["cached"]]})
    for call in ("first", "second"):
        cache.truncate(sequence, len(prompt) - 1)
        while rest := prompt[cache.length(sequence) :]:
            logits = engine.extend(None, cache, {sequence: rest[: case["chunk"]]})
        answers[f"logits of the {call} call"] = logits[-1].numpy()
        engine.extend(None, cache, {sequence: [case["following"]]})
        cache.truncate(sequence, len(prompt))
    return _answer(engine, cache, answers)


def _answer(engine: PretendEngine, cache: _Sequences, answers: Arrays) -> Arrays:
    left = [[sequence, len(tokens)] for sequence, tokens in sorted(cache.kept.items())]
    return {"log": encode_value({"passes": engine.passes, "left": left}), **answers}


def render_prefill(arrays: Arrays) -> str:
    """Render the calls on a real model."""
    case = decode_value(arrays["case"])
    prompt, lines = case["prompt"], ["model, sequence = AgingModel(), 0"]
    lines += [f"cache = Contiguous(model, sequences=1, capacity={len(prompt) + 1})", "_ = cache.start()"]
    if case["cached"]:
        lines += [f"_ = extend(model, cache, {{sequence: {prompt[: case['cached']]}}})"]
    call = f"print(prefill(model, cache, sequence, {prompt}, {case['chunk']}).shape, cache.length(sequence))"
    between = f"_ = extend(model, cache, {{sequence: [{case['following']}]}})"
    return "\n".join([*lines, call, between, f"cache.truncate(sequence, {len(prompt)})", call])


def draw_decode(rng: Rng, case: Case) -> Arrays:
    """Draw two prompts, of which the first is given twice, and tokens of sequences that stay."""
    p = case.params
    prompts = [draw_tokens(rng, n) for n in (p["tokens"], max(1, p["tokens"] - 2))]
    prompts[1][0] = (prompts[0][0] + 1) % VOCABULARY  # nothing of it is cached
    cached = [0, int(rng.integers(0, p["tokens"])), p["tokens"]][p["held"]]
    others = [draw_tokens(rng, int(rng.integers(1, 6))) for _ in range(p["others"])]
    sizes = {name: p[name] for name in ("chunk", "max_tokens")}
    return _as_case(prompts=[*prompts, prompts[0]], cached=cached, others=others, **sizes)


def expect_decode(arrays: Arrays) -> Arrays:
    """Make the passes of `greedy_decode`."""
    case, engine, cache, answers = decode_value(arrays["case"]), PretendEngine(), _Sequences(), Arrays()
    prefix = case["prompts"][0][: case["cached"]]
    for tokens in case["others"]:
        engine.extend(None, cache, {cache.start(): tokens})
    for call, prompt in enumerate(case["prompts"]):
        sequence = cache.start()
        if prefix and prompt[: len(prefix)] == prefix:
            engine.kept[sequence] = [(token, -1) for token in prefix]
            cache.advance(sequence, len(prefix))
        cache.truncate(sequence, len(prompt) - 1)  # all of it may be cached
        new, output = list(prompt[cache.length(sequence) :]), list[int]()
        while len(output) < case["max_tokens"]:
            logits = engine.extend(None, cache, {sequence: new[: case["chunk"]]})
            del new[: case["chunk"]]
            if not new:
                output.append(int(logits[0].argmax()))
                new = output[-1:]
        answers[f"output of call {call}"] = np.array(output)
        cache.drop(sequence)
    return _answer(engine, cache, answers)


def render_decode(arrays: Arrays) -> str:
    """Render the calls on a real model, without what the cache holds of a prompt."""
    case = decode_value(arrays["case"])
    longest = max(len(tokens) for tokens in (*case["prompts"], *case["others"])) + case["max_tokens"]
    lines = ["model = AgingModel()"]
    lines += [f"cache = Contiguous(model, sequences={len(case['others']) + 1}, capacity={longest})"]
    lines += [f"_ = extend(model, cache, {{cache.start(): {tokens}}})" for tokens in case["others"]]
    tail = f"{case['max_tokens']}, {case['chunk']})"
    lines += [f"print(greedy_decode(model, cache, {prompt}, {tail})" for prompt in case["prompts"]]
    held = [f"# in the check, the cache holds the first {case['cached']} tokens of the first prompt already"]
    return "\n".join([*held * bool(case["cached"]), *lines, "print(cache.sequences)"])


def draw_steps(rng: Rng, case: Case) -> Arrays:
    """Draw tokens of a sequence, drafts for some steps, and tokens of sequences that stay."""
    p = case.params
    others = [draw_tokens(rng, int(rng.integers(1, 6))) for _ in range(p["others"])]
    proposed = _draw_distributions(rng, p["steps"], p["k"], VOCABULARY)
    drawn = {"drafts": _draw_from(rng, proposed), "proposed": proposed}
    uniforms = rng.random((p["steps"], p["k"] + 1))
    return _as_case(token_ids=draw_tokens(rng, p["tokens"]), others=others) | drawn | {"uniforms": uniforms}


def expect_steps(arrays: Arrays) -> Arrays:
    """Make the passes of `speculative_step`, with the made-up rule."""
    case, engine, cache, answers = decode_value(arrays["case"]), PretendEngine(), _Sequences(), Arrays()
    for tokens in case["others"]:
        engine.extend(None, cache, {cache.start(): tokens})
    token_ids, sequence = case["token_ids"], cache.start()
    if token_ids[:-1]:
        engine.extend(None, cache, {sequence: token_ids[:-1]})
    for step, drafts in enumerate(arrays["drafts"]):
        logits = engine.extend(None, cache, {sequence: [token_ids[-1], *drafts.tolist()]}, every_token=True).numpy()
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        wanted = weights / weights.sum(-1, keepdims=True)
        num, token = pretend_accept(drafts, arrays["proposed"][step], wanted, arrays["uniforms"][step])
        answers[f"wanted (p) in step {step}"] = wanted.astype(np.float32)
        token_ids += [*drafts[:num].tolist(), token]
        cache.truncate(sequence, len(token_ids) - 1)
        answers[f"tokens of step {step}"] = np.array(token_ids[-num - 1 :])
    return _answer(engine, cache, answers)


def render_steps(arrays: Arrays) -> str:
    """Render the calls on a real model."""
    case = decode_value(arrays["case"])
    steps, k = arrays["drafts"].shape
    capacity = len(case["token_ids"]) + steps * (k + 2) + 6
    lines = ["model = AgingModel()", f"token_ids = {case['token_ids']}"]
    lines += [f"cache = Contiguous(model, sequences={len(case['others']) + 1}, capacity={capacity})"]
    lines += [f"_ = extend(model, cache, {{cache.start(): {tokens}}})" for tokens in case["others"]]
    lines += ["sequence = cache.start()"]
    lines += ["_ = extend(model, cache, {sequence: token_ids[:-1]})"] * bool(case["token_ids"][:-1])
    lines += ['steps = zip(*(torch.from_numpy(given[name]) for name in ("drafts", "proposed", "uniforms")))']
    lines += ["for drafts, proposed, uniforms in steps:"]
    lines += ["    token_ids += speculative_step(model, cache, sequence, token_ids, drafts, proposed, uniforms)"]
    return "\n".join([*lines, "    print(token_ids, cache.length(sequence))"])


# --- accept -----------------------------------------------------------------------------------------------------------


def _draw_distributions(rng: Rng, *shape: int) -> np.ndarray:
    weights = np.exp(rng.standard_normal(shape))
    return np.asarray(weights / weights.sum(-1, keepdims=True))


def _draw_from(rng: Rng, distributions: np.ndarray) -> np.ndarray:
    below = distributions.cumsum(-1) < rng.random((*distributions.shape[:-1], 1))
    return np.asarray(below.sum(-1).clip(max=distributions.shape[-1] - 1))


def draw_accept(rng: Rng, case: Case) -> Arrays:
    """Draw many steps of k drafts over V tokens; `kind` names what is special about their distributions."""
    k, v, kind = case.params["k"], case.params["V"], case.params.get("kind")
    wanted, proposed = _draw_distributions(rng, NUM_ROWS, k + 1, v), _draw_distributions(rng, NUM_ROWS, k, v)
    uniforms = rng.random((NUM_ROWS, k + 1))
    if kind == "equal":
        proposed = wanted[:, :k].copy()
        uniforms[:, :k][rng.random((NUM_ROWS, k)) < 0.5] = 1 - 1e-12
    if kind == "nearly equal":  # the residual is small, but more than rounding leaves
        apart = 10.0 ** -rng.uniform(3, 7, (NUM_ROWS, 1, 1))
        proposed = wanted[:, :k] * (1 + apart * rng.standard_normal((NUM_ROWS, k, v)))
        proposed /= proposed.sum(-1, keepdims=True)
        uniforms[np.arange(NUM_ROWS), rng.integers(0, k, NUM_ROWS)] = 1 - 1e-9
    if kind == "zeros":
        for some in (wanted, proposed):
            some *= rng.random(some.shape) < 0.6
            some[..., 0] += 1e-3
            some /= some.sum(-1, keepdims=True)
        uniforms[rng.random(uniforms.shape) < 0.5] = 0.0
    if kind == "float32":  # rows do not quite sum to 1, and the last token has no probability
        wanted[..., -1] = 0.0
        wanted = (wanted / wanted.sum(-1, keepdims=True)).astype(np.float32).astype(np.float64)
        proposed = proposed.astype(np.float32).astype(np.float64)
        uniforms[:, -1] = 1 - 1e-9
    drafts = _draw_from(rng, proposed)
    if kind == "certain":
        drafts = rng.integers(0, v, (NUM_ROWS, k))
        proposed = np.eye(v)[drafts]
    if kind == "rare":  # drafts that drafter and model nearly never generate
        drafts = rng.integers(0, v, (NUM_ROWS, k))
        rare = 10.0 ** -rng.uniform(9, 12, drafts.shape)
        for some in (wanted[:, :k], proposed):
            np.put_along_axis(some, drafts[..., None], rare[..., None] * rng.uniform(0.5, 2, (NUM_ROWS, k, 1)), axis=-1)
            some /= some.sum(-1, keepdims=True)
    if kind == "no residual":
        proposed = wanted[:, :k] * (1 + 1e-12)
        uniforms[rng.random(NUM_ROWS) < 0.5, rng.integers(0, k)] = 1 - 1e-14
    if kind == "late":  # the last draft is rejected
        uniforms *= np.array([0.05] * (k - 1) + [1.0, 1.0])
        uniforms[:, k - 1] = 1 - 1e-9
    return {"drafts": drafts, "proposed": proposed, "wanted": wanted, "uniforms": uniforms}


def expect_accept(arrays: Arrays) -> Arrays:
    """Apply Leviathan's algorithm 1 in exact fractions."""
    rows = zip(*(arrays[name] for name in ("drafts", "proposed", "wanted", "uniforms")), strict=True)
    accepted = np.array([_accept_exactly(drafts.tolist(), *given) for drafts, *given in rows])
    return {"number accepted": accepted[:, 0], "token": accepted[:, 1]}


def _accept_exactly(drafts: list[int], proposed: Any, wanted: Any, uniforms: Any) -> tuple[int, int]:
    p, q = ([[Fraction(x) for x in row] for row in rows.tolist()] for rows in (wanted, proposed))
    u = [Fraction(x) for x in uniforms.tolist()]
    num = 0
    while num < len(drafts) and u[num] * q[num][drafts[num]] < p[num][drafts[num]]:
        num += 1
    weights = p[num]
    if num < len(drafts):
        weights = [max(Fraction(0), a - b) for a, b in zip(p[num], q[num], strict=True)]
    weights = weights if any(weights) else p[num]
    left = u[-1] * sum(weights)
    for token, weight in enumerate(weights):
        left -= weight
        if left < 0:
            return num, token
    raise AssertionError("a number below 1 is below the sum")


def compare_rows(got: Arrays, expected: Arrays) -> Mismatch | None:
    """Name the first wrong row, and how it differs."""
    mismatch = close(got, expected)
    if mismatch is None or mismatch.is_form or got.keys() != expected.keys():
        return mismatch
    found, right = (np.stack([*arrays.values()], 1) for arrays in (got, expected))  # (rows, 2)
    row = int((wrong := (found != right).any(1)).argmax())
    shown = (f"{num} accepted, then token {token}" for num, token in (found[row], right[row]))
    return Mismatch(f"accept is wrong for {int(wrong.sum())} of {len(right)} rows, first for row {row}", *shown)


# --- The cost of a step -----------------------------------------------------------------------------------------------

SIZES = ("n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim", "d_ff", "vocab_size")


def draw_costs(rng: Rng, case: Case) -> Arrays:
    """Draw a step of a model with grouped heads, and the same step with one thing at its least or changed."""
    p = case.params
    wide = p.get("times", 1)
    kv_heads, group, half, layers = (int(rng.integers(a, b)) for a, b in ((2, 5), (2, 4), (3, 9), (2, 6)))
    width, hidden, words = (int(rng.integers(a * wide, b * wide)) for a, b in ((20, 60), (61, 150), (151, 400)))
    sizes = dict(zip(SIZES, (layers, width, kv_heads * group, kv_heads, 2 * half, hidden, words), strict=True))
    config = sizes | {"context": 4096, "tied": bool(p.get("tied", rng.random() < 0.5))}
    steps = [[_draw_edge(rng, p["new"]), int(rng.integers(0, p["cached"] + 1))] for _ in range(p["parts"])]
    widths = {"weight_bytes": int(rng.choice([1, 2, 4])), "cache_bytes": int(rng.choice([1, 2, 4]))}
    base: dict[str, Any] = {"config": config, "parts": steps, "options": widths | {"window": p["window"] or None}}
    least = dict.fromkeys(SIZES, 1) | {"n_heads": kv_heads, "head_dim": 2}
    calls = [{**base, "options": {}}, base]
    calls += [{**base, "config": config | {name: size}} for name, size in least.items()]
    calls += [{**base, "config": config | {"tied": not config["tied"]}}]
    calls += [{**base, "options": {**base["options"], name: x}} for name, x in (("window", 1), ("cache_bytes", 8))]
    parts = [[1, cached] for _, cached in steps], [[new, 0] for new, _ in steps]
    calls += [{**base, "parts": part} for part in parts]
    return _as_case(calls=calls)


def expect_costs(arrays: Arrays) -> Arrays:
    """Return the cost of each call, from the weights of a real model and every pair of tokens."""
    answers: Arrays = {}
    for i, call in enumerate(decode_value(arrays["case"])["calls"]):
        cost = _count_cost(call["config"], call["parts"], **call["options"])
        answers |= {f"{name} of call {i}": np.array(n) for name, n in zip(COSTS, cost, strict=True)}
    return answers


def _count_cost(
    c: Mapping[str, Any], steps: Sequence[Any], weight_bytes: int = 2, cache_bytes: int = 2, window: int | None = None
) -> tuple[int, int, int, int]:
    shapes = {"query": (c["n_heads"] * c["head_dim"], c["d_model"]), "down": (c["d_model"], c["d_ff"])}
    shapes |= {name: (c["n_kv_heads"] * c["head_dim"], c["d_model"]) for name in ("key", "value")}
    shapes |= {"out": shapes["query"][::-1], "gate": shapes["down"][::-1], "up": shapes["down"][::-1]}
    block = sum(rows * columns for rows, columns in shapes.values())
    head, flops, read, written = c["vocab_size"] * c["d_model"], 0, 0, 0
    for new, cached in steps:
        seen = [range(max(0, at - (window or 10**9) + 1), at + 1) for at in range(cached, cached + new)]
        pairs = sum(len(keys) for keys in seen)
        flops += 2 * (c["n_layers"] * block * new + head) + 4 * c["n_layers"] * c["n_heads"] * c["head_dim"] * pairs
        read += len([at for at in range(cached) if at >= seen[0].start])
        written += new
    token = 2 * c["n_layers"] * c["n_kv_heads"] * c["head_dim"] * cache_bytes
    norms = (2 * c["n_layers"] + 1) * c["d_model"]
    return flops, weight_bytes * (c["n_layers"] * block + norms + head), read * token, written * token


def render_costs(arrays: Arrays) -> str:
    """Render the calls."""
    lines = []
    for i, call in enumerate(decode_value(arrays["case"])["calls"]):
        sizes, options = (", ".join(f"{name}={x}" for name, x in call[key].items()) for key in ("config", "options"))
        steps = [tuple(part) for part in call["parts"]]
        config = f'TransformerConfig("a model", {sizes})'
        lines.append(f"print({i}, step_cost({config}, {steps}{', ' * bool(options)}{options}))")
    return "\n".join(lines)


def draw_times(rng: Rng, case: Case) -> Arrays:
    """Draw costs and machines on which arithmetic or memory takes longer, and the same with one number changed."""
    p, calls = case.params, list[Any]()
    for _ in range(p["calls"]):
        work = [int(x) for x in rng.integers(1, 10 ** rng.integers(3, 15, 4) + 2)]
        times_s = rng.uniform(1e-4, 1e-2) * np.array([1.0, rng.uniform(1.05, 1.5)])
        compute_s, memory_s = rng.permutation(times_s)
        machine = [float(f"{work[0] / compute_s:.3g}"), float(f"{sum(work[1:]) / memory_s:.3g}")]
        calls += [{"work": work, "machine": machine}, {"work": work, "machine": [machine[0] / 8, machine[1]]}]
        calls += [{"work": work, "machine": [machine[0], machine[1] / 8]}, {"work": [0, *work[1:]], "machine": machine}]
    return _as_case(calls=calls)


def expect_times(arrays: Arrays) -> Arrays:
    """Return the longer of both times, and what it belongs to."""
    answers: Arrays = {}
    for i, call in enumerate(decode_value(arrays["case"])["calls"]):
        amounts = zip((call["work"][0], sum(call["work"][1:])), call["machine"], strict=True)
        times_s = [Fraction(amount) / Fraction(rate) for amount, rate in amounts]
        answers[f"time_s of call {i}"] = np.array(float(max(times_s)))
        answers[f"binds of call {i}"] = encode_text(BINDS[times_s.index(max(times_s))])
    return answers


def render_times(arrays: Arrays) -> str:
    """Render the calls."""
    calls = enumerate(decode_value(arrays["case"])["calls"])
    made = ((i, ", ".join(map(repr, call["work"])), ", ".join(map(repr, call["machine"]))) for i, call in calls)
    return "\n".join(f"print({i}, least_time(StepCost({work}), Machine({machine})))" for i, work, machine in made)
