"""What a cache of keys and values saves on a CPU: the 512th token, and a whole text of 512, as ratios within this run.

    python tests/bench/decode.py [--rounds N]

Prints asked against measured and exits with 1 if a goal is missed. Both sides write the same tokens greedily with the
same model, and work out logits for the last token alone. One thread, and the processor's time rather than the clock's,
so that other processes of the machine count for little.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

from mlsys_lab.configs import TransformerConfig
from mlsys_lab.inference.cache import Contiguous, extend
from mlsys_lab.inference.engine import Request, SamplingParams
from mlsys_lab.inference.generate import generate
from mlsys_lab.models import Transformer

TOKENS = 512
ASKED = {"the 512th token": 20.0, "the whole text": 8.0}
CONFIG = TransformerConfig("small", n_layers=4, d_model=512, n_heads=8, d_ff=1376, vocab_size=1024, context=TOKENS + 1)


def processor_s(call: Callable[[], object]) -> float:
    """Seconds of this process's own time."""
    begin = time.process_time()
    call()
    return time.process_time() - begin


@torch.no_grad()
def next_uncached(model: Transformer, text: list[int]) -> int:
    """The likeliest next token, from the whole text anew."""
    last = torch.tensor([len(text) - 1])
    return int(model(torch.tensor([text]), rows=last)[0].argmax())


def write_uncached(model: Transformer) -> list[int]:
    text = [1]
    while len(text) <= TOKENS:
        text.append(next_uncached(model, text))
    return text[1:]


def write_cached(model: Transformer) -> list[int]:
    (completion,) = generate(model, [Request([1], TOKENS, SamplingParams(temperature=0))])[0]
    return list(completion.tokens)


def ratio_of_the_last(model: Transformer, rounds: int) -> float:
    """Time of the 512th token uncached over cached, the least of several each: what else runs can only add to it."""
    text = torch.randint(CONFIG.vocab_size, (TOKENS,), generator=torch.Generator().manual_seed(0)).tolist()
    cache = Contiguous(model, sequences=1, capacity=TOKENS)
    sequence = cache.start()
    extend(model, cache, {sequence: text[:-1]})

    def cached() -> None:
        extend(model, cache, {sequence: text[-1:]})[0].argmax()
        cache.truncate(sequence, TOKENS - 1)

    whole, one = [], []
    for _ in range(rounds):
        whole.append(processor_s(lambda: next_uncached(model, text)))
        one.extend(processor_s(cached) for _ in range(10))
    return min(whole) / min(one)


def main() -> int:
    """Exit status: 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--rounds", type=int, default=15, help="measurements of the 512th token")
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Transformer(CONFIG)
    last = ratio_of_the_last(model, rounds)
    texts: list[list[int]] = []
    cached_s = processor_s(lambda: texts.append(write_cached(model)))
    uncached_s = processor_s(lambda: texts.append(write_uncached(model)))
    assert texts[0] == texts[1], "both ways write one text"
    measured = {"the 512th token": last, "the whole text": uncached_s / cached_s}
    table = Table("uncached over cached", "asked", "measured", title=f"{cached_s / TOKENS * 1e3:.2f} ms a cached token")
    for name, ratio in measured.items():
        table.add_row(name, f"{ASKED[name]:.0f}", f"{ratio:.1f}")
    Console().print(table)
    return int(any(measured[name] < ASKED[name] for name in ASKED))


if __name__ == "__main__":
    sys.exit(main())
