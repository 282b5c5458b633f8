"""Load: arrival times of requests, with their numbers of prompt and output tokens; drawn, or read from a trace."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

from mlsys_lab.errors import InputError
from mlsys_lab.validation import require_at_least_one, require_positive

Lengths = Callable[[Random], tuple[int, int]]
"""Draws a number of prompt tokens and a number of output tokens."""


class Arrival(NamedTuple):
    """A request that arrives `time_s` seconds after the start."""

    time_s: float
    prompt: tuple[int, ...]
    num_output_tokens: int


def log_normal(prompt: float, answer: float, spread: float = 0.6, *, longest: float = math.inf) -> Lengths:
    """Log-normal lengths with these means, 1 at least; `spread` is the deviation of their logarithms.

    Requests of more than `longest` tokens are truncated, the prompt first: a server rejects what exceeds its context.
    """
    require_at_least_one(prompt=prompt, answer=answer)

    def draw(random: Random) -> tuple[int, int]:
        num_prompt_tokens, num_output_tokens = _length(random, prompt, spread), _length(random, answer, spread)
        num_output_tokens = int(min(num_output_tokens, longest - 1))
        return int(min(num_prompt_tokens, longest - num_output_tokens)), num_output_tokens

    return draw


def poisson(rate: float, requests: int, lengths: Lengths, *, seed: int = 0) -> list[Arrival]:
    """Poisson arrivals, `rate` per second on average: gaps are exponential."""
    require_positive(rate=rate)
    random = Random(seed)
    return _draw(itertools.accumulate(random.expovariate(rate) for _ in range(requests)), lengths, random)


def bursts(rate: float, requests: int, lengths: Lengths, *, size: int, seed: int = 0) -> list[Arrival]:
    """Poisson arrivals of `size` requests at once, `rate` requests per second on average."""
    require_positive(rate=rate)
    require_at_least_one(size=size)
    random = Random(seed)
    starts = itertools.accumulate(random.expovariate(rate / size) for _ in range(math.ceil(requests / size)))
    times = (start for start in starts for _ in range(size))
    return _draw(itertools.islice(times, requests), lengths, random)


def read_trace(path: Path) -> list[Arrival]:
    """Read a trace: a line of JSON for each request, with `time_s`, `prompt` (token ids) and `num_output_tokens`.

    Lines about steps, as in the trace of a server, are left out. InputError for any other file.
    """
    found = []
    for number, line in enumerate(_lines(path), start=1):
        try:
            fields = json.loads(line)
            if "step_s" in fields:
                continue
            one = Arrival(float(fields["time_s"]), tuple(map(int, fields["prompt"])), int(fields["num_output_tokens"]))
        except (ValueError, TypeError, KeyError) as problem:
            got = " ".join(f"{type(problem).__name__}: {problem}".split())
            expected = "JSON with time_s, prompt and num_output_tokens"
            raise InputError(f"{path}, line {number}, is no request", got=got, expected=expected) from None
        if not one.prompt or one.num_output_tokens < 1 or not 0 <= one.time_s < math.inf:
            expected = "a time from 0, a prompt of one token or more, and one output token or more"
            raise InputError(f"{path}, line {number}, is no request", got=line[:60], expected=expected)
        found.append(one)
    return sorted(found, key=lambda arrival: arrival.time_s)


def write_trace(path: Path, arrivals: Iterable[Arrival]) -> None:
    """Write a trace that `read_trace` reads."""
    path.write_text("".join(json.dumps(one._asdict()) + "\n" for one in arrivals), encoding="utf-8")


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as problem:
        raise InputError(f"{path} cannot be read", got=problem, expected="a trace, one request a line") from None


def _length(random: Random, mean: float, spread: float) -> int:
    return max(1, round(random.lognormvariate(math.log(mean) - spread**2 / 2, spread)))


def _draw(times: Iterator[float], lengths: Lengths, random: Random) -> list[Arrival]:
    """Arrivals with lengths drawn, and prompts without a common prefix."""
    made = []
    for number, time_s in enumerate(times):
        num_prompt_tokens, num_output_tokens = lengths(random)
        made.append(Arrival(time_s, (number,) * num_prompt_tokens, num_output_tokens))
    return made
