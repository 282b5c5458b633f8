"""Decoding on a CPU: what a KV cache saves, how near a step is to the memory bound, and what drafts gain.

    python -m tests.bench.decode [--rounds N] [--record]

Prints goals and measurements, and exits with 1 if a goal is missed. One thread, and the processor's time rather than
the clock's, so that other processes of the machine count for little.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from statistics import median

import torch

from mlsys_lab.configs import TransformerConfig
from mlsys_lab.flops.parameters import parameters
from mlsys_lab.hardware import measure_copy_bandwidth
from mlsys_lab.inference.cache import Contiguous, extend
from mlsys_lab.inference.engine import Request, SamplingParams
from mlsys_lab.inference.generate import generate
from mlsys_lab.inference.pretrained import load_pair, read_text
from mlsys_lab.inference.speculative import Draft, Drafter, SpeculationController, make_drafter, speculate
from mlsys_lab.models import Transformer
from mlsys_lab.models.traffic import token_bytes
from tests.bench.goals import HELP, Goal, conclude

NUM_TOKENS = 512
SMALL = TransformerConfig(
    "small", n_layers=4, d_model=512, n_heads=8, d_ff=1376, vocab_size=1024, context=NUM_TOKENS + 1
)
LARGE = TransformerConfig(
    "100m", n_layers=12, d_model=768, n_heads=12, d_ff=2304, vocab_size=16384, context=512, norm="rms"
)
GREEDY = SamplingParams(temperature=0)
GOALS = {
    "512th token, uncached over cached": Goal(">=", 20.0),
    "512 tokens, uncached over cached": Goal(">=", 8.0),
    "100 M parameters, fraction of the memory bound": Goal(">=", 0.6),
    "shipped pair on held-out text, plain over speculative": Goal(">=", 1.2),
    "a drafter that is always wrong, plain over speculative": Goal(">=", 0.95),
}


def processor_s(call: Callable[[], object]) -> float:
    """Seconds of this process's own time."""
    start_s = time.process_time()
    call()
    return time.process_time() - start_s


@torch.no_grad()
def next_uncached(model: Transformer, tokens: list[int]) -> int:
    """The likeliest next token, from a forward pass over all tokens."""
    last = torch.tensor([len(tokens) - 1])
    return int(model(torch.tensor([tokens]), rows=last)[0].argmax())


def generate_uncached(model: Transformer) -> list[int]:
    tokens = [1]
    while len(tokens) <= NUM_TOKENS:
        tokens.append(next_uncached(model, tokens))
    return tokens[1:]


def generate_cached(model: Transformer) -> list[int]:
    (completion,) = generate(model, [Request([1], NUM_TOKENS, GREEDY)])[0]
    return list(completion.token_ids)


def last_token_ratio(model: Transformer, rounds: int) -> float:
    """Time of the 512th token uncached over cached, the least of several each: other processes can only add to it."""
    tokens = torch.randint(SMALL.vocab_size, (NUM_TOKENS,), generator=torch.Generator().manual_seed(0)).tolist()
    cache = Contiguous(model, sequences=1, capacity=NUM_TOKENS)
    sequence = cache.start()
    extend(model, cache, {sequence: tokens[:-1]})

    def cached() -> None:
        extend(model, cache, {sequence: tokens[-1:]})[0].argmax()
        cache.truncate(sequence, NUM_TOKENS - 1)

    all_tokens, one = [], []
    for _ in range(rounds):
        all_tokens.append(processor_s(lambda: next_uncached(model, tokens)))
        one.extend(processor_s(cached) for _ in range(10))
    return min(all_tokens) / min(one)


def bound_fraction(rounds: int, num_cached: int = 128) -> float:
    """Time to move a token's bytes at the copy bandwidth, over the time of a token in fp32: the median of rounds."""
    model = Transformer(LARGE)
    cache = Contiguous(model, sequences=1, capacity=num_cached + 1)
    sequence = cache.start()
    extend(model, cache, {sequence: [1] * num_cached})

    def step() -> None:
        extend(model, cache, {sequence: [1]})[0].argmax()
        cache.truncate(sequence, num_cached)

    size_bytes = token_bytes(model, num_cached)
    return median(size_bytes / measure_copy_bandwidth() / processor_s(step) for _ in range(rounds))


class WrongDrafter:
    """A drafter that takes its time, and whose tokens are hardly ever the model's."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter, self.vocab_size = drafter, drafter.vocab_size

    def propose(self, *arguments: object) -> Draft:
        """Draft tokens that the model would hardly ever take."""
        draft = self.drafter.propose(*arguments)  # type: ignore[arg-type]
        wrong = [(token + 1) % self.vocab_size for token in draft.token_ids]
        return Draft(wrong, draft.probabilities.roll(1, -1))


def speculation_gain(drafter: Drafter, rounds: int) -> float:
    """Time of plain decoding over that of adaptive speculation, for 100 greedy tokens after each of some prompts."""
    pair, controller = load_pair(), SpeculationController(4)
    tokens = pair.tokenizer.encode(read_text("held-out"))
    requests = [Request(tokens[start : start + 40], 100, GREEDY) for start in range(0, 100 * (rounds + 1), 100)]
    speculate(pair.target, requests.pop(), drafter, controller=controller)  # compiles
    plain_s = speculative_s = 0.0
    for request in requests:
        plain_s += processor_s(lambda: generate(pair.target, [request]))  # noqa: B023
        speculative_s += processor_s(lambda: speculate(pair.target, request, drafter, controller=controller))  # noqa: B023
    return plain_s / speculative_s


def main() -> int:
    """Exit status: 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--rounds", type=int, default=15, help="measurements of each ratio")
    parser.add_argument("--record", action="store_true", help=HELP)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, pair = Transformer(SMALL), load_pair()
    last = last_token_ratio(model, args.rounds)
    outputs: list[list[int]] = []
    cached_s = processor_s(lambda: outputs.append(generate_cached(model)))
    uncached_s = processor_s(lambda: outputs.append(generate_uncached(model)))
    assert outputs[0] == outputs[1], "both ways generate the same tokens"
    ratios = (
        last,
        uncached_s / cached_s,
        bound_fraction(args.rounds),
        speculation_gain(make_drafter(pair.draft), args.rounds),
        speculation_gain(WrongDrafter(make_drafter(pair.draft)), args.rounds),
    )
    title = f"decoding on one thread; the large model has {parameters(LARGE).total / 1e6:.0f} M parameters"
    return conclude("decode", title, GOALS, {"measured": dict(zip(GOALS, ratios, strict=True))}, record=args.record)


if __name__ == "__main__":
    sys.exit(main())
