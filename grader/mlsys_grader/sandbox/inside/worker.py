"""The process that submissions run in: a launcher that imports torch once, and a jailed child for every submission.

    judge ── control ──▶ launcher          imports the lab's calls and torch; runs no learner's code, ever
                            └─▶ attendant    kills the child when the judge lets go, tells its end
                                  └─▶ child    in namespaces of its own; loads the artifact, answers the judge

The launcher keeps spares: children that have shed all rights and wait for a submission. The judge asks with one byte
and gets the two ends of a spare; from then on judge and child talk without the launcher.

The child decides nothing: arrays come in, the learner's code is called, arrays or a description of the trouble go out.
Nothing that decides is here either: no oracle, no comparison, no other submission. Runs inside bubblewrap as `python
-c "from mlsys_grader.sandbox.inside.worker import main; main()"` with the control socket as standard input.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import random
import re
import select
import signal
import socket
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import IO, Any, NoReturn

from mlsys_checks.sandboxed.kernels.loading import import_interpreters, load_kernels
from mlsys_checks.sandboxed.spec import Call, Mismatch, bind_partner, find_call
from mlsys_grader.sandbox.inside import jail, replies, watch, wire
from mlsys_grader.sandbox.inside.compiler import disable_compiler
from mlsys_grader.sandbox.inside.partner import PartnerClient
from mlsys_grader.sandbox.inside.timed import handle_timed
from mlsys_lab.errors import CourseError, UnfinishedError
from mlsys_lab.stack.artifact import Artifact
from mlsys_lab.stack.limits import OutOfTimeError, time_limit
from mlsys_lab.stack.loading import ArtifactLoader, describe, find_endless, load

Answer = Callable[[Any, wire.Frame], wire.Frame]
"""What answers a question about the loaded module."""
POLL_S = 0.02
FILE_BYTES = 16 << 20
PROCESSES = 128
"""Threads count too: eight ranks of gloo have about eighty."""
IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import\b[ \t(]*([\w, \t]*)|import[ \t]+([\w., \t]+))", re.MULTILINE
)


@dataclass(frozen=True)
class Spare:
    """The judge's ends of a child that waits for a submission."""

    channel: socket.socket
    supervisor: socket.socket

    def close(self) -> None:
        """Give the ends up; unless the judge holds them too, the child ends."""
        self.channel.close()
        self.supervisor.close()


def main() -> NoReturn:
    """Hand over children until the judge closes the control socket."""
    control = socket.socket(fileno=os.dup(0))
    _redirect_to_null()
    warm_up()
    start = wire.receive(control).meta
    for module in start["modules"]:
        importlib.import_module(module)
    if start["traced"]:
        import_interpreters()
    gc.collect()
    gc.freeze()  # or each child would walk through all of torch whenever it collects garbage
    wire.send(control, wire.Frame("ready"))
    control.settimeout(None)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # attendants are reaped by the kernel
    spares = deque(_fork_spare(jailed=start["jailed"]) for _ in range(start["spares"]))
    while control.recv(1):
        spare = spares.popleft()
        socket.send_fds(control, [b"j"], [spare.channel.fileno(), spare.supervisor.fileno()])
        spare.close()
        spares.append(_fork_spare(jailed=start["jailed"]))
    os._exit(0)


def warm_up() -> None:
    """Import torch and what it imports at its first use; with one thread, because threads do not survive a fork."""
    import torch

    torch.set_num_threads(1)
    disable_compiler()
    _seed(0)
    with contextlib.suppress(ImportError):  # a lab may withhold it
        from mlsys_lab.benchmark.memory import track_memory

        with track_memory(), torch.inference_mode():
            (torch.ones(2, 2) @ torch.ones(2, 2)).tanh().sum().item()


def _redirect_to_null() -> None:
    """What a submission prints goes nowhere; the launcher's own trouble goes to its standard error until here."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(null, descriptor)
    os.close(null)


def _fork_spare(*, jailed: bool) -> Spare:
    """Fork an attendant with its child. It dies when nobody holds the spare's ends any more."""
    channel, inner_channel = socket.socketpair()
    supervisor, inner_supervisor = socket.socketpair()
    if os.fork() == 0:
        try:
            keep_only(inner_channel.fileno(), inner_supervisor.fileno())
            _supervise(inner_channel, inner_supervisor, jailed=jailed)
        finally:  # whatever happened, a fork never goes on as a second launcher
            os._exit(1)
    inner_channel.close()
    inner_supervisor.close()
    return Spare(channel, supervisor)


def keep_only(*kept: int) -> None:
    """Close every other descriptor above standard error: the judge's end of another child must be in no child."""
    low = 3
    for descriptor in sorted(kept):
        os.closerange(low, descriptor)
        low = descriptor + 1
    os.closerange(low, 1 << 16)


def _supervise(channel: socket.socket, supervisor: socket.socket, *, jailed: bool) -> None:
    """Fork the child and wait for its end or the judge's; whoever is left then is killed."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    budget, budget_pipe = os.pipe()
    if jailed:
        proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)  # the child's furniture hides it
        jail.unshare()
    pid = os.fork()
    if pid == 0:
        _run_child(channel, budget_pipe, jailed=jailed)
    channel.close()
    os.close(budget_pipe)
    ended = os.pidfd_open(pid)
    monitor = watch.Monitor(proc, pid) if jailed else None
    sources, excess, released, over = [supervisor.fileno(), ended, budget], "", False, False
    while not (released or over or excess):
        ready = select.select(sources, [], [], POLL_S)[0]
        over = ended in ready
        if budget in ready:
            sources.remove(budget)
            if monitor:
                monitor.read_budget(budget)
        if supervisor.fileno() in ready:
            released = not _send_usage(supervisor, monitor)
        excess = monitor.excess() if monitor else ""
    _kill(pid, jailed=jailed)
    _, status = os.waitpid(pid, 0)
    if not released:
        with contextlib.suppress(wire.WireError):
            wire.send(supervisor, wire.Frame("ended", {"code": os.waitstatus_to_exitcode(status), "excess": excess}))
    supervisor.close()  # so that the judge need not wait until this process has given back its own memory


def _send_usage(supervisor: socket.socket, monitor: watch.Monitor | None) -> bool:
    """Tell the judge, who has asked with one byte, what the job has used; False when the judge has let go instead."""
    with contextlib.suppress(OSError, wire.WireError):
        if supervisor.recv(1):
            cpu_s, waited_s = monitor.time_used() if monitor else (None, None)
            wire.send(supervisor, wire.Frame("used", {"cpu_s": cpu_s, "waited_s": waited_s}))
            return True
    return False


def _kill(pid: int, *, jailed: bool) -> None:
    """In the jail the child is process 1 of its namespace and takes all it started along; outside it leads a group."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL) if jailed else os.killpg(pid, signal.SIGKILL)


def _run_child(channel: socket.socket, budget_pipe: int, *, jailed: bool) -> NoReturn:
    """Shed all rights, say so, and only then take a submission."""
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):  # the launcher's are open once for all jobs: what one sets on them another reads
            os.dup2(null, descriptor)
        status = jail.open_status()
        keep_only(channel.fileno(), status.fileno(), budget_pipe)
        os.setsid()  # a signal to the own group reaches it across process namespaces: the launcher must not be in it
        if jailed:
            jail.isolate()
        wire.send(channel, wire.Frame("ready"))
        serve(channel, status, budget_pipe, jailed=jailed)
    except BaseException as error:
        with contextlib.suppress(BaseException):
            wire.send(channel, replies.describe_failure(error))
    os._exit(0)


def serve(channel: socket.socket, status: IO[str], budget_pipe: int, *, jailed: bool) -> None:
    """Load the submission that the first frame brings, then answer frame after frame until the judge is gone.

    Every answer repeats the number of its question, so that the judge takes nothing for it that was sent before.
    """
    try:
        order = wire.receive(channel).meta
        jail.limit(cpu_s=order["cpu_s"], file_bytes=FILE_BYTES, processes=PROCESSES)
        if not order.get("traced"):  # where kernels are traced, nothing else is to have run: no import either
            _preload_imports(order["source"])
        gc.freeze()
        already = jail.read_data_bytes(status)
        status.close()
        watch.send_budget(
            budget_pipe,
            memory_bytes=order["memory_bytes"],
            cpu_s=order["cpu_s"],
            inherited_bytes=order.get("inherited_bytes", watch.INHERITED_BYTES),
        )
        if jailed:
            jail.limit_memory(order["memory_bytes"], already)
        artifact = Artifact.parse(order["name"], order["source"], order.get("elsewhere", ()))
        module, reply = _load(artifact, order)
        if module is not None:
            vars(module).update((name, partial(str, text)) for name, text in order.get("kernel_sources", {}).items())
        _answer(channel, order["nonce"], reply)
        kinds: dict[str, Answer] = {
            **KINDS,
            "rank": partial(_rank, channel),
            "case with partner": partial(_case_with_partner, channel),
        }
        while reply.kind == "loaded":
            request = wire.receive(channel)
            try:
                answer = kinds[request.kind](module, request)
            except BaseException as error:
                answer = replies.describe_failure(error)
            _answer(channel, request.meta["nonce"], answer)
    except wire.ClosedError:
        return


def _answer(channel: socket.socket, nonce: str, reply: wire.Frame) -> None:
    try:
        wire.send(channel, wire.Frame(reply.kind, {**reply.meta, "nonce": nonce}, reply.arrays))
    except wire.ClosedError:
        raise
    except (wire.WireError, MemoryError) as error:
        wire.send(channel, wire.Frame("broken", {**replies.describe_failure(error).meta, "nonce": nonce}))


def _preload_imports(source: str) -> None:
    """Import installed modules that the artifact imports, so that their memory does not count against its budget.

    Lines that look like an import will do: what they name wrongly is not installed, or does no harm. What is imported
    from a package may be a module of it, such as `stats` in `from scipy import stats`.
    """
    for package, parts, modules in IMPORT.findall(source):
        names = (
            [package, *(f"{package}.{part}" for part in _imported_names(parts))]
            if package
            else _imported_names(modules)
        )
        for name in names:
            with contextlib.suppress(Exception, SystemExit):  # the artifact will see it for itself
                importlib.import_module(name)


def _imported_names(listed: str) -> list[str]:
    """The names of a list with commas, each without what it is imported as."""
    return [words[0] for words in map(str.split, listed.split(",")) if words]


def _load(artifact: Artifact, order: Mapping[str, Any]) -> tuple[Any, wire.Frame]:
    """The module of exported cells, or of the kernels in them, and what to tell the judge of it."""
    limit_s = order["time_limit_s"]
    loader_of = partial(ArtifactLoader, limit_s=limit_s, endless=order.get("endless", ()))
    try:
        with time_limit(limit_s, patience=inf):
            module = load_kernels(artifact) if order.get("traced") else load(artifact, loader_of=loader_of)
            return module, wire.Frame("loaded", {"endless": find_endless(module)})
    except OutOfTimeError:
        problem = Mismatch("the exported cells do not come to an end", f"nothing after {limit_s:g} s", "a module")
        return None, replies.describe_problem("not loaded", problem, unfinished=False)
    except MemoryError:
        problem = Mismatch("the exported cells need too much memory", replies.REFUSED_MEMORY, "")
        return None, replies.describe_problem("not loaded", problem, unfinished=False)
    except CourseError as error:
        got, expected = str(error.got or ""), str(error.expected or error.help)
        return None, replies.describe_problem(
            "not loaded", Mismatch(error.what, got, expected), isinstance(error, UnfinishedError)
        )
    except BaseException as error:
        problem = Mismatch("the exported cells end themselves", describe(error), "cells that run to their end")
        return None, replies.describe_problem("not loaded", problem, unfinished=False)


def _case(module: Any, request: wire.Frame) -> wire.Frame:
    """Call the learner's code once, with the same random numbers whatever was called before."""
    call = _prepare(request)
    return replies.answer(call, module, request.arrays)


def _rank(channel: socket.socket, module: Any, request: wire.Frame) -> wire.Frame:
    """Call the learner's code once as one of several ranks, whose messages cross the channel before the answer."""
    from mlsys_grader.sandbox.inside.ranks import answer_rank  # a lab may withhold what it imports

    return answer_rank(channel, module, request, _prepare(request))


def _case_with_partner(channel: socket.socket, module: Any, request: wire.Frame) -> wire.Frame:
    """Call the learner's code once; what it asks the check's partner crosses the channel before the answer."""
    with PartnerClient(channel, request.meta["nonce"]) as partner:
        call = bind_partner(_prepare(request), partner.query)
        return replies.answer(call, module, request.arrays)


def _prepare(request: wire.Frame) -> Call:
    """Seed all generators, take back what a notebook set for all of PyTorch, and find what is to be called."""
    import torch

    meta = request.meta
    _seed(meta["random_seed"])
    torch.set_num_threads(1)  # each more would have 8 MiB of a check's memory for its stack
    torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    return Call(find_call(meta["call"]), tuple(meta["uses"]), meta["time_limit_s"], meta["memory_bytes"])


KINDS: dict[str, Answer] = {
    "case": _case,
    "go": handle_timed,
    "show": handle_timed,
}
"""What a judge may ask, by the frame's kind: a function of the loaded module and the question that gives the answer."""


def _seed(seed: int) -> None:
    """Seed the generators that a submission may draw from without seeding them itself."""
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would also note where it was called, for CUDA's sake
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)
