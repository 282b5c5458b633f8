"""The process that submissions run in: a launcher that imports torch once, and an isolated child per submission.

    judge ── control ──▶ launcher            imports the lab's calls and torch; never runs a learner's code
                            └─▶ supervisor    kills the child when the judge lets go, reports its exit
                                  └─▶ child   in its own namespaces: loads the artifact, serves the judge

The launcher keeps spares: unprivileged children that wait for a submission. The judge sends one byte and gets both ends
of a spare; from then on judge and child communicate directly.

The child decides nothing: arrays come in, the learner's code is called, arrays or a problem go out. No oracle,
comparison or other submission is here. Runs inside bubblewrap as `python -c "from mlsys_grader.sandbox.inside.worker
import main; main()"` with the control socket as standard input.
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

Handler = Callable[[Any, wire.Frame], wire.Frame]
"""Serves one kind of request on the loaded module."""
POLL_S = 0.02
FILE_BYTES = 16 << 20
PROCESSES = 128
"""Threads count: eight gloo ranks have about eighty."""
IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import\b[ \t(]*([\w, \t]*)|import[ \t]+([\w., \t]+))", re.MULTILINE
)


@dataclass(frozen=True)
class Spare:
    """The judge's ends of a waiting child."""

    channel: socket.socket
    supervisor: socket.socket

    def close(self) -> None:
        """Close these ends; the child ends unless the judge holds copies."""
        self.channel.close()
        self.supervisor.close()


def main() -> NoReturn:
    """Serve spares until the judge closes the control socket."""
    control = socket.socket(fileno=os.dup(0))
    _redirect_to_null()
    warm_up()
    start = wire.receive(control).meta
    for module in start["modules"]:
        importlib.import_module(module)
    if start["traced"]:
        import_interpreters()
    gc.collect()
    gc.freeze()  # otherwise garbage collection in a child would touch all of torch
    wire.send(control, wire.Frame("ready"))
    control.settimeout(None)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors are reaped by the kernel
    spares = deque(_fork_spare(jailed=start["jailed"]) for _ in range(start["spares"]))
    while control.recv(1):
        spare = spares.popleft()
        socket.send_fds(control, [b"j"], [spare.channel.fileno(), spare.supervisor.fileno()])
        spare.close()
        spares.append(_fork_spare(jailed=start["jailed"]))
    os._exit(0)


def warm_up() -> None:
    """Import torch and its lazy imports; single-threaded, because threads do not survive a fork."""
    import torch

    torch.set_num_threads(1)
    disable_compiler()
    _seed(0)
    with contextlib.suppress(ImportError):  # a lab may withhold it
        from mlsys_lab.benchmark.memory import track_memory

        with track_memory(), torch.inference_mode():
            (torch.ones(2, 2) @ torch.ones(2, 2)).tanh().sum().item()


def _redirect_to_null() -> None:
    """Discard what submissions print; the launcher's own errors go to its standard error."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(null, descriptor)
    os.close(null)


def _fork_spare(*, jailed: bool) -> Spare:
    """Fork a supervisor with its child. Both end when the spare's ends are closed everywhere."""
    channel, inner_channel = socket.socketpair()
    supervisor, inner_supervisor = socket.socketpair()
    if os.fork() == 0:
        try:
            keep_only(inner_channel.fileno(), inner_supervisor.fileno())
            _supervise(inner_channel, inner_supervisor, jailed=jailed)
        finally:  # a fork must never continue as a second launcher
            os._exit(1)
    inner_channel.close()
    inner_supervisor.close()
    return Spare(channel, supervisor)


def keep_only(*kept: int) -> None:
    """Close all other descriptors above standard error: no child may hold the judge's end of another."""
    low = 3
    for descriptor in sorted(kept):
        os.closerange(low, descriptor)
        low = descriptor + 1
    os.closerange(low, 1 << 16)


def _supervise(channel: socket.socket, supervisor: socket.socket, *, jailed: bool) -> None:
    """Fork the child, wait until it exits, exceeds its budget or the judge lets go, then kill it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    budget, budget_pipe = os.pipe()
    if jailed:
        proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)  # the child's own mounts hide it
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
    supervisor.close()  # the judge need not wait until this process's memory is freed


def _send_usage(supervisor: socket.socket, monitor: watch.Monitor | None) -> bool:
    """Answer the judge's one-byte request for the job's usage; False if the judge has let go instead."""
    with contextlib.suppress(OSError, wire.WireError):
        if supervisor.recv(1):
            cpu_s, waited_s = monitor.time_used() if monitor else (None, None)
            wire.send(supervisor, wire.Frame("used", {"cpu_s": cpu_s, "waited_s": waited_s}))
            return True
    return False


def _kill(pid: int, *, jailed: bool) -> None:
    """Kill the job: the child is process 1 of its namespace if jailed, else the leader of a process group."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL) if jailed else os.killpg(pid, signal.SIGKILL)


def _run_child(channel: socket.socket, budget_pipe: int, *, jailed: bool) -> NoReturn:
    """Drop all rights, report ready, and only then take a submission."""
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (
            0,
            1,
            2,
        ):  # the launcher's are shared by all jobs, which could communicate through their flags
            os.dup2(null, descriptor)
        status = jail.open_status()
        keep_only(channel.fileno(), status.fileno(), budget_pipe)
        os.setsid()  # a signal to the own group crosses namespaces and must not reach the launcher
        if jailed:
            jail.isolate()
        wire.send(channel, wire.Frame("ready"))
        serve(channel, status, budget_pipe, jailed=jailed)
    except BaseException as error:
        with contextlib.suppress(BaseException):
            wire.send(channel, replies.describe_failure(error))
    os._exit(0)


def serve(channel: socket.socket, status: IO[str], budget_pipe: int, *, jailed: bool) -> None:
    """Load the submission in the first frame, then serve requests until the judge is gone.

    Every answer carries the nonce of its request, so that no earlier frame passes for it.
    """
    try:
        order = wire.receive(channel).meta
        jail.limit(cpu_s=order["cpu_s"], file_bytes=FILE_BYTES, processes=PROCESSES)
        if not order.get("traced"):  # nothing but kernels may run in a traced process, not even an import
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
        kinds: dict[str, Handler] = {
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
    """Import what the artifact imports, so that installed modules do not count against its memory budget.

    A line that looks like an import is enough: a wrong name is not installed, or harmless. In `from scipy import
    stats`, `stats` may be a module as well.
    """
    for package, parts, modules in IMPORT.findall(source):
        names = (
            [package, *(f"{package}.{part}" for part in _imported_names(parts))]
            if package
            else _imported_names(modules)
        )
        for name in names:
            with contextlib.suppress(Exception, SystemExit):  # the artifact will report it
                importlib.import_module(name)


def _imported_names(listed: str) -> list[str]:
    """The names in a comma-separated list, without their `as` parts."""
    return [words[0] for words in map(str.split, listed.split(",")) if words]


def _load(artifact: Artifact, order: Mapping[str, Any]) -> tuple[Any, wire.Frame]:
    """Load the exported cells, or only their kernels; returns the module and the reply."""
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
    """Call the learner's code with reseeded random generators."""
    call = _prepare(request)
    return replies.answer(call, module, request.arrays)


def _rank(channel: socket.socket, module: Any, request: wire.Frame) -> wire.Frame:
    """Call the learner's code as one of several ranks; its messages precede the answer."""
    from mlsys_grader.sandbox.inside.ranks import answer_rank  # a lab may withhold its imports

    return answer_rank(channel, module, request, _prepare(request))


def _case_with_partner(channel: socket.socket, module: Any, request: wire.Frame) -> wire.Frame:
    """Call the learner's code; its queries to the check's partner precede the answer."""
    with PartnerClient(channel, request.meta["nonce"]) as partner:
        call = bind_partner(_prepare(request), partner.query)
        return replies.answer(call, module, request.arrays)


def _prepare(request: wire.Frame) -> Call:
    """Seed all generators, undo global torch settings of the notebook, and look up the call."""
    import torch

    meta = request.meta
    _seed(meta["random_seed"])
    torch.set_num_threads(1)  # each thread's stack takes 8 MiB of the check's budget
    torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    return Call(find_call(meta["call"]), tuple(meta["uses"]), meta["time_limit_s"], meta["memory_bytes"])


KINDS: dict[str, Handler] = {
    "case": _case,
    "go": handle_timed,
    "show": handle_timed,
}
"""Handlers by frame kind."""


def _seed(seed: int) -> None:
    """Seed the generators that a submission may use without seeding them."""
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would also record its call site for CUDA
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)
