"""The engine on a CPU next to `transformers`, to its own model's forward pass, and to the simulator.

    python -m tests.bench.serving [--write-trace] [--record]

The trace: 192 requests that all wait from the start, nine in ten with a short output and one in ten with a long one, on
16 slots. Two models, greedy, fp32, one thread: the one that comes with the course, and a LLaMA of about 30 M parameters
with random weights. `transformers` serves the same requests on the same weights, in static batches of 16 in the order
of the trace, each of which runs until its longest output is complete, and with its own continuous batching. Prints
goals and measurements, and exits with 1 if a goal is missed. Seconds are those of the processor, of this process.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from mlsys_lab.flops.step import Part
from mlsys_lab.inference.engine import Engine, Request, SamplingParams, SchedulerConfig, SchedulerOutput
from mlsys_lab.inference.pretrained import FOLDER, TARGET, load_pair, read_text
from mlsys_lab.inference.simulator import Arrival, LineClock, log_normal, poisson, read_trace, simulate, write_trace
from mlsys_lab.models import Transformer, load
from tests.bench.goals import HELP, Goal, conclude
from tests.bench.models import save_llama

TRACE = Path(__file__).parent / "traces" / "bimodal.jsonl"
REQUESTS, SLOTS, BLOCK_SIZE = 192, 16, 16
NUM_BLOCKS = SLOTS * 512 // BLOCK_SIZE
CONFIG = SchedulerConfig(SLOTS, 512)
GOALS = {
    "throughput over static batches": Goal(">=", 2.0),
    "throughput over continuous batches of transformers": Goal(">=", 1.2),
    "single stream over transformers": Goal(">=", 1.0),
    "a step over its forward pass": Goal("<=", 1.3),
    "steps over those of slots refilled at once": Goal("<=", 1.05),
    "scheduling, fraction of a step": Goal("<=", 0.05),
    "simulated time over measured": Goal("+-", 0.15),
}


def make_trace() -> list[Arrival]:
    """Prompts from held-out text; 90 % of the outputs have 4 to 20 tokens, 10 % 180 to 240."""
    random, tokens = Random(0), load_pair().tokenizer.encode(read_text("held-out"))
    arrivals = []
    for number in range(REQUESTS):
        start = random.randrange(len(tokens) - 32)
        num_output_tokens = random.randint(180, 240) if number % 10 == 9 else random.randint(4, 20)
        arrivals.append(Arrival(0.0, tuple(tokens[start : start + random.randint(8, 32)]), num_output_tokens))
    return arrivals


@dataclass
class Measured:
    """A run of the engine: parts and seconds of its steps, seconds of scheduling, slots wasted, and its outputs."""

    parts: list[list[Part]] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    scheduling_s: float = 0.0
    wasted: list[float] = field(default_factory=list)
    outputs: dict[int, tuple[int, ...]] = field(default_factory=dict)


def make_engine(model: Transformer) -> Engine:
    return Engine(model, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, config=CONFIG, compiled=True)


def greedy(prompt: Sequence[int], num_output_tokens: int) -> Request:
    return Request(prompt, num_output_tokens, SamplingParams(temperature=0))


def run_engine(model: Transformer, arrivals: Sequence[Arrival]) -> Measured:
    """Serve requests that all wait from the start; the scheduler's calls are timed within the steps."""
    engine, found = make_engine(model), Measured()
    run = engine.model_runner.run

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        def caller(*args: Any) -> Any:
            start_s = time.process_time()
            result = call(*args)
            found.scheduling_s += time.process_time() - start_s
            return result

        return caller

    def record(output: SchedulerOutput) -> list[torch.Tensor]:
        found.parts.append([(n, seq.num_computed_tokens) for seq, n in output.num_scheduled_tokens.items()])
        return run(output)

    for one in arrivals:
        engine.add_request(greedy(one.prompt, one.num_output_tokens))
    scheduler: Any = engine.scheduler
    scheduler.schedule, scheduler.update_from_output, scheduler.finish = map(
        timed, (scheduler.schedule, scheduler.update_from_output, scheduler.finish)
    )
    engine.model_runner.run = record  # type: ignore[method-assign]
    while not engine.is_idle:
        start_s = time.process_time()
        outputs = engine.step()
        found.step_s.append(time.process_time() - start_s)
        found.outputs |= {one.request_id: one.completion.token_ids for one in outputs if one.completion}
        found.wasted += [
            len(seq.block_table) * BLOCK_SIZE - seq.num_computed_tokens for seq in engine.scheduler.running
        ]
    return found


def load_reference(folder: Path) -> Any:
    """The model of `transformers` with a folder's weights, which no token ends."""
    from transformers import LlamaForCausalLM

    reference = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    reference.generation_config.pad_token_id, reference.generation_config.eos_token_id = 0, None
    return reference


def run_static(reference: Any, arrivals: Sequence[Arrival]) -> tuple[float, list[tuple[int, ...]]]:
    """Seconds and outputs of `transformers` in static batches of 16 requests, padded on the left."""
    seconds, outputs = 0.0, []
    for first in range(0, len(arrivals), SLOTS):
        batch = arrivals[first : first + SLOTS]
        longest, most = max(len(one.prompt) for one in batch), max(one.num_output_tokens for one in batch)
        padded = torch.tensor([[0] * (longest - len(one.prompt)) + list(one.prompt) for one in batch])
        mask = torch.tensor([[0] * (longest - len(one.prompt)) + [1] * len(one.prompt) for one in batch])
        start_s = time.process_time()
        generated = reference.generate(padded, attention_mask=mask, max_new_tokens=most, do_sample=False)
        seconds += time.process_time() - start_s
        outputs += [
            tuple(row[longest:][: one.num_output_tokens].tolist()) for row, one in zip(generated, batch, strict=True)
        ]
    return seconds, outputs


def run_continuous(reference: Any, arrivals: Sequence[Arrival]) -> float:
    """Seconds of `transformers` with continuous batching in as many blocks and slots as the engine has."""
    from transformers import GenerationConfig
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    manager = reference.init_continuous_batching(
        GenerationConfig(do_sample=False, pad_token_id=0, eos_token_id=-1, max_new_tokens=1),
        ContinuousBatchingConfig(
            block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS, max_batch_tokens=512, max_requests_per_batch=SLOTS
        ),
    )
    for one in arrivals:
        manager.add_request(list(one.prompt), max_new_tokens=one.num_output_tokens)
    start_s, finished = time.process_time(), 0
    manager.start()
    while finished < len(arrivals):
        result = manager.get_result(timeout=1)
        finished += result is not None and result.is_finished()
    seconds = time.process_time() - start_s
    manager.stop(block=True)
    return seconds


def compare_streams(model: Transformer, reference: Any, prompt: Sequence[int], num_output_tokens: int = 64) -> float:
    """Seconds of `transformers` over the engine's for one greedy stream, the median of interleaved pairs."""

    engine, prompts = make_engine(model), itertools.count(1)

    def serve() -> None:
        engine.add_request(greedy([next(prompts), *prompt[1:]], num_output_tokens))  # not in the prefix cache
        engine.run()

    def generate() -> None:
        reference.generate(torch.tensor([prompt]), max_new_tokens=num_output_tokens, do_sample=False)

    return median_ratio(generate, serve, rounds=5)


def compare_forward(model: Transformer, num_cached: int = 200) -> float:
    """Seconds of a step of 16 sequences over its forward pass, whose keys and values are dense and in place already."""
    engine, c = make_engine(model), model.config
    for number in range(SLOTS):
        engine.add_request(greedy([1 + number] * (num_cached - 50 + number * 3), 200))
    while len(engine.scheduler.running) < SLOTS or engine.scheduler.running[-1].num_pending_tokens > 1:
        engine.step()
    keys, values = torch.randn(2, c.n_layers, SLOTS, c.n_kv_heads, num_cached, c.head_dim)

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        rows = q[0].transpose(0, 1).reshape(SLOTS, c.n_kv_heads, -1, c.head_dim)
        return (
            F.scaled_dot_product_attention(rows, keys[layer], values[layer])
            .reshape(SLOTS, c.n_heads, -1)
            .transpose(0, 1)[None]
        )

    tokens, positions, rows = (
        torch.ones(1, SLOTS, dtype=torch.int64),
        torch.full((1, SLOTS), num_cached),
        torch.arange(SLOTS),
    )

    @torch.no_grad()
    def forward() -> None:
        model(tokens, positions=positions, attend=attend, rows=rows)

    return median_ratio(engine.step, forward, rounds=80)


def median_ratio(first: Callable[[], object], second: Callable[[], object], rounds: int) -> float:
    """Median of the ratios of the two calls' seconds, called in turn."""

    def seconds(call: Callable[[], object]) -> float:
        start_s = time.process_time()
        call()
        return time.process_time() - start_s

    seconds(first), seconds(second)
    return median(seconds(first) / seconds(second) for _ in range(rounds))


def ideal_steps(arrivals: Sequence[Arrival]) -> int:
    """Steps of slots each of which gets the next request as soon as it is free; a prompt takes its first step."""
    free = [0] * SLOTS
    for one in arrivals:
        heapq.heappush(free, heapq.heappop(free) + one.num_output_tokens)
    return max(free)


def fit_clock(runs: Sequence[Measured]) -> LineClock:
    """Least squares over the steps of some runs: seconds of a step, a new token, a cached token, a sequence."""
    parts = [one for run in runs for one in run.parts]
    rows = [LineClock.features(one) for one in parts]
    seconds = np.array([time_s for run in runs for time_s in run.step_s])
    return LineClock(*np.linalg.lstsq(np.array(rows, float), seconds, rcond=None)[0].tolist())


def measure(folder: Path, arrivals: Sequence[Arrival]) -> dict[str, float]:
    """The measurements of `GOALS` for the model of a folder."""
    model, reference = load(folder, dtype=torch.float32), load_reference(folder)
    # The clock is fitted to another load, of other lengths, served before the trace and after it: machines drift.
    other = [one._replace(time_s=0.0) for one in poisson(1.0, 48, log_normal(20, 60), seed=1)]
    before, engine, after = (run_engine(model, load) for load in (other, arrivals, other))
    engine_s = sum(engine.step_s)
    static_s, static_outputs = run_static(reference, arrivals)
    simulated = simulate(
        arrivals, fit_clock([before, after]), num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, config=CONFIG
    )
    equal = sum(engine.outputs[number] == output for number, output in enumerate(static_outputs))
    tokens = sum(one.num_output_tokens for one in arrivals)
    print(
        f"{folder.name}: {tokens} tokens, {tokens / engine_s:.0f} per second, {len(engine.step_s)} steps;"
        f" {equal} of {REQUESTS} outputs equal those of transformers;"
        f" {sum(engine.wasted) / len(engine.wasted):.2f} slots wasted per sequence"
    )
    return {
        "throughput over static batches": static_s / engine_s,
        "throughput over continuous batches of transformers": run_continuous(reference, arrivals) / engine_s,
        "single stream over transformers": compare_streams(model, reference, arrivals[0].prompt),
        "a step over its forward pass": compare_forward(model),
        "steps over those of slots refilled at once": len(engine.step_s) / ideal_steps(arrivals),
        "scheduling, fraction of a step": engine.scheduling_s / engine_s,
        "simulated time over measured": simulated.busy_s / engine_s,
    }


def main() -> int:
    """Exit status: 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--write-trace", action="store_true", help="draw the trace again and write it")
    parser.add_argument("--record", action="store_true", help=HELP)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.write_trace:
        write_trace(TRACE, make_trace())
    arrivals = read_trace(TRACE)
    with tempfile.TemporaryDirectory() as folder:
        folders = [FOLDER / TARGET, save_llama(Path(folder) / "llama-30m")]
        columns = {one.name: measure(one, arrivals) for one in folders}
    title = f"the engine on one thread: {SLOTS} slots, blocks of {BLOCK_SIZE}"
    return conclude("serving", title, GOALS, columns, record=args.record)


if __name__ == "__main__":
    sys.exit(main())
