"""The engine's process: lines of `messages` come in by standard input and go out by standard output.

It ends when its input does, so it never outlives the process that started it, and a Ctrl-C is not for it: that process
decides when to end. What anything prints goes to standard error.
"""

from __future__ import annotations

import importlib.util
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from mlsys_lab.errors import CourseError, InputError
from mlsys_lab.inference.adapters import LoRAEngine, load_adapter
from mlsys_lab.inference.engine import Engine, Request, RequestOutput, SamplingParams, Scheduler, SchedulerConfig
from mlsys_lab.inference.pretrained import load_pair
from mlsys_lab.inference.server.messages import (
    Abort,
    Accepted,
    EngineState,
    Failed,
    GenerateRequest,
    Lines,
    Message,
    OutputDelta,
    Ready,
    Rejected,
    Start,
    Watch,
)
from mlsys_lab.inference.server.view import Recorder
from mlsys_lab.inference.text import Detokenizer, Stream, encode_chat
from mlsys_lab.inference.text import Message as Turn
from mlsys_lab.inference.text.chat import END
from mlsys_lab.models.training import one_thread

Inbox = queue.SimpleQueue[Message | None]
BLOCK_SIZE = 16
Build = Callable[[int, int, SchedulerConfig], Scheduler]
"""Type of `build(num_blocks, block_size, config)` in a file of your own."""


class Worker:
    """An engine of the shipped model that is told by messages what to do, and tells by messages what came of it."""

    def __init__(self, start: Start) -> None:
        pair = load_pair()
        self.tokenizer, self.end = pair.tokenizer, pair.tokenizer.special_id(END)
        adapters = {name: load_adapter(folder, pair.target) for name, folder in start.adapters.items()}
        config = SchedulerConfig(max_num_seqs=start.max_num_seqs)
        options: dict[str, Any] = {"num_blocks": start.num_blocks, "block_size": BLOCK_SIZE, "config": config}
        if start.scheduler:
            options["scheduler"] = load_build(start.scheduler)(start.num_blocks, BLOCK_SIZE, config)
        self.engine = (
            LoRAEngine(pair.target, adapters=adapters, **options) if adapters else Engine(pair.target, **options)
        )
        self.recorder = Recorder(self.engine.scheduler)
        self.room = min(pair.target.config.context, start.num_blocks * BLOCK_SIZE + 1)
        self.asked: dict[int, GenerateRequest] = {}  # by the engine's number of the request
        self.sent: dict[int, list[int]] = {}  # tokens of each text of a request
        self.left: dict[int, int] = {}  # texts that have not ended

    def take(self, message: Message) -> Iterator[Message]:
        """Begin or forget a request, or show a watcher where the engine stands."""
        if isinstance(message, GenerateRequest):
            try:
                request = self._request(message)
                number = self._add(request, message.adapter)
            except InputError as error:
                yield Rejected(message.request_id, str(error))
                return
            self.asked[number], self.left[number], self.sent[number] = message, message.n, [0] * message.n
            yield Accepted(message.request_id, len(request.prompt_token_ids))
        elif isinstance(message, Abort):
            for number in [one for one, ask in self.asked.items() if ask.request_id == message.request_id]:
                self.engine.abort_request(number)
                self._forget(number)
        elif isinstance(message, Watch):
            self.recorder.watch(message.on)
            if message.on:
                yield self.recorder.show()

    def step(self) -> Iterator[Message]:
        """Run the engine's next step, if there is one; its deltas, where it stands, and what watchers see."""
        idle = self.engine.is_idle
        for output in self.engine.step():
            yield self._delta(output)
            if output.completion:
                self.left[output.request_id] -= 1
                if not self.left[output.request_id]:
                    self._forget(output.request_id)
        scheduler, last = self.engine.scheduler, self.engine.last_output
        tokens = 0 if idle or last is None else last.total_num_scheduled_tokens
        waiting, running = len(scheduler.waiting), len(scheduler.running)
        yield EngineState(waiting, running, tokens, scheduler.block_manager.pool.num_used_blocks, scheduler.num_steps)
        if self.recorder.watched:
            if last and not idle:
                self.recorder.note(last)
            if self.recorder.due:
                yield self.recorder.show()

    def _request(self, ask: GenerateRequest) -> Request:
        if ask.messages is not None:
            prompt = encode_chat(self.tokenizer, [Turn(role, content) for role, content in ask.messages])
        elif isinstance(ask.prompt, str):
            # A text begins where another one ended: so it was in training.
            prompt = [self.end, *self.tokenizer.encode(ask.prompt)]
        else:
            prompt = ask.prompt or []
        most = max(1, self.room - len(prompt)) if ask.max_tokens is None else ask.max_tokens
        greedy = ask.temperature == 0  # draws nothing, so that there is nothing to leave out or to seed
        top_p, seed = (None, None) if greedy else (ask.top_p, ask.seed)
        sampling_params = SamplingParams(temperature=ask.temperature, top_p=top_p, seed=seed)
        return Request(
            prompt,
            most,
            sampling_params,
            stop=[[self.end]],
            n=ask.n,
            detokenizer=lambda: Detokenizer(Stream(self.tokenizer), ask.stop),
        )

    def _add(self, request: Request, adapter: str | None) -> int:
        if isinstance(self.engine, LoRAEngine):
            return self.engine.add_request(request, adapter=adapter)
        if adapter is not None:
            raise InputError("unknown adapter", got=adapter, expected="none: the engine has no adapters")
        return self.engine.add_request(request)

    def _delta(self, output: RequestOutput) -> OutputDelta:
        ask, completion = self.asked[output.request_id], output.completion
        sent = self.sent[output.request_id]
        # The stop sequence is not part of the output.
        new = max(0, len(completion.token_ids) - sent[output.index]) if completion else len(output.token_ids)
        sent[output.index] += len(output.token_ids)
        shown = new if ask.logprobs else 0
        return OutputDelta(
            ask.request_id,
            output.index,
            len(output.token_ids),
            output.text or "",
            [list(self.tokenizer.token_bytes(token)) for token in output.token_ids[:shown]],
            list(output.logprobs[:shown]),
            completion.finish_reason if completion else None,
            len(completion.token_ids) if completion else 0,
        )

    def _forget(self, number: int) -> None:
        del self.asked[number], self.left[number], self.sent[number]


def load_build(path: str) -> Build:
    """Run a Python file: the `build` that it defines; InputError where it does not."""
    spec = importlib.util.spec_from_file_location("scheduler", path)
    if spec is None or spec.loader is None:
        raise InputError("no Python file", got=path, help="name one that ends in .py")
    module = sys.modules["scheduler"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not callable(build := getattr(module, "build", None)):
        raise InputError(f"{path} makes no scheduler", expected="a function build(num_blocks, block_size, config)")
    made: Build = build
    return made


def main() -> None:
    """Serve messages until standard input ends."""
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(sys.stderr.fileno(), 1)
        inbox: Inbox = queue.SimpleQueue()
        threading.Thread(target=_read, args=(inbox,), daemon=True).start()
        try:
            with one_thread():
                _serve(inbox, out)
        except BrokenPipeError:
            os._exit(0)  # nobody listens any more, and what was not written never can be


def _serve(inbox: Inbox, out: BinaryIO) -> None:
    start = inbox.get()
    if not isinstance(start, Start):
        return
    try:
        worker = Worker(start)
    except CourseError as error:
        _send(out, [Failed(str(error))])
        return
    engine = worker.engine
    _send(out, [Ready(engine.adapters.size_bytes if isinstance(engine, LoRAEngine) else 0)])
    while True:
        messages = [inbox.get()] if engine.is_idle else []
        while not inbox.empty():
            messages.append(inbox.get())
        for message in messages:
            if message is None:
                return
            _send(out, worker.take(message))
        _send(out, worker.step())


def _read(inbox: Inbox) -> None:
    with open(0, "rb", closefd=False) as lines:
        for line in lines:
            inbox.put(Lines.decode(line))
    inbox.put(None)


def _send(out: BinaryIO, messages: Iterator[Message] | list[Message]) -> None:
    out.writelines(map(Lines.encode, messages))
    out.flush()


if __name__ == "__main__":
    main()
