"""Generators of lab 05's cases, oracles of its functions, and cases as code.

`draw_…` returns the calls of a case as `sandboxed.transformer_arithmetic` makes them. ORACLES has the right answer to
each function, from all of its arguments: loop nests that are run, the transformer of `oracle`, fractions.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from mlsys_checks.sandboxed import transformer_arithmetic as calls
from mlsys_checks.sandboxed.spec import Arrays, Case, Mismatch
from mlsys_checks.sandboxed.values import decode_value, encode_text, encode_value
from mlsys_checks.trusted.answers import LIKELY, agree, likely
from mlsys_checks.trusted.transformer_arithmetic import oracle
from mlsys_checks.trusted.transformer_arithmetic.oracle import FLAGS, META, Config, Product, fill_config, weights_of

Rng = np.random.Generator
Shapes = Sequence[Sequence[int]]
LAYER_NORMS = {"position": "learned", "norm": "layer", "activation": "gelu", **dict.fromkeys(FLAGS, True)}
KINDS: dict[str, dict[str, Any]] = {
    "gpt2": LAYER_NORMS,
    "layer norms": {"norm": "layer"},
    "llama": {"position": "rotary", "norm": "rms", "activation": "swiglu", **dict.fromkeys(FLAGS, False)},
    "small": {"position": "learned", "norm": "rms", "activation": "relu", **dict.fromkeys(FLAGS, False), "group": 1},
    "swiglu": {"norm": "rms", "activation": "swiglu"},
    "tied": {"norm": "rms", "activation": "swiglu", "tied": True, "qkv_bias": True, "mlp_bias": True},
    "any": {},
}
"""Choices and flags of a kind of model; those that it leaves open are drawn."""
CHOICES = {"position": ("learned", "rotary"), "norm": ("rms", "layer"), "activation": ("swiglu", "gelu", "relu")}
SIZES = ("n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim", "d_ff", "vocab_size", "context")
MOST_LOOPS = 3_000
"""Turns of a loop nest that is run to be counted."""


def draw_config(rng: Rng, p: Mapping[str, Any]) -> Config:
    """Draw a model of a kind: its sizes are params, its kind decides on some choices and flags and leaves others open.

    `even`: a number that divides the model's heads and widths.
    """
    kind, even = KINDS[p["kind"]], p.get("even", 1)
    drawn: dict[str, Any] = {name: options[rng.integers(len(options))] for name, options in CHOICES.items()}
    drawn |= {name: bool(rng.integers(2)) for name in FLAGS}
    heads = even * p["kv_heads"]
    config = fill_config(
        **{name: p[name] for name in ("n_layers", "head_dim", "context")},
        **{name: even * p[name] for name in ("d_model", "d_ff", "vocab_size")},
        n_heads=heads * kind.get("group", p["group"]),
        n_kv_heads=heads,
        **{**drawn, **{name: value for name, value in kind.items() if name != "group"}},
    )
    config["norm_bias"] &= config["norm"] == "layer"
    return config


def _vary(config: Config) -> Config:
    """Another model of the same name, for sequences as long: what is kept by name or by length is wrong for it."""
    return config | {name: config[name] + 1 for name in ("n_layers", "d_model", "head_dim", "d_ff", "vocab_size")}


def _as_inputs(
    asked: Sequence[tuple[Any, ...]],
    *,
    given: Sequence[tuple[Any, ...]] = (),
    config: Config | None = None,
    **more: Any,
) -> Arrays:
    """Inputs of a case. asked: function, arguments and, last, keyword arguments if there are any.

    given: functions and all of their arguments, whose answers the learner's code gets from the oracle.
    """
    configs = {} if config is None else {"config": config, "other": _vary(config)}
    case: dict[str, Any] = {"configs": configs, **more}
    distinct = {repr(one): one for one in asked}.values()
    case["calls"] = [
        (name, [arg for arg in args if not isinstance(arg, dict)], next((a for a in args if isinstance(a, dict)), {}))
        for name, *args in distinct
    ]
    unique = {repr(one): one for one in given}.values()
    quick = ORACLES | {"einsum_flops": lambda subscripts, shapes: count_nest(subscripts, shapes)[0]}
    case["given"] = [(name, args, quick[name](*_find(args, case))) for name, *args in unique]
    return {"case": encode_value(case)}


def _find(args: Sequence[Any], case: Mapping[str, Any]) -> list[Any]:
    objects = case["configs"] | {name: case[name] for name in ("machines", "rates") if name in case}
    return calls.find_objects(args, objects)


def expect_answers(arrays: Arrays) -> Arrays:
    """Return the right answer to each call of a case, and what common mistakes give for it."""
    case, expected = decode_value(arrays["case"]), Arrays()
    for code, name, args, kwargs in calls.calls_of(case):
        canonical = _find(calls.ARGUMENTS[name](*args, **kwargs), case)
        right = ORACLES[name](*canonical)
        if right == calls.REFUSED:
            expected[code] = encode_text(right)
            continue
        answers = _read(name, code, right)
        for mistake, wrong in _mistakes(name, canonical, right):
            for label, value in _read(name, code, wrong).items():
                if not np.array_equal(value, answers[label]) and len(value) < 19:  # as int64
                    expected |= likely(label, {mistake: int(bytes(value))})
        expected |= answers
    return expected


def _read(name: str, code: str, answer: Any) -> Arrays:
    return calls.READERS[name](code, SimpleNamespace(**answer) if isinstance(answer, dict) else answer)


FACTORS = {
    "training_flops": {(1, 3): "this is the forward pass alone", (2, 3): "this is the backward pass alone"},
    "kv_cache_bytes": {(1, 2): "this is half of it: are there keys and values, of 2 bytes each?"},
    "einsum_flops": {(1, 2): "this is half of it: a multiplication and an addition are two FLOPs"},
}
"""By function, fractions of the right answer that common mistakes give."""


def _mistakes(name: str, canonical: list[Any], right: Any) -> Iterator[tuple[str, Any]]:
    """Yield common mistakes in a count, and what each of them gives for an answer."""
    for (times, of), mistake in FACTORS.get(name, {}).items():
        yield mistake, right * times // of
    if name in ("parameters", "training_flops", "activation_bytes", "kv_cache_bytes"):
        config, *rest = canonical
        heads = config | {"n_kv_heads": config["n_heads"]}
        yield "this is right if there are as many key/value heads (K) as query heads (N)", ORACLES[name](heads, *rest)


def compare_answers(got: Arrays, expected: Arrays) -> Mismatch | None:
    """Compare answers by name; an answer that one side does not have is nothing."""
    named = {label for label in expected if not label.startswith(LIKELY)}
    for label in [*expected, *got]:
        if label in named and label not in got:
            return Mismatch(f"`{label}` is missing", "nothing", _shown(expected[label]))
        if label in got and label not in named:
            return Mismatch(f"`{label}` is too much", _shown(got[label]), "nothing")
    return agree(got, expected)


def _shown(array: np.ndarray) -> str:
    return array.tobytes().decode(errors="replace")[:80] if array.dtype == np.uint8 else str(array)[:80]


def render_calls(arrays: Arrays) -> str:
    """Render the objects and the calls of a case as code."""
    case, lines = decode_value(arrays["case"]), list[str]()
    code = [code for code, *_ in calls.calls_of(case)]
    if config := case["configs"].get("config"):
        fields = [f"{key}={config[key]!r}" for key in ("name", *SIZES, *CHOICES)]
        fields += [f"{flag}=True" for flag in FLAGS if config[flag]]
        lines += ["config = TransformerConfig(", *_wrap(fields), ")"]
    if any("(other" in one for one in code):
        changed = [f"{key}={value}" for key, value in case["configs"]["other"].items() if value != config[key]]
        lines += ["other = TransformerConfig(**vars(config) | dict(", *_wrap(changed), "))"]
    if "machines" in case:
        rows = [f"    Machine({', '.join(map(repr, row))})," for row in case["machines"]]
        lines += ["machines = [  # name, bytes, bytes/s, FLOP/s, price of an hour", *rows, "]"]
    if "plan" in case:
        lines.append(f"plan = {case['plan']}")
    if "rates" in case:
        lines += ["rates = {", *_wrap([f"({m}, {k}, {n}): {rate:.0f}.0" for m, k, n, rate in case["rates"]]), "}"]
    return "\n".join([*lines, *code])


def _wrap(entries: Sequence[str]) -> list[str]:
    joined = ", ".join(entry.replace(" ", "\N{NO-BREAK SPACE}") for entry in entries)
    return [f"    {line}".replace("\N{NO-BREAK SPACE}", " ") for line in textwrap.wrap(joined, 84)]


# --- task 1: einsums --------------------------------------------------------------------------------------------------


def _draw_einsum(rng: Rng, operands: int, letters: int, size: int) -> tuple[str, list[list[int]]]:
    """Draw an einsum: operands of up to three letters, an output that keeps about half of them, sizes with edges."""
    alphabet = rng.permutation(list("abcdeABCDE"))[:letters]
    most = 3 if operands < 4 else 2
    counts = [rng.integers(0 if rng.random() < 0.1 else 1, most + 1) for _ in range(operands)]
    picked = [rng.permutation(alphabet)[:count] for count in counts]
    known = list(dict.fromkeys(letter for one in picked for letter in one))
    output = rng.permutation([letter for letter in known if rng.random() < 0.5] if known else known)
    sizes = {letter: _draw_size(rng, size) for letter in known}
    subscripts = ",".join("".join(one) for one in picked) + "->" + "".join(output)
    return subscripts, [[sizes[letter] for letter in one] for one in picked]


def _draw_size(rng: Rng, most: int) -> int:
    edge = rng.random()
    return int(edge > 0.05) if edge < 0.15 else int(rng.integers(2, most + 1))


def _break_einsum(rng: Rng, subscripts: str, shapes: list[list[int]]) -> tuple[str, list[list[int]]]:
    """Make letters and shapes that do not fit together: another size, an axis or shape more or fewer, a new letter."""
    axes = [(i, j) for i, shape in enumerate(shapes) for j in range(len(shape))]
    left, _, output = subscripts.partition("->")
    letters = left.replace(",", "")
    twice = [at for at, letter in zip(axes, letters, strict=True) if letters.count(letter) > 1]
    broken = [list(shape) for shape in shapes]
    how = rng.choice(["size", "one", "axis", "no axis", "shape", "no shape", "letter"])
    if how in ("size", "one") and twice:
        i, j = twice[rng.integers(len(twice))]
        broken[i][j] = 1 if how == "one" and shapes[i][j] != 1 else shapes[i][j] + 1
    elif how == "axis" or not axes:
        broken[rng.integers(len(broken))].append(2)
    elif how == "no axis":
        broken[axes[rng.integers(len(axes))][0]].pop()
    elif how == "shape":
        broken.append([2, 3])
    elif how == "no shape":
        broken.pop()
    else:
        subscripts = f"{left}->{output}z"
    return subscripts, broken


EXAMPLES = ("ij,jk->ik", "bij,bjk->bik", "ij,ij->", "ij->ji")
CHAINS = ("ij,jk,kl->il", "btd,dr,rf->btf", "i,ij,j->", "ij,kl,jk->il")


def draw_parse(rng: Rng, case: Case) -> Arrays:
    """Draw einsums, and some that do not fit together."""
    p = case.params
    drawn = [_draw_einsum(rng, int(rng.integers(1, 4)), p["letters"], p["size"]) for _ in range(p["einsums"])]
    drawn += [_name_sizes(rng, subscripts, p["size"]) for subscripts in p.get("named", ())]
    drawn += [_break_einsum(rng, *one) for one in drawn]
    return _as_inputs([("parse_einsum", subscripts, *shapes) for subscripts, shapes in drawn])


def _name_sizes(rng: Rng, subscripts: str, size: int) -> tuple[str, list[list[int]]]:
    operands = subscripts.split("->")[0].split(",")
    sizes = {letter: int(rng.integers(min(2, size), size + 1)) for letter in sorted(set("".join(operands)))}
    return subscripts, [[sizes[letter] for letter in letters] for letters in operands]


def draw_cost(rng: Rng, case: Case) -> Arrays:
    """Draw einsums and element sizes; sizes of a `large` one are odd, and its FLOPs exceed 64 bits."""
    p = case.params
    operands = rng.integers(1, p["operands"] + 1, p["einsums"])
    drawn = [_draw_einsum(rng, int(count), p["letters"], p["size"]) for count in operands]
    drawn = [_name_sizes(rng, subscripts, p["size"]) for subscripts in p.get("named", ())] or drawn
    if p.get("large"):
        t, s, n, h = (2 * int(rng.integers(low, 2 * low)) + 1 for low in (350_000, 350_000, 50, 50))
        drawn = [("nth,nsh->nts", [[n, t, h], [n, s, h]])]
    asked: list[tuple[Any, ...]] = []
    for subscripts, shapes in drawn:
        asked += [(name, subscripts, *shapes) for name in ("einsum_flops", "einsum_bytes")]
        asked.append(("einsum_bytes", subscripts, *shapes, {"element_bytes": int(rng.choice([1, 4, 8]))}))
    return _as_inputs(asked, given=[("parse_einsum", subscripts, shapes) for subscripts, shapes in drawn])


def draw_order(rng: Rng, case: Case) -> Arrays:
    """Draw einsums of three operands. `equal`: all letters have one size, so that pairs cost the same."""
    p = case.params
    drawn = [_draw_einsum(rng, 3, p["letters"], p["size"]) for _ in range(p["einsums"])]
    drawn = [_name_sizes(rng, subscripts, p["size"]) for subscripts in p.get("named", ())] or drawn
    if p.get("equal"):
        drawn = [(subscripts, [[p["size"]] * len(shape) for shape in shapes]) for subscripts, shapes in drawn]
    if p.get("large"):  # to begin with the last two costs 18 FLOPs less, of more than 2^64, which no float can tell
        long = 2**31
        drawn = [("ij,jk,kl->il", [[3, 3], [3, long + 1], [long + 1, long]])]
    given: list[tuple[Any, ...]] = []
    for subscripts, shapes in drawn:
        steps = [(subscripts, shapes), *_steps(subscripts, shapes)]
        given += [(name, *step) for step in steps for name in ("parse_einsum", "einsum_flops")]
    return _as_inputs([("best_first_pair", subscripts, *shapes) for subscripts, shapes in drawn], given=given)


def _steps(subscripts: str, shapes: Shapes) -> Iterator[tuple[str, list[list[int]]]]:
    """Yield every einsum of two operands by which three can be contracted, in every order of letters and operands."""
    operands, output, sizes = read_einsum(subscripts, shapes)
    for i, j in itertools.combinations(range(3), 2):
        third = operands[3 - i - j]
        kept = sorted({x for x in operands[i] + operands[j] if x in third + output})
        for between in map("".join, itertools.permutations(kept)):
            for a, b, result in ((operands[i], operands[j], between), (between, third, output)):
                for first, second in ((a, b), (b, a)):
                    yield f"{first},{second}->{result}", [[sizes[x] for x in letters] for letters in (first, second)]


def parse_einsum(subscripts: str, shapes: Shapes) -> Any:
    """Letters and sizes, or REFUSED if they do not fit together: each letter has one size, each axis one letter."""
    left, output = subscripts.split("->")
    operands, pairs = left.split(","), {*zip(left.replace(",", ""), itertools.chain(*shapes), strict=False)}
    fit = [len(letters) for letters in operands] == [len(shape) for shape in shapes]
    if not fit or len(pairs) != len(dict(pairs)) or not set(output) <= set(left):
        return calls.REFUSED
    return read_einsum(subscripts, shapes)


def read_einsum(subscripts: str, shapes: Shapes) -> tuple[list[str], str, dict[str, int]]:
    """The operands' letters, the output's letters and the size of each letter, which fit together."""
    left, output = subscripts.split("->")
    return left.split(","), output, dict(zip(left.replace(",", ""), itertools.chain(*shapes), strict=True))


def loop_nest(subscripts: str, shapes: Shapes) -> tuple[int, int]:
    """Run the loop nest over all letters: operations done, and elements touched at least."""
    operands, output, sizes = read_einsum(subscripts, shapes)
    touched: set[tuple[int, tuple[int, ...]]] = set()
    operations, adds = 0, len(sizes) > len(output)
    for point in itertools.product(*(range(size) for size in sizes.values())):
        at = dict(zip(sizes, point, strict=True))
        operations += sum(1 for _ in operands[1:])
        operations += adds
        touched.update((i, tuple(at[x] for x in letters)) for i, letters in enumerate((*operands, output)))
    return operations, len(touched)


def count_nest(subscripts: str, shapes: Shapes) -> tuple[int, int]:
    """What `loop_nest` counts, by the lengths of the loops."""
    operands, output, sizes = read_einsum(subscripts, shapes)
    each = len(operands) - 1 + (len(sizes) > len(output))
    elements = sum(prod(sizes[x] for x in letters) for letters in (*operands, output))
    return each * prod(sizes.values()), elements


def run_or_count(subscripts: str, shapes: Shapes) -> tuple[int, int]:
    """Run a loop nest unless its loops are too many, or none of them runs."""
    loops = prod(read_einsum(subscripts, shapes)[2].values())
    return (loop_nest if 0 < loops <= MOST_LOOPS else count_nest)(subscripts, shapes)


def best_first_pair(subscripts: str, shapes: Shapes) -> tuple[tuple[int, int], int]:
    """The cheapest pair and its FLOPs: each letter's owners decide whether it outlives the first step."""
    letters, output, sizes = read_einsum(subscripts, shapes)
    operands, costs = [set(one) for one in letters], {}
    for first in itertools.combinations(range(3), 2):
        (third,) = {0, 1, 2} - set(first)
        inside = operands[first[0]] | operands[first[1]]
        gone = {letter for letter in inside if letter not in operands[third] and letter not in output}
        later = (inside - gone) | operands[third]
        flops = prod(sizes[letter] for letter in inside) * (2 if gone else 1)
        costs[first] = flops + prod(sizes[letter] for letter in later) * (2 if later - set(output) else 1)
    best = min(costs, key=lambda pair: costs[pair])
    return best, costs[best]


# --- tasks 2 and 3: parameters and products ---------------------------------------------------------------------------


def draw_parameters(rng: Rng, case: Case) -> Arrays:
    """Draw a model; `published` has its sizes."""
    config = fill_config(**case.params["published"]) if "published" in case.params else draw_config(rng, case.params)
    return _as_inputs([("parameters", "config"), ("parameters", "other")], config=config)


def parameters(config: Config) -> dict[str, int]:
    """Parameters of each part of the model, each counted once."""
    counted = dict.fromkeys(calls.PARAMETERS, 0)
    for name, parameter in weights_of(config).named_parameters():
        kind = next(part for part in name.split(".") if part in counted)
        counted[kind] += parameter.numel()
    return counted


def draw_sized(rng: Rng, case: Case) -> Arrays:
    """Draw a model, and tokens and sequences to send through it, for a function of these three.

    Tokens may exceed the context. `as_wide`: as many tokens as a head is wide. `given`: earlier functions that the
    function may call, of the model alone, of the same tokens or (`decode`) of one token.
    """
    p, config = case.params, draw_config(rng, case.params)
    tokens, batch = p["head_dim"] if p.get("as_wide") else p["tokens"], p["batch"]
    sizes = [("config", tokens, batch), ("config", tokens), ("other", tokens, batch)]
    given: list[tuple[Any, ...]] = []
    for name, model, some in itertools.product(p.get("given", ()), ("config", "other"), (1, batch)):
        earlier = (1 if p["function"] == "decode_work" and name == "forward_products" else tokens, some)
        given.append((name, model, *(() if name == "parameters" else earlier)))
    return _as_inputs([(p["function"], *size) for size in sizes], given=given, config=config)


def draw_training(rng: Rng, case: Case) -> Arrays:
    """Draw a model and total tokens of whole sequences; `power`: the number of their bits, about."""
    config = draw_config(rng, case.params)
    context, power = config["context"], case.params.get("power", 0)
    counts = [0, int(rng.integers(1, 9)) + (2**power if power else 0)]
    asked = [("training_flops", name, count * context) for count in counts for name in ("config", "other")]
    given = [("forward_products", name, context, count) for count in (*counts, 1) for name in ("config", "other")]
    return _as_inputs(asked, given=given, config=config)


def training_flops(config: Config, total_tokens: int) -> int:
    """FLOPs of the forward and backward pass of a sequence as torch runs them, times the number of sequences."""
    rows = oracle.run_products(config, config["context"], 1, 0, True)
    of_one: int = sum(2 * times * m * k * n for _, times, m, k, n in rows)
    sequences: int = total_tokens // config["context"]
    return sequences * of_one


def draw_share(rng: Rng, case: Case) -> Arrays:
    """Draw a model, and a length of a sequence."""
    tokens = case.params["tokens"]
    asked: list[tuple[Any, ...]] = [("attention_share", model, tokens) for model in ("config", "other")]
    asked += [("attention_crossover", model) for model in ("config", "other")]
    given = [("forward_products", model, some, 1) for model in ("config", "other") for some in (tokens, 1)]
    return _as_inputs(asked, given=given, config=draw_config(rng, case.params))


def _split_flops(config: Config, tokens: int) -> tuple[int, int]:
    """FLOPs of one sequence outside and inside of scores and weighted sums."""
    both = [0, 0]
    for name, times, m, k, n in oracle.forward_products(config, tokens):
        both[name in ("scores", "weighted_sum")] += 2 * times * m * k * n
    return both[0], both[1]


def attention_share(config: Config, tokens: int) -> float:
    """Fraction of the FLOPs in scores and weighted sums."""
    linear, quadratic = _split_flops(config, tokens)
    return quadratic / (linear + quadratic)


def attention_crossover(config: Config) -> float:
    """Length at which both parts are equal: at one token, what grows with T over what grows with T²."""
    linear, quadratic = _split_flops(config, 1)
    return linear / quadratic


# --- task 4: memory ---------------------------------------------------------------------------------------------------


def draw_states(rng: Rng, case: Case) -> Arrays:
    """Draw a number of parameters that ends just above or at a multiple of all ranks, and ask about every stage.

    The multiple is one of 64 as well: a float that is too short for the quotient loses just what exceeds it.
    """
    data, tensor, power = (case.params[name] for name in ("data", "tensor", "power"))
    n = int(rng.integers(2**power // 2, 2**power)) + 1
    n = -(-n // (64 * data * tensor)) * 64 * data * tensor + case.params["over"] if power > 12 else n
    sizes = [{"data": data, "zero_stage": stage, "tensor": tensor} for stage in range(4)]
    return _as_inputs([("states", n), *(("states", n, size) for size in sizes), ("states", n + 1, sizes[3])])


ARRAYS = {"weights": torch.bfloat16, "gradients": torch.bfloat16, "master": torch.float32, "moments": torch.float32}
SHARDED_FROM = {"weights": 3, "gradients": 2, "master": 1, "moments": 1}
"""The stage of ZeRO from which on a kind is sharded among the data-parallel ranks."""


def states(n_parameters: int, data: int, zero_stage: int, tensor: int) -> dict[str, int]:
    """Bytes of the largest shard of each kind: that of the rank that gets elements 0, d, 2·d and so on."""
    found = {}
    for kind, dtype in ARRAYS.items():
        own = len(range(0, n_parameters, tensor))
        own = len(range(0, own, data)) if zero_stage >= SHARDED_FROM[kind] else own
        found[kind] = (2 if kind == "moments" else 1) * torch.empty(own, dtype=dtype, device=META).nbytes
    return found


RECOMPUTATIONS = ("none", "selective", "full")


def draw_activations(rng: Rng, case: Case) -> Arrays:
    """Draw a model and sequences; a tensor-parallel group of `even` ranks divides heads, widths and tokens evenly."""
    p, name = case.params, "activation_bytes"
    config, tokens, batch = draw_config(rng, p), p["even"] * p["tokens"], p["batch"]
    hows = [{"recomputation": kind, **({"tensor": p["even"]} if p["even"] > 1 else {})} for kind in RECOMPUTATIONS]
    asked = [(name, "config", tokens, batch, how) for how in hows]
    return _as_inputs([(name, "config", tokens), *asked], config=config)


def activation_bytes(config: Config, tokens: int, batch: int, tensor: int, recomputation: str) -> int:
    """What autograd saves, divided by the tensor-parallel group."""
    return oracle.kept_bytes(config, tokens, batch, recomputation) // tensor


def draw_devices(rng: Rng, case: Case) -> Arrays:
    """Draw a plan, and memories in which some number of devices fits exactly, or misses by a byte, or none fits."""
    p, config = case.params, draw_config(rng, case.params)
    tensor, most = p["even"], p["max_devices"]
    tokens, stage = tensor * p["tokens"], p["zero_stage"]
    recomputation = RECOMPUTATIONS[int(rng.integers(3))]
    total = sum(parameters(config).values())
    datas = range(1, max(1, most // tensor) + 1)
    given = [("parameters", "config"), ("activation_bytes", "config", tokens, 1, tensor, recomputation)]
    given += [("states", total, data, stage, tensor) for data in datas]
    held = [_held(config, tokens, tensor, stage, recomputation, data) for data in datas]
    exact = [int(one) for one in rng.choice(held, 2)]
    memories = [*exact, exact[0] - 1, min(held), min(held) - 1, max(held) + 1]
    how = {"tensor": tensor, "zero_stage": stage, "recomputation": recomputation, "max_devices": most}
    default = {"tensor": 1, "zero_stage": 3, "recomputation": "none", "max_devices": 4096}
    how = {key: value for key, value in how.items() if value != default[key]}
    asked = [("fewest_devices", "config", tokens, memory_bytes, how) for memory_bytes in memories]
    return _as_inputs(asked, given=given, config=config, plan=how)


def _held(config: Config, tokens: int, tensor: int, stage: int, recomputation: str, data: int) -> int:
    held = sum(states(sum(parameters(config).values()), data, stage, tensor).values())
    return held + activation_bytes(config, tokens, 1, tensor, recomputation)


def fewest_devices(
    config: Config, tokens: int, memory_bytes: int, tensor: int, stage: int, recomputation: str, most: int
) -> int | None:
    """The first number of devices that fits, of all that are allowed."""
    for devices in range(tensor, most + 1, tensor):
        if _held(config, tokens, tensor, stage, recomputation, devices // tensor) <= memory_bytes:
            return devices
    return None


# --- task 5: the time of a step ---------------------------------------------------------------------------------------


def step_products(config: Config, tokens: int, batch: int) -> list[Product]:
    """The products of a forward and a backward pass as torch runs them."""
    return [("a product", *row[1:]) for row in oracle.run_products(config, tokens, batch, 0, True)]


def elementwise_units(config: Config, tokens: int, batch: int) -> int:
    """Elements of the arrays that Task 5's model writes, array by array, and its parameters."""
    s = SimpleNamespace(**config)
    stream, heads = (batch, tokens, s.d_model), (batch, s.n_heads, tokens, s.head_dim)
    norm, scores = [stream] * 3, [(batch, s.n_heads, tokens, tokens)] * 5
    layer = [*norm, *norm, stream, stream, *[heads] * 4, *scores, (batch, tokens, s.d_ff)]
    written = [stream, stream, stream, *s.n_layers * layer, *norm, *[(batch, tokens, s.vocab_size)] * 4]
    elements: int = sum(map(prod, written))
    return sum(parameters(config).values()) + elements


def draw_prediction(rng: Rng, case: Case) -> Arrays:
    """Draw a model of Task 5's kind, a rate for each shape of product and its transpose, and the time of a unit."""
    p, config = case.params, draw_config(rng, case.params)
    tokens, batch = p["head_dim"] if p.get("as_wide") else p["tokens"], p["batch"]
    rates: dict[tuple[int, int, int], float] = {}
    for _, _, m, k, n in step_products(config, tokens, batch):
        rates[m, k, n] = rates[n, k, m] = rates.get((m, k, n), 1e6 * float(np.exp(rng.uniform(4, 10)).round()))
    unit_s = float(f"{np.exp(rng.uniform(-24, -19)):.2g}")
    asked = [("predict_training_step_s", "config", tokens, batch, "rates", unit) for unit in (0.0, unit_s)]
    given = [(name, "config", tokens, batch) for name in ("step_products", "elementwise_units")]
    listed = [[*shape, rate] for shape, rate in rates.items()]
    return _as_inputs(asked, given=given, config=config, rates=listed)


def predict_training_step_s(config: Config, tokens: int, batch: int, rates: Any, unit_s: float) -> float:
    """Seconds of every product, one by one, and of all elementwise work."""
    speed = {(m, k, n): rate for m, k, n, rate in rates}
    rows = step_products(config, tokens, batch)
    products_s: float = sum(2 * times * m * k * n / speed[m, k, n] for _, times, m, k, n in rows)
    return products_s + elementwise_units(config, tokens, batch) * unit_s


# --- task 6: serving --------------------------------------------------------------------------------------------------


def draw_cache(rng: Rng, case: Case) -> Arrays:
    """Draw a model, and memories that are exactly full or lack a byte or half a byte, also of the first sequence."""
    p = case.params
    config = fill_config(**p["published"]) if "published" in p else draw_config(rng, p)
    tokens, batch, each = p["tokens"], p["batch"], kv_cache_bytes(config, p["tokens"], 1)
    weights = 2 * sum(parameters(config).values())
    full = [weights + count * each for count in rng.integers((1, 2000), (30, 5000)).tolist()]
    memories = [*full, full[0] - 1, float(full[1]), full[0] - 0.5, weights // 2, weights + each - 1]
    asked: list[tuple[Any, ...]] = [("kv_cache_bytes", "config", tokens, batch), ("kv_cache_bytes", "other", tokens)]
    asked += [("largest_batch", "config", tokens, memory_bytes) for memory_bytes in memories]
    return _as_inputs(asked, given=[("parameters", "config")], config=config)


def kv_cache_bytes(config: Config, tokens: int, batch: int = 1) -> int:
    """Bytes of every layer's keys and values."""
    shape = (batch, config["n_kv_heads"], tokens, config["head_dim"])
    one = torch.empty(shape, dtype=torch.bfloat16, device=META).nbytes
    return sum(one for _ in range(config["n_layers"]) for _ in "kv")


def largest_batch(config: Config, tokens: int, memory_bytes: float) -> int:
    """How many sequences fit next to the parameters, one after the other."""
    held = sum(parameter.nbytes for parameter in weights_of(config).parameters())
    each, number = kv_cache_bytes(config, tokens), 0
    while held + (number + 1) * each <= memory_bytes:
        number += 1
    return number


def decode_work(config: Config, tokens: int, batch: int) -> tuple[int, int]:
    """FLOPs of a decode step as torch runs it, and bytes of the weights that multiply or scale and of the cache."""
    ran = oracle.run_products(config, 1, 1, tokens - 1)  # of one sequence: no other takes part in it
    looked_up = {"position.weight"} | (set() if config["tied"] else {"embedding.weight"})
    read = sum(one.nbytes for name, one in weights_of(config).named_parameters() if name not in looked_up)
    flops = batch * sum(2 * times * m * k * n for _, times, m, k, n in ran)
    return flops, read + kv_cache_bytes(config, tokens, batch)


def draw_machines(rng: Rng, case: Case) -> Arrays:
    """Draw machines of three digits each, on which compute or memory is the limit.

    `fits`: sequences for which there is room, at least and at most, in tenths. `offers`: in place of drawn machines,
    factors of memory, speed and price of one machine. `equal`: both times are equal.
    """
    p, config = case.params, draw_config(rng, case.params)
    tokens, number = p["tokens"], p.get("machines", 1)
    weights, cache = 2 * sum(parameters(config).values()), kv_cache_bytes(config, tokens)
    low, high = p.get("fits", (5, 300))
    memory = np.maximum(weights + rng.integers(low, high, number) / 10 * cache, 1.0).round()
    bandwidth = np.exp(rng.uniform(24, 28, number))
    peak = bandwidth * np.exp(rng.uniform(-4, 8, number))
    rows = [[size, *(float(f"{x:.3g}") for x in row)] for size, *row in zip(memory, bandwidth, peak, strict=True)]
    machines = np.array([[*row, round(rng.uniform(0.2, 5), 2)] for row in rows]).reshape(-1, 4)
    if p.get("equal"):
        work = [decode_work(config, tokens, largest_batch(config, tokens, size)) for size in machines[:, 0].tolist()]
        machines[:, 2], machines[:, 1] = np.array(work, dtype=np.float64).T * 2.0**20
    if "offers" in p:
        machines = machines * np.array([(size, speed, speed, price) for size, speed, price in p["offers"]])
    machines = np.concatenate([machines, machines[: p.get("twice", 0)]])
    named = [[f"machine {len(machines) - i}", *row] for i, row in enumerate(machines.tolist())]
    batches = {size: largest_batch(config, tokens, size) for size in machines[:, 0].tolist()}
    given: list[tuple[Any, ...]] = [("largest_batch", "config", tokens, size) for size in batches]
    given += [("decode_work", "config", tokens, batch) for batch in batches.values() if batch]
    return _as_inputs([("choose_machine", "config", tokens, "machines")], given=given, config=config, machines=named)


def choose_machine(config: Config, tokens: int, machines: list[list[Any]]) -> SimpleNamespace | None:
    """The cheapest machine, in fractions."""
    best: SimpleNamespace | None = None
    for name, *row in machines:
        memory_bytes, bandwidth, peak, price = map(Fraction, row)
        if not (batch := largest_batch(config, tokens, float(memory_bytes))):
            continue
        flops, size_bytes = decode_work(config, tokens, batch)
        compute_s, memory_s = flops / peak, size_bytes / bandwidth
        step_s = max(compute_s, memory_s)
        cost = price * step_s / 3600 * 1_000_000 / batch
        if best is None or cost < best.cost_per_million_tokens:
            limit = "memory" if memory_s > compute_s else "compute"
            best = SimpleNamespace(machine=name, batch=batch, step_s=step_s, limit=limit, cost_per_million_tokens=cost)
    if best is not None:
        best.step_s, best.cost_per_million_tokens = float(best.step_s), float(best.cost_per_million_tokens)
    return best


ORACLES: dict[str, Callable[..., Any]] = {
    "parse_einsum": parse_einsum,
    "einsum_flops": lambda subscripts, shapes: run_or_count(subscripts, shapes)[0],
    "einsum_bytes": lambda subscripts, shapes, element_bytes: element_bytes * run_or_count(subscripts, shapes)[1],
    "best_first_pair": best_first_pair,
    "parameters": parameters,
    "forward_products": oracle.forward_products,
    "training_flops": training_flops,
    "attention_share": attention_share,
    "attention_crossover": attention_crossover,
    "states": states,
    "activation_bytes": activation_bytes,
    "fewest_devices": fewest_devices,
    "step_products": step_products,
    "elementwise_units": elementwise_units,
    "predict_training_step_s": predict_training_step_s,
    "kv_cache_bytes": kv_cache_bytes,
    "largest_batch": largest_batch,
    "decode_work": decode_work,
    "choose_machine": choose_machine,
}
"""By function, the right answer from all of its arguments."""
