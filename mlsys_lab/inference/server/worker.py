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
from collections.abc import Iterator
from functools import partial
from typing import BinaryIO

from mlsys_lab.errors import CourseError, InputError
from mlsys_lab.inference.adapters import load_adapter
from mlsys_lab.inference.engine import Build, Engine, Limits, Written, build_scheduler
from mlsys_lab.inference.generate import Request, Sampling
from mlsys_lab.inference.pretrained import load_pair
from mlsys_lab.inference.server.messages import (
    Abort,
    Ask,
    Begun,
    Failed,
    Lines,
    Message,
    Piece,
    Ready,
    Refused,
    Start,
    State,
    Watch,
)
from mlsys_lab.inference.server.view import Recorder
from mlsys_lab.inference.text import Message as Turn
from mlsys_lab.inference.text import Stream, encode_chat
from mlsys_lab.inference.text.chat import END
from mlsys_lab.models.training import one_thread

Inbox = queue.SimpleQueue[Message | None]


class Worker:
    """An engine of the shipped model that is told by messages what to do, and tells by messages what came of it."""

    def __init__(self, start: Start) -> None:
        pair = load_pair()
        self.tokenizer, self.end = pair.tokenizer, pair.tokenizer.special_id(END)
        build = load_build(start.scheduler) if start.scheduler else build_scheduler
        adapters = {name: load_adapter(folder, pair.target) for name, folder in start.adapters.items()}
        limits = Limits(sequences=start.sequences)
        self.engine = Engine(pair.target, pages=start.blocks, limits=limits, build=build, adapters=adapters)
        tables = self.engine.cache.tables
        self.recorder = Recorder(self.engine.scheduler)
        self.room = min(pair.target.config.context, start.blocks * tables.page + 1)
        self.asked: dict[int, Ask] = {}  # by the engine's number of the request
        self.sent: dict[int, list[int]] = {}  # tokens of each text of a request
        self.left: dict[int, int] = {}  # texts that have not ended

    def take(self, message: Message) -> Iterator[Message]:
        """Begin or forget a request, or show a watcher where the engine stands."""
        if isinstance(message, Ask):
            try:
                request = self._request(message)
                number = self.engine.add(request, adapter=message.adapter)
            except InputError as error:
                yield Refused(message.number, str(error))
                return
            self.asked[number], self.left[number], self.sent[number] = message, message.count, [0] * message.count
            yield Begun(message.number, len(request.prompt))
        elif isinstance(message, Abort):
            for number in [one for one, ask in self.asked.items() if ask.number == message.number]:
                self.engine.abort(number)
                self._forget(number)
        elif isinstance(message, Watch):
            self.recorder.watch(message.on)
            if message.on:
                yield self.recorder.show()

    def step(self) -> Iterator[Message]:
        """Run the engine's next step, if there is one; its pieces, where it stands, and what watchers see."""
        idle = self.engine.idle
        for written in self.engine.step():
            yield self._piece(written)
            if written.completion:
                self.left[written.request] -= 1
                if not self.left[written.request]:
                    self._forget(written.request)
        scheduler, batch = self.engine.scheduler, self.engine.batch
        tokens = 0 if idle or batch is None else batch.tokens
        waiting, running = len(scheduler.waiting), len(scheduler.running)
        yield State(waiting, running, tokens, self.engine.cache.tables.blocks.used, scheduler.steps)
        if self.recorder.watched:
            if batch and not idle:
                self.recorder.note(batch)
            if self.recorder.due:
                yield self.recorder.show()

    def _request(self, ask: Ask) -> Request:
        if ask.chat is not None:
            prompt = encode_chat(self.tokenizer, [Turn(role, content) for role, content in ask.chat])
        elif isinstance(ask.prompt, str):
            # A text begins where another one ended: so it was in training.
            prompt = [self.end, *self.tokenizer.encode(ask.prompt)]
        else:
            prompt = ask.prompt or []
        most = max(1, self.room - len(prompt)) if ask.max_tokens is None else ask.max_tokens
        greedy = ask.temperature == 0  # draws nothing, so that there is nothing to leave out or to seed
        top_p, seed = (None, None) if greedy else (ask.top_p, ask.seed)
        sampling = Sampling(temperature=ask.temperature, top_p=top_p, seed=seed)
        stream = partial(Stream, self.tokenizer)
        return Request(prompt, most, sampling, stop=[[self.end]], count=ask.count, stop_strings=ask.stop, stream=stream)

    def _piece(self, written: Written) -> Piece:
        ask, completion = self.asked[written.request], written.completion
        sent = self.sent[written.request]
        # What ends a text is no part of it.
        new = max(0, len(completion.tokens) - sent[written.choice]) if completion else len(written.tokens)
        sent[written.choice] += len(written.tokens)
        shown = new if ask.logprobs else 0
        return Piece(
            ask.number,
            written.choice,
            len(written.tokens),
            written.piece or "",
            [list(self.tokenizer.token_bytes(token)) for token in written.tokens[:shown]],
            list(written.logprobs[:shown]),
            completion.reason if completion else None,
            len(completion.tokens) if completion else 0,
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
        raise InputError(f"{path} makes no scheduler", expected="a function build(pages, page, limits)")
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
    _send(out, [Ready(worker.engine.adapters.size_bytes)])
    while True:
        messages = [inbox.get()] if worker.engine.idle else []
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
