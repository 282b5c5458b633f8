"""Generate text with the course's small model, and compare its speed with the bound that memory bandwidth sets.

The model was trained on this book alone: it knows words of the field, and makes up the rest. Text goes to standard
output as it is generated. Then a line on standard error gives tokens per second, the time to the first token, the bytes
moved per token, and the fraction of the bound reached: the time to move these bytes at this machine's copy bandwidth,
which is measured on the spot, over the time per token. A model this small is far below the bound: most of its time is
Python's.

examples:
  mlsys-lab generate --prompt "The memory of a GPU"
  mlsys-lab generate --prompt "What is bandwidth?" --chat --temperature 0
  mlsys-lab generate --prompt "A kernel" --speculative --int4 --top-p 0.9 --seed 1
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from mlsys_lab.cli.app import flag, option
from mlsys_lab.cli.spinner import spinner
from mlsys_lab.errors import InputError

if TYPE_CHECKING:
    from mlsys_lab.inference.engine import Request
    from mlsys_lab.inference.pretrained import Pair
    from mlsys_lab.inference.speculative import Speculation

MAX_TOKENS = 100
DRAFTS = 4


@dataclass(kw_only=True)
class Arguments:
    """The prompt, how the model runs, and how tokens are sampled."""

    prompt: Annotated[str, option("text to continue, or with --chat to answer", "TEXT")]
    chat: Annotated[bool, flag("--chat", "answer the prompt, and print the answer alone")] = False
    speculative: Annotated[bool, flag("--speculative", "let a smaller model draft tokens while that is faster")] = False
    int4: Annotated[bool, flag("--int4", "weights of the blocks in 4 bits, in groups of 32")] = False
    max_tokens: Annotated[
        int | None, option(f"maximum number of tokens ({MAX_TOKENS} by default, if they fit)", "N")
    ] = None
    temperature: Annotated[float, option("0 takes the most likely token", "T")] = 0.8
    top_p: Annotated[float | None, option("sample from the most likely tokens with probability P together", "P")] = None
    seed: Annotated[int | None, option("generate the same text every time", "N")] = None


def run(args: Arguments) -> int:
    """Print the text as it is generated, then a line about its speed; returns exit code 0."""
    if not args.prompt:
        raise InputError("the prompt is empty", expected="text to continue")
    from mlsys_lab.models.training import one_thread

    with one_thread():
        _generate(args)
    return 0


def _generate(args: Arguments) -> None:
    from mlsys_lab.efficiency.quantization import quantize
    from mlsys_lab.inference.generate import generate
    from mlsys_lab.inference.pretrained import load_pair
    from mlsys_lab.inference.speculative import SpeculationController, make_drafter, speculate
    from mlsys_lab.inference.text import Stream

    with spinner("loading the model"):
        pair = load_pair()
        if args.int4:
            pair = pair._replace(target=quantize(pair.target, "int4"))
        drafter = make_drafter(pair.draft)
    clock, stream = Clock(), Stream(pair.tokenizer)

    def write(token: int) -> None:
        clock.tick()
        print(stream.add(token), end="", flush=True)

    request = _request(args, pair, write)
    speculation = None
    try:
        if not args.chat:
            print(args.prompt, end="", flush=True)
        clock.start()
        if args.speculative:
            # With a seed a fixed number of drafts: how many pay depends on the clock, and so would the text.
            controller = SpeculationController(DRAFTS) if args.seed is None or args.temperature == 0 else None
            speculation = speculate(pair.target, request, drafter, num_speculative_tokens=DRAFTS, controller=controller)
        else:
            generate(pair.target, [request])
    finally:
        print(stream.end(), flush=True)
    with spinner("measuring this machine's copy bandwidth"):
        report = _report(pair, len(request.prompt_token_ids), clock, speculation)
    print(report, file=sys.stderr)


@dataclass
class Clock:
    """When generation was started, and when each token was generated, in seconds."""

    started_s: float = 0.0
    tokens_s: list[float] = field(default_factory=list)

    def start(self) -> None:
        """Note that generation starts now."""
        self.started_s = time.perf_counter()

    def tick(self) -> None:
        """Note that a token was generated now."""
        self.tokens_s.append(time.perf_counter())

    @property
    def first_s(self) -> float:
        """Seconds to the first token (TTFT)."""
        return self.tokens_s[0] - self.started_s

    @property
    def each_s(self) -> float | None:
        """Mean seconds per token after the first (TPOT); None where there is none."""
        after = len(self.tokens_s) - 1
        return (self.tokens_s[-1] - self.tokens_s[0]) / after if after else None


def _request(args: Arguments, pair: Pair, write: Callable[[int], None]) -> Request:
    from mlsys_lab.inference.engine import Request, SamplingParams
    from mlsys_lab.inference.text import Message, encode_chat
    from mlsys_lab.inference.text.chat import END

    tokenizer, context = pair.tokenizer, pair.target.config.context
    end = tokenizer.special_id(END)
    # A text begins where another one ended: so it was in training.
    plain = [end, *tokenizer.encode(args.prompt)]
    prompt = encode_chat(tokenizer, [Message("user", args.prompt)]) if args.chat else plain
    most = max(1, min(MAX_TOKENS, context - len(prompt))) if args.max_tokens is None else args.max_tokens
    sampling_params = SamplingParams(temperature=args.temperature, top_p=args.top_p, seed=args.seed)
    request = Request(prompt, most, sampling_params, stop_token_sequences=[[end]], on_token=write)
    request.validate(pair.target)
    return request


def _report(pair: Pair, prompt: int, clock: Clock, speculation: Speculation | None) -> str:
    """One line on speed, bytes and the bound."""
    from mlsys_lab.hardware import measure_copy_bandwidth
    from mlsys_lab.models.traffic import token_bytes

    count = len(clock.tokens_s)
    past = prompt + count / 2  # in the middle of the text
    moved, said = token_bytes(pair.target, past), ""
    if speculation is not None:
        drafted = speculation.num_draft_tokens * token_bytes(pair.draft, past)
        moved = (speculation.num_steps * moved + drafted) / count
        rate = speculation.num_accepted_tokens / max(1, speculation.num_draft_tokens)
        said = f"; {count / speculation.num_steps:.2f} tokens a step, acceptance rate {rate:.0%}"
    bandwidth = measure_copy_bandwidth()
    line = f"{count} tokens{said}; first token after {clock.first_s * 1e3:.0f} ms"
    if clock.each_s:
        line += f", then {1 / clock.each_s:.1f} tokens/s"
    line += f"; a token moves {moved / 1e6:.2f} MB, at least {moved / bandwidth * 1e3:.3f} ms"
    line += f" at the {bandwidth / 1e9:.1f} GB/s that this machine copies at"
    return line + (f": {moved / bandwidth / clock.each_s:.1%} of the bound" if clock.each_s else "")
