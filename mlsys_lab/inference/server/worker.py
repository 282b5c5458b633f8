"""The engine's process: commands arrive on standard input, events leave on standard output.

It ends when its input does, so it never outlives the process that started it. That process also decides what a Ctrl-C
means. Anything printed goes to standard error.
"""

from __future__ import annotations

import importlib.util
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import torch

from mlsys_lab.efficiency.quantization import QuantizedLinear, load_checkpoint
from mlsys_lab.errors import CourseError, InputError, MissingToolError
from mlsys_lab.inference.adapters import LoRAEngine, load_adapter
from mlsys_lab.inference.engine import Engine, Request, SamplingParams, Scheduler, SchedulerConfig, SequenceDelta
from mlsys_lab.inference.engine.model_runner import ModelRunner
from mlsys_lab.inference.engine.sampler import top_logprobs
from mlsys_lab.inference.engine.sequence import TopLogprobs
from mlsys_lab.inference.pretrained import FOLDER, load_pair
from mlsys_lab.inference.server.messages import (
    Abort,
    Accepted,
    Command,
    EngineArgs,
    EngineState,
    Event,
    GenerateRequest,
    OutputDelta,
    Ready,
    Rejected,
    StartupFailed,
    TokenLogprob,
    Watch,
    decode_command,
    encode,
)
from mlsys_lab.inference.server.snapshot import SnapshotRecorder
from mlsys_lab.inference.server.trace import TraceWriter
from mlsys_lab.inference.speculative import SpeculativeEngine, make_drafter
from mlsys_lab.inference.text import ChatTokenizer, Detokenizer, Stream, load_tokenizer
from mlsys_lab.models import Transformer
from mlsys_lab.models.training import one_thread

if TYPE_CHECKING:
    from mlsys_lab.inference.structured import GrammarCompiler

CommandQueue = queue.SimpleQueue[Command | None]
BLOCK_SIZE = 16
Build = Callable[[int, int, SchedulerConfig], Scheduler]
"""Type of `build(num_blocks, block_size, config)` in a file of your own."""


@dataclass
class OpenRequest:
    """One prompt of a request that has not finished: the number of its first sequence, and tokens sent of each."""

    request: GenerateRequest
    first_index: int
    num_sent: list[int]
    num_unfinished: int
    prompt: list[int]
    arrived_s: float


class Worker:
    """An engine of the served model, driven by commands and reporting by events."""

    def __init__(self, args: EngineArgs) -> None:
        self.model, self.tokenizer, draft = load_models(args)
        adapters = {name: load_adapter(folder, self.model) for name, folder in args.adapters.items()}
        config = SchedulerConfig(max_num_seqs=args.max_num_seqs)
        options: dict[str, Any] = {"num_blocks": args.num_blocks, "block_size": BLOCK_SIZE, "compiled": True}
        if args.scheduler:
            build, runner = load_layers(args.scheduler)
            options["scheduler"] = build(args.num_blocks, BLOCK_SIZE, config)
        else:
            options["config"], runner = config, None
        self.engine: Engine
        if adapters and runner:
            raise InputError("adapters need the package's own model runner", got=args.scheduler, help="leave one out")
        if adapters:
            self.engine = LoRAEngine(self.model, adapters=adapters, **options)
        elif draft:
            self.engine = SpeculativeEngine(self.model, drafter=lambda: make_drafter(draft), adaptive=True, **options)
        else:
            kind = type("OwnEngine", (Engine,), {"model_runner_class": runner}) if runner else Engine
            self.engine = kind(self.model, **options)
        self.recorder = SnapshotRecorder(self.engine.scheduler)
        self.trace = TraceWriter(args.trace) if args.trace else None
        self.max_model_len = min(self.model.config.context, args.num_blocks * BLOCK_SIZE + 1)
        self.open: dict[int, OpenRequest] = {}  # by the engine's request id

    @cached_property
    def grammars(self) -> GrammarCompiler:
        """The compiler of grammars, built by the first request with one: a second or two for 150,000 tokens."""
        try:
            from mlsys_lab.inference.structured import GrammarCompiler
        except ModuleNotFoundError as error:
            raise MissingToolError(f"{error.name} is not installed", help="pip install 'mlsys-lab[serve]'") from None
        return GrammarCompiler(self.tokenizer, self.model.config.vocab_size)

    def handle(self, command: Command) -> Iterator[Event]:
        """Add or abort a request, or enable snapshots."""
        if isinstance(command, GenerateRequest):
            yield from self._generate(command)
        elif isinstance(command, Abort):
            self._abort(command.request_id)
        elif isinstance(command, Watch):
            self.recorder.enable(command.is_enabled)
            if command.is_enabled:
                yield self.recorder.take()

    def step(self) -> Iterator[Event]:
        """Run the engine's next step, if there is one; yield outputs, state, and a snapshot if due."""
        was_idle = self.engine.is_idle
        for output in self.engine.step():
            yield self._delta(output)
            if output.completion:
                if self.trace:
                    one = self.open[output.request_id]
                    self.trace.write_request(one.arrived_s, one.prompt, one.num_sent[output.index])
                self.open[output.request_id].num_unfinished -= 1
                if not self.open[output.request_id].num_unfinished:
                    del self.open[output.request_id]
        scheduler, last = self.engine.scheduler, self.engine.last_scheduler_output
        num_tokens = 0 if was_idle or last is None else last.total_num_scheduled_tokens
        num_used_blocks = scheduler.block_manager.pool.num_used_blocks
        yield EngineState(
            len(scheduler.waiting), len(scheduler.running), num_tokens, num_used_blocks, scheduler.num_steps
        )
        if self.recorder.is_enabled:
            if last and not was_idle:
                self.recorder.record(last)
            if self.recorder.is_due:
                yield self.recorder.take()

    def _generate(self, command: GenerateRequest) -> Iterator[Event]:
        """Add a request's prompts to the engine, all or none of them."""
        num_sequences = command.n
        try:
            for number, prompt in enumerate(command.prompts):
                request = self._build_request(command, prompt)
                if command.max_tokens == 0:
                    request.validate(self.model)
                    continue
                engine_id = self._add(request, command.adapter)
                first_index = number * num_sequences
                arrived_s = self.trace.now_s() if self.trace else 0.0
                self.open[engine_id] = OpenRequest(
                    command, first_index, [0] * num_sequences, num_sequences, prompt, arrived_s
                )
        except (InputError, MissingToolError) as error:
            self._abort(command.request_id)
            yield Rejected(command.request_id, str(error))
            return
        yield Accepted(command.request_id, sum(map(len, command.prompts)))
        for number, prompt in enumerate(command.prompts):
            logprobs = self._score(prompt, command) if command.prompt_logprobs else []
            finish_reason = "length" if command.max_tokens == 0 else None
            if logprobs or finish_reason:
                for index in range(number * num_sequences, (number + 1) * num_sequences):
                    yield OutputDelta(command.request_id, index, 0, "", [], finish_reason, 0, prompt_logprobs=logprobs)

    def _abort(self, request_id: int) -> None:
        for engine_id, one in list(self.open.items()):
            if one.request.request_id == request_id:
                self.engine.abort_request(engine_id)
                del self.open[engine_id]

    def _build_request(self, request: GenerateRequest, prompt: list[int]) -> Request:
        max_tokens = max(1, self.max_model_len - len(prompt)) if request.max_tokens is None else request.max_tokens
        constraint = None if request.grammar is None else self.grammars.compile(request.grammar)
        stop_token_ids = [*request.stop_token_ids, *([] if request.ignore_eos else self.tokenizer.stop_token_ids)]
        return Request(
            prompt,
            max(1, max_tokens),
            SamplingParams(
                temperature=request.temperature,
                top_k=None if request.top_k is None else min(request.top_k, self.model.config.vocab_size),
                top_p=request.top_p,
                min_p=request.min_p,
                repetition_penalty=request.repetition_penalty,
                presence_penalty=request.presence_penalty,
                frequency_penalty=request.frequency_penalty,
                logit_bias=tuple(request.logit_bias),
                seed=request.seed,
            ),
            stop_token_sequences=[[token] for token in stop_token_ids],
            n=request.n,
            num_top_logprobs=min(request.num_logprobs or 0, self.model.config.vocab_size),
            make_detokenizer=lambda: Detokenizer(Stream(self.tokenizer), request.stop),
            make_constraint=constraint.fork if constraint else None,
        )

    def _add(self, request: Request, adapter: str | None) -> int:
        if isinstance(self.engine, LoRAEngine):
            return self.engine.add_request(request, adapter=adapter)
        if adapter is not None:
            raise InputError("unknown adapter", got=adapter, expected="none: the engine has no adapters")
        return self.engine.add_request(request)

    @torch.no_grad()
    def _score(self, prompt: list[int], request: GenerateRequest) -> list[TokenLogprob]:
        """Log-probabilities of a prompt's tokens, in a forward pass of its own, which leaves the KV cache alone."""
        with self._adapted(request.adapter, len(prompt)):
            logits = self.model(torch.tensor([prompt]))[0]
        logprobs = logits.double().log_softmax(-1)
        scored = [TokenLogprob(prompt[0], self.tokenizer.token_bytes(prompt[0]), None)]
        for token_id, row in zip(prompt[1:], logprobs, strict=False):
            scored.append(self._logprob(token_id, float(row[token_id]), top_logprobs(row, request.num_logprobs or 0)))
        return scored

    def _adapted(self, adapter: str | None, num_tokens: int) -> AbstractContextManager[None]:
        if isinstance(self.engine, LoRAEngine):
            return self.engine.adapters.apply([adapter] * num_tokens)
        return nullcontext()

    def _delta(self, output: SequenceDelta) -> OutputDelta:
        one, completion = self.open[output.request_id], output.completion
        num_new = len(output.token_ids)
        if completion:  # which does not contain the stop sequence
            num_new = max(0, len(completion.token_ids) - one.num_sent[output.index])
        one.num_sent[output.index] += len(output.token_ids)
        num_logprobs = 0 if one.request.num_logprobs is None else num_new
        tokens = zip(output.token_ids[:num_logprobs], output.logprobs, output.top_logprobs, strict=False)
        return OutputDelta(
            one.request.request_id,
            one.first_index + output.index,
            len(output.token_ids),
            output.text or "",
            [self._logprob(*token) for token in tokens],
            completion.finish_reason if completion else None,
            len(completion.token_ids) if completion else 0,
            [],
            *output.stats,
        )

    def _logprob(self, token_id: int, logprob: float, top: TopLogprobs) -> TokenLogprob:
        alternatives = [(other, self.tokenizer.token_bytes(other), value) for other, value in top]
        return TokenLogprob(token_id, self.tokenizer.token_bytes(token_id), logprob, alternatives)


def load_models(args: EngineArgs) -> tuple[Transformer, ChatTokenizer, Transformer | None]:
    """The model to serve, its tokenizer, and the draft model, if there is one.

    Raises:
        InputError: a folder holds no checkpoint that can be served, or a draft model with another vocabulary; adapters
            of a quantized model.
    """
    if args.model is None:
        pair = load_pair()
        model, tokenizer = pair.target, load_tokenizer(FOLDER)
    else:
        model, tokenizer = load_checkpoint(args.model, dtype=torch.float32).eval(), load_tokenizer(Path(args.model))
    if args.adapters and any(isinstance(module, QuantizedLinear) for module in model.modules()):
        help_ = "merge the adapter into the original, then compress"
        raise InputError("adapters are not served on quantized weights", got=args.model, help=help_)
    if args.draft is None:
        return model, tokenizer, None
    draft = load_checkpoint(args.draft, dtype=torch.float32).eval()
    if draft.config.vocab_size != model.config.vocab_size:
        got, expected = f"{draft.config.vocab_size} tokens", f"{model.config.vocab_size}, as the model has"
        raise InputError(f"the draft model {args.draft} has another vocabulary", got=got, expected=expected)
    return model, tokenizer, draft


def load_layers(path: str) -> tuple[Build, type[ModelRunner] | None]:
    """Run a Python file and return the function `build` that it defines, and its `model_runner_class` if it has one.

    Raises InputError for a file without `build`.
    """
    spec = importlib.util.spec_from_file_location("scheduler", path)
    if spec is None or spec.loader is None:
        raise InputError("not a Python file", got=path, help="name one that ends in .py")
    module = sys.modules["scheduler"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not callable(build := getattr(module, "build", None)):
        raise InputError(f"{path} defines no scheduler", expected="a function build(num_blocks, block_size, config)")
    return build, getattr(module, "model_runner_class", None)


def main() -> None:
    """Handle commands until standard input ends."""
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(sys.stderr.fileno(), 1)
        commands: CommandQueue = queue.SimpleQueue()
        threading.Thread(target=_read, args=(commands,), daemon=True).start()
        try:
            with one_thread():
                _run(commands, out)
        except BrokenPipeError:
            os._exit(0)  # the other process has gone; do not flush `out`


def _run(commands: CommandQueue, out: BinaryIO) -> None:
    args = commands.get()
    if not isinstance(args, EngineArgs):
        return
    try:
        worker = Worker(args)
    except CourseError as error:
        _send(out, [StartupFailed(str(error))])
        return
    engine = worker.engine
    adapter_bytes = engine.adapters.size_bytes if isinstance(engine, LoRAEngine) else 0
    _send(out, [Ready(adapter_bytes, worker.max_model_len)])
    while True:
        batch = [commands.get()] if engine.is_idle else []
        started_s = time.perf_counter()
        while not commands.empty():
            batch.append(commands.get())
        for command in batch:
            if command is None:
                return
            _send(out, worker.handle(command))
        is_idle = engine.is_idle
        _send(out, worker.step())
        if worker.trace and not is_idle and engine.last_scheduler_output:
            worker.trace.write_step(time.perf_counter() - started_s, engine.last_scheduler_output)


def _read(commands: CommandQueue) -> None:
    with open(0, "rb", closefd=False) as lines:
        for line in lines:
            commands.put(decode_command(line))
    commands.put(None)


def _send(out: BinaryIO, events: Iterable[Event]) -> None:
    out.writelines(map(encode, events))
    out.flush()


if __name__ == "__main__":
    main()
