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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from mlsys_lab.errors import CourseError, InputError
from mlsys_lab.inference.adapters import LoRAEngine, load_adapter
from mlsys_lab.inference.engine import Engine, Request, SamplingParams, Scheduler, SchedulerConfig, SequenceDelta
from mlsys_lab.inference.pretrained import load_pair
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
    Watch,
    decode_command,
    encode,
)
from mlsys_lab.inference.server.snapshot import SnapshotRecorder
from mlsys_lab.inference.text import Detokenizer, Message, Stream, encode_chat
from mlsys_lab.inference.text.chat import END
from mlsys_lab.models.training import one_thread

CommandQueue = queue.SimpleQueue[Command | None]
BLOCK_SIZE = 16
Build = Callable[[int, int, SchedulerConfig], Scheduler]
"""Type of `build(num_blocks, block_size, config)` in a file of your own."""


@dataclass
class OpenRequest:
    """A request that has not finished, with the number of tokens sent of each of its sequences."""

    request: GenerateRequest
    num_sent: list[int]
    num_unfinished: int


class Worker:
    """An engine of the bundled model, driven by commands and reporting by events."""

    def __init__(self, args: EngineArgs) -> None:
        pair = load_pair()
        self.tokenizer, self.end_token_id = pair.tokenizer, pair.tokenizer.special_id(END)
        adapters = {name: load_adapter(folder, pair.target) for name, folder in args.adapters.items()}
        config = SchedulerConfig(max_num_seqs=args.max_num_seqs)
        options: dict[str, Any] = {"num_blocks": args.num_blocks, "block_size": BLOCK_SIZE}
        if args.scheduler:
            options["scheduler"] = load_build(args.scheduler)(args.num_blocks, BLOCK_SIZE, config)
        else:
            options["config"] = config
        self.engine = (
            LoRAEngine(pair.target, adapters=adapters, **options) if adapters else Engine(pair.target, **options)
        )
        self.recorder = SnapshotRecorder(self.engine.scheduler)
        self.max_model_len = min(pair.target.config.context, args.num_blocks * BLOCK_SIZE + 1)
        self.open: dict[int, OpenRequest] = {}  # by the engine's request id

    def handle(self, command: Command) -> Iterator[Event]:
        """Add or abort a request, or enable snapshots."""
        if isinstance(command, GenerateRequest):
            try:
                request = self._build_request(command)
                engine_id = self._add(request, command.adapter)
            except InputError as error:
                yield Rejected(command.request_id, str(error))
                return
            self.open[engine_id] = OpenRequest(command, [0] * command.n, command.n)
            yield Accepted(command.request_id, len(request.prompt_token_ids))
        elif isinstance(command, Abort):
            for engine_id, one in list(self.open.items()):
                if one.request.request_id == command.request_id:
                    self.engine.abort_request(engine_id)
                    del self.open[engine_id]
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

    def _build_request(self, request: GenerateRequest) -> Request:
        if request.messages is not None:
            prompt = encode_chat(self.tokenizer, [Message(role, content) for role, content in request.messages])
        elif isinstance(request.prompt, str):
            # In training, every text follows the end token of another.
            prompt = [self.end_token_id, *self.tokenizer.encode(request.prompt)]
        else:
            prompt = request.prompt or []
        max_tokens = max(1, self.max_model_len - len(prompt)) if request.max_tokens is None else request.max_tokens
        # Greedy sampling draws nothing: a seed and top_p would have no effect.
        top_p, seed = (None, None) if request.temperature == 0 else (request.top_p, request.seed)
        return Request(
            prompt,
            max_tokens,
            SamplingParams(temperature=request.temperature, top_p=top_p, seed=seed),
            stop_token_sequences=[[self.end_token_id]],
            n=request.n,
            make_detokenizer=lambda: Detokenizer(Stream(self.tokenizer), request.stop),
        )

    def _add(self, request: Request, adapter: str | None) -> int:
        if isinstance(self.engine, LoRAEngine):
            return self.engine.add_request(request, adapter=adapter)
        if adapter is not None:
            raise InputError("unknown adapter", got=adapter, expected="none: the engine has no adapters")
        return self.engine.add_request(request)

    def _delta(self, output: SequenceDelta) -> OutputDelta:
        one, completion = self.open[output.request_id], output.completion
        num_new = len(output.token_ids)
        if completion:  # which does not contain the stop sequence
            num_new = max(0, len(completion.token_ids) - one.num_sent[output.index])
        one.num_sent[output.index] += len(output.token_ids)
        num_logprobs = num_new if one.request.logprobs else 0
        return OutputDelta(
            one.request.request_id,
            output.index,
            len(output.token_ids),
            output.text or "",
            [self.tokenizer.token_bytes(token_id) for token_id in output.token_ids[:num_logprobs]],
            list(output.logprobs[:num_logprobs]),
            completion.finish_reason if completion else None,
            len(completion.token_ids) if completion else 0,
        )


def load_build(path: str) -> Build:
    """Run a Python file and return the function `build` that it defines; InputError if it defines none."""
    spec = importlib.util.spec_from_file_location("scheduler", path)
    if spec is None or spec.loader is None:
        raise InputError("not a Python file", got=path, help="name one that ends in .py")
    module = sys.modules["scheduler"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not callable(build := getattr(module, "build", None)):
        raise InputError(f"{path} defines no scheduler", expected="a function build(num_blocks, block_size, config)")
    checked: Build = build
    return checked


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
    _send(out, [Ready(engine.adapters.size_bytes if isinstance(engine, LoRAEngine) else 0)])
    while True:
        batch = [commands.get()] if engine.is_idle else []
        while not commands.empty():
            batch.append(commands.get())
        for command in batch:
            if command is None:
                return
            _send(out, worker.handle(command))
        _send(out, worker.step())


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
