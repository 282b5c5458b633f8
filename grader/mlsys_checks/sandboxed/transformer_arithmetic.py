"""Run the learner's code for lab 05's checks: calls of its functions, with right answers of earlier functions at hand.

A case arrives as JSON in the array `case`: `configs`, `machines` and `rates` are objects that arguments refer to by
name, `calls` lists (function, arguments, keyword arguments), and `given` (function, all of its arguments, answer).
Keyword arguments of all calls may be in `plan` too: calls as code name their answers, and must be short.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from mlsys_checks.sandboxed.inputs import unchanged
from mlsys_checks.sandboxed.repeated_calls import call_twice
from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.values import count, decode_text, decode_value, describe_value, encode_text, number, pair
from mlsys_lab.errors import InputError


def _of_tokens(config: Any, tokens: int, batch: int = 1) -> tuple[Any, ...]:
    return config, tokens, batch


def _of_states(n_parameters: int, *, data: int = 1, zero_stage: int = 0, tensor: int = 1) -> tuple[Any, ...]:
    return n_parameters, data, zero_stage, tensor


def _of_activations(
    config: Any, tokens: int, batch: int = 1, *, tensor: int = 1, recomputation: str = "none"
) -> tuple[Any, ...]:
    return config, tokens, batch, tensor, recomputation


def _of_plan(
    config: Any,
    tokens: int,
    memory_bytes: int,
    *,
    tensor: int = 1,
    zero_stage: int = 3,
    recomputation: str = "none",
    max_devices: int = 4096,
) -> tuple[Any, ...]:
    return config, tokens, memory_bytes, tensor, zero_stage, recomputation, max_devices


ARGUMENTS: Mapping[str, Callable[..., tuple[Any, ...]]] = {
    "parse_einsum": lambda subscripts, *shapes: (subscripts, shapes),
    "einsum_flops": lambda subscripts, *shapes: (subscripts, shapes),
    "einsum_bytes": lambda subscripts, *shapes, element_bytes=2: (subscripts, shapes, element_bytes),
    "best_first_pair": lambda subscripts, *shapes: (subscripts, shapes),
    "parameters": lambda config: (config,),
    "forward_products": _of_tokens,
    "training_flops": lambda config, total_tokens: (config, total_tokens),
    "attention_share": lambda config, tokens: (config, tokens),
    "attention_crossover": lambda config: (config,),
    "states": _of_states,
    "activation_bytes": _of_activations,
    "fewest_devices": _of_plan,
    "step_products": _of_tokens,
    "elementwise_units": _of_tokens,
    "predict_training_step_s": lambda config, tokens, batch, rates, unit_s: (config, tokens, batch, rates, unit_s),
    "kv_cache_bytes": _of_tokens,
    "largest_batch": lambda config, tokens, memory_bytes: (config, tokens, memory_bytes),
    "decode_work": _of_tokens,
    "choose_machine": lambda config, tokens, machines: (config, tokens, machines),
}
"""By function, how a call is bound to its arguments: all of them, in this order, with their defaults."""


# --- calls ------------------------------------------------------------------------------------------------------------


def calls_of(case: dict[str, Any]) -> Iterator[tuple[str, str, list[Any], dict[str, Any]]]:
    """Yield each call of a case as code, and its function, arguments and keyword arguments.

    Shapes are tuples in every second call and lists in the others, because both must be accepted.
    """
    for i, (name, args, kwargs) in enumerate(case["calls"]):
        made = [tuple(arg) if isinstance(arg, list) and i % 2 == 0 else arg for arg in args]
        quoted = [repr(arg) if not isinstance(arg, str) or "->" in arg else arg for arg in made]
        named = ["**plan"] if kwargs == case.get("plan") else [f"{key}={value!r}" for key, value in kwargs.items()]
        code = f"{name}({', '.join([*quoted, *named])})"
        yield code, name, made, kwargs


def make_objects(artifact: Any, case: dict[str, Any]) -> dict[str, Any]:
    """Make the objects that arguments of a case refer to by name."""
    objects = {name: artifact.TransformerConfig(**fields) for name, fields in case["configs"].items()}
    if "machines" in case:
        objects["machines"] = [artifact.Machine(*row) for row in case["machines"]]
    if "rates" in case:
        objects["rates"] = {(m, k, n): rate for m, k, n, rate in case["rates"]}
    return objects


def find_objects(args: Iterable[Any], objects: Mapping[str, Any]) -> list[Any]:
    """Replace each argument that names an object by the object."""
    return [objects.get(arg, arg) if isinstance(arg, str) else arg for arg in args]


def run_calls(artifact: Any, arrays: Arrays) -> Arrays:
    """Make the calls of a case, each of them twice; return what came back from the second one."""
    case = decode_value(arrays["case"])
    objects, got = make_objects(artifact, case), Arrays()
    for code, name, args, kwargs in calls_of(case):
        call = partial(getattr(artifact, name), *find_objects(args, objects), **kwargs)
        mutable = {key: value for key, value in objects.items() if isinstance(value, list | dict)}
        with unchanged(**mutable):
            try:
                value = _call_with_answers(partial(call_twice, name, call), artifact, case, objects)
            except Exception as error:
                if isinstance(error, ValueError) and name == "parse_einsum":
                    got[code] = encode_text(REFUSED)
                    continue
                error.add_note(_explain(code, name))
                raise
        got |= READERS[name](code, value)
    return got


REFUSED = "ValueError"
"""What `parse_einsum` answers if letters and shapes do not fit together."""


def _explain(code: str, name: str) -> str:
    more = {
        "parse_einsum": ", or a ValueError if letters and shapes do not fit together",
        "best_first_pair": "; if parse_einsum refuses, best_first_pair made an einsum of two operands that does not "
        "fit: look at the letters and the shape of the intermediate",
    }
    return f"an answer to {code}{more.get(name, '')}"


# --- right answers of earlier functions -------------------------------------------------------------------------------


def _call_with_answers(call: Callable[[], Any], artifact: Any, case: dict[str, Any], objects: dict[str, Any]) -> Any:
    """Call the learner's code while its earlier functions give right answers, so that one mistake costs one check.

    Code that stops at them may rely on what the learner's own functions return besides, a named tuple for example. So
    it is called again without them.
    """
    with _right_answers(artifact, case, objects):
        try:
            return call()
        except Exception as error:
            if not case["given"]:
                raise
            stopped = error
    try:
        return call()
    except Exception:
        raise stopped from None


@contextmanager
def _right_answers(artifact: Any, case: dict[str, Any], objects: dict[str, Any]) -> Iterator[None]:
    """Replace the functions of which a case gives answers; called with other arguments, they answer for themselves."""
    answers: dict[str, dict[Any, Any]] = {}
    for name, args, answer in case["given"]:
        answers.setdefault(name, {})[_key(find_objects(args, objects))] = answer
    names = vars(artifact)
    own = {name: names[name] for name in answers if name in names}
    names.update({name: _answering(name, function, answers[name], artifact) for name, function in own.items()})
    try:
        yield
    finally:
        names.update(own)


def _answering(name: str, own: Callable[..., Any], answers: dict[Any, Any], artifact: Any) -> Callable[..., Any]:
    make: dict[str, Callable[[Any], Any]] = {
        "parse_einsum": tuple,
        "forward_products": lambda rows: [tuple(row) for row in rows],
        "step_products": lambda rows: [tuple(row) for row in rows],
        "parameters": lambda fields: artifact.Parameters(**fields),
        "states": lambda fields: artifact.States(**fields),
        "decode_work": tuple,
    }

    def answer(*args: Any, **kwargs: Any) -> Any:
        try:
            found = answers[_key(ARGUMENTS[name](*args, **kwargs))]
        except (KeyError, TypeError):
            return own(*args, **kwargs)
        return make.get(name, int)(found)

    return answer


def _key(value: Any) -> Any:
    """Make arguments hashable. A float is not the whole number it equals: the learner's function must meet it."""
    return tuple(map(_key, value)) if isinstance(value, list | tuple) else (isinstance(value, float), value)


# --- answers as arrays ------------------------------------------------------------------------------------------------


def _read_parse(code: str, value: Any) -> Arrays:
    if not isinstance(value, tuple | list) or len(value) != 3 or not isinstance(value[2], Mapping):
        got = describe_value(value)
        raise InputError(f"{code} returned something else", got=got, expected="(operands, output, sizes)")
    operands, output, sizes = value
    found = {letter: _integer(f"the size of {letter}", sizes[letter]) for letter in sorted(sizes)}
    return {code: encode_text((list(operands), output, found))}


def _read_order(code: str, value: Any) -> Arrays:
    first, flops = pair(code, value, "pair", "FLOPs")
    places = (_integer("a position", place) for place in pair("the pair", first, "i", "j"))
    return {f"{code}: pair": encode_text(tuple(places)), f"{code}: FLOPs": count(f"{code}: FLOPs", flops)}


def _read_fields(kind: str, names: tuple[str, ...], code: str, value: Any) -> Arrays:
    if not all(hasattr(value, name) for name in names):
        expected = f"{kind}({', '.join(f'{name}=…' for name in names)})"
        raise InputError(f"{code} returned no {kind}", got=describe_value(value), expected=expected)
    return {f"{code}.{name}": count(f"{code}.{name}", getattr(value, name)) for name in names}


def _read_products(code: str, value: Any) -> Arrays:
    """Read products as text, by name; those of one name and shape are added up."""
    found: dict[str, dict[tuple[int, int, int], int]] = {}
    for name, times, *shape in _product_rows(code, value):
        m, k, n = shape
        shapes = found.setdefault(name, {})
        shapes[m, k, n] = shapes.get((m, k, n), 0) + times
    texts = {
        name: "; ".join(f"{times} × ({m}, {k}) by ({k}, {n})" for (m, k, n), times in sorted(shapes.items()))
        for name, shapes in found.items()
    }
    return {f"{code}: {name!a:.32}": encode_text(text) for name, text in texts.items()}


def _read_shapes(code: str, value: Any) -> Arrays:
    """Read how often each shape of product occurs, whatever its name; a product and its transpose are one."""
    found: dict[tuple[int, int, int], int] = {}
    for _, times, m, k, n in _product_rows(code, value):
        shape = (min(m, n), k, max(m, n))
        found[shape] = found.get(shape, 0) + times
    return {
        f"{code}: ({m}, {k}) by ({k}, {n}), or transposed": encode_text(f"{times} times")
        for (m, k, n), times in sorted(found.items())
    }


def _product_rows(code: str, value: Any) -> list[tuple[Any, ...]]:
    if not isinstance(value, list | tuple):
        got = describe_value(value)
        raise InputError(f"{code} returned no list", got=got, expected="a list of (name, times, m, k, n)")
    for entry in value:
        if not isinstance(entry, tuple | list) or len(entry) != 5 or not isinstance(entry[0], str):
            got = f"{type(entry).__name__} {entry!r}"[:80]
            raise InputError(f"{code} lists something else", got=got, expected="a tuple (name, times, m, k, n)")
    return [(entry[0], *(_integer(f"a number of {entry[0]!r}", one) for one in entry[1:])) for entry in value]


def _integer(name: str, value: Any) -> int:
    return int(decode_text(count(name, value)))


def _read_work(code: str, value: Any) -> Arrays:
    flops, size_bytes = pair(code, value, "FLOPs", "bytes")
    return {f"{code}: FLOPs": count("FLOPs", flops), f"{code}: bytes": count("bytes", size_bytes)}


def _read_choice(code: str, value: Any) -> Arrays:
    if value is None:
        return {f"{code}.machine": encode_text(None)}
    if not all(hasattr(value, name) for name in ("machine", "batch", "step_s", "limit", "cost_per_million_tokens")):
        raise InputError(f"{code} returned no Choice", got=describe_value(value), expected="a Choice, or None")
    words = {f"{code}.{name}": encode_text(getattr(value, name)) for name in ("machine", "limit")}
    numbers = {f"{code}.{name}": number(name, getattr(value, name)) for name in ("step_s", "cost_per_million_tokens")}
    return {**words, f"{code}.batch": count("batch", value.batch), **numbers}


PARAMETERS = ("embedding", "position", "attention", "mlp", "norm", "head")
STATES = ("weights", "gradients", "master", "moments")
FLOATS = ("attention_share", "attention_crossover", "predict_training_step_s")
READERS: Mapping[str, Callable[[str, Any], Arrays]] = {
    **dict.fromkeys(ARGUMENTS, lambda code, value: {code: count(code, value)}),
    **dict.fromkeys(FLOATS, lambda code, value: {code: number(code, value)}),
    "parse_einsum": _read_parse,
    "best_first_pair": _read_order,
    "parameters": partial(_read_fields, "Parameters", PARAMETERS),
    "states": partial(_read_fields, "States", STATES),
    "forward_products": _read_products,
    "step_products": _read_shapes,
    "fewest_devices": lambda code, value: {code: encode_text(None) if value is None else count(code, value)},
    "decode_work": _read_work,
    "choose_machine": _read_choice,
}
"""By function, how a value that it returned becomes arrays; `InputError` if it has the wrong form."""
