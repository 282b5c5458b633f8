"""Run a parser on submitted data in a separate process, with limits on time, memory and size of the result.

    grader ── pickled function and arguments ──▶ worker    one process for many calls; replaced when it dies
           ◀────────── bytes, or JSON ───────────

A regular expression, decompressor or YAML library that a submission blows up takes only the worker with it, and that
submission gets one line. Nothing that comes back is unpickled. The worker is a fresh interpreter, not a fork, because
the grader has threads when it reads submissions.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import pickle
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from threading import Lock
from typing import Any, BinaryIO, NoReturn

from mlsys_grader.paths import IMPORT_PATH
from mlsys_lab.errors import InputError

CPU_S = 20
"""CPU seconds for one call. The largest readable notebook takes about one."""
WALL_S = 180.0
"""Wall-clock seconds for one call: nine times `CPU_S`, since the machine may be busy."""
MEMORY_BYTES = 2 << 30
"""Private memory of the worker."""
OUTPUT_BYTES = 128 << 20
"""Maximum result of one call: twice the largest notebook."""
MAX_CHARACTERS = 300
"""Longest message of an unforeseen exception that is passed on."""
RESULT, JSON, REFUSED = b"r", b"j", b"e"
"""Kinds of replies: bytes, any other result, and the fields of an `InputError`."""
ENTRY = f"import sys; sys.path[:0] = {IMPORT_PATH!r}; from mlsys_grader.intake.bounded import main; main()"


class Worker:
    """A process that makes one call at a time; started by the first call, and again after it died."""

    def __init__(self, *, cpu_s: int = CPU_S, wall_s: float = WALL_S, output_bytes: int = OUTPUT_BYTES) -> None:
        self._cpu_s, self._wall_s, self._output_bytes = cpu_s, wall_s, output_bytes
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def call(self, function: Callable[..., Any], *arguments: object) -> Any:
        """Call a module's function in the worker; return bytes, or any other result as JSON carries it.

        Raises the function's `InputError`, or one that names the limit exceeded. If the worker died for a reason that
        may be elsewhere, such as low memory of the machine, the call is retried once.
        """
        request = pickle.dumps((function, arguments))
        with self._lock:
            self._stopped = False
            for is_last in (False, True):
                try:
                    kind, content = self._request(request)
                    break
                except _EndedError as ended:
                    if is_last or ended.is_final or self._stopped:
                        raise InputError("it cannot be read", got=str(ended)) from None
        if kind == RESULT:
            return content
        result = json.loads(content.decode("utf-8", "surrogatepass"))
        if kind == REFUSED:
            raise InputError(result["what"], got=result["got"], expected=result["expected"], help=result["help"])
        return result

    def stop(self) -> None:
        """Kill the process, even while another thread waits for it."""
        self._stopped = True
        if (process := self._process) is not None:
            process.kill()
            if self._lock.acquire(blocking=False):  # otherwise the waiting thread cleans up
                self._end(process)
                self._lock.release()

    def _request(self, request: bytes) -> tuple[bytes, bytes]:
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(len(request).to_bytes(8, "big") + request)
            process.stdin.flush()
            deadline = time.monotonic() + self._wall_s
            head = self._read(process, 9, deadline)
            size = int.from_bytes(head[1:], "big")
            if size > self._output_bytes:
                raise _EndedError(f"more than {self._output_bytes >> 20} MB", is_final=True)
            return head[:1], self._read(process, size, deadline)
        except BaseException as error:
            self._end(process)
            if process.returncode == -signal.SIGXCPU:
                raise _EndedError(f"more than {self._cpu_s} s of processor time", is_final=True) from None
            if isinstance(error, BrokenPipeError):
                raise _EndedError("the process that reads it has ended") from None
            raise

    def _read(self, process: subprocess.Popen[bytes], size: int, deadline: float) -> bytes:
        assert process.stdout is not None
        descriptor, content = process.stdout.fileno(), bytearray()
        ready = select.poll()
        ready.register(descriptor, select.POLLIN)
        while len(content) < size:
            if not ready.poll(max(deadline - time.monotonic(), 0) * 1000):
                raise _EndedError(f"no answer after {self._wall_s:g} s")
            if not (piece := os.read(descriptor, min(size - len(content), 1 << 20))):
                raise _EndedError(f"the process that reads it has ended, at most {MEMORY_BYTES >> 30} GiB of memory")
            content += piece
        return bytes(content)

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-s", "-P", "-B", "-c", ENTRY, str(self._cpu_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # the grader handles Ctrl-C
        )

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # data still to be sent
                    pipe.close()
        process.wait()
        self._process = None


class _EndedError(Exception):
    """The worker hit a limit; `is_final`: it would hit it again."""

    def __init__(self, what: str, *, is_final: bool = False) -> None:
        super().__init__(what)
        self.is_final = is_final


_WORKER = Worker()
atexit.register(_WORKER.stop)
run_bounded = _WORKER.call
"""Call a function in this process's worker: see `Worker.call`."""
stop_worker = _WORKER.stop


def main() -> NoReturn:
    """Run as a worker until standard input is closed."""
    cpu_s = int(sys.argv[1])
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keep library output out of the replies
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most_s = resource.getrlimit(resource.RLIMIT_CPU)
    while head := source.read(8):
        request = source.read(int.from_bytes(head, "big"))
        resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + 1 + cpu_s, most_s))
        _reply(sink, *_handle(request))
    os._exit(0)


def _handle(request: bytes) -> tuple[bytes, bytes]:
    try:
        function, arguments = pickle.loads(request)
        result = function(*arguments)
        if isinstance(result, bytes):
            return RESULT, result
        return JSON, json.dumps(result, ensure_ascii=False).encode("utf-8", "surrogatepass")
    except InputError as error:
        fields = {"what": error.what, "got": _text(error.got), "expected": _text(error.expected), "help": error.help}
    except MemoryError:
        fields = {"what": "it cannot be read", "got": f"more than {MEMORY_BYTES >> 30} GiB of memory"}
    except Exception as error:  # parsers of hostile bytes raise anything: one line for one submission
        said = " ".join(f"{type(error).__name__}: {error}".split())
        fields = {"what": "it cannot be read", "got": said[:MAX_CHARACTERS]}
    fields = {"expected": None, "help": "", **fields}
    return REFUSED, json.dumps(fields, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _reply(sink: BinaryIO, kind: bytes, content: bytes) -> None:
    sink.write(kind + len(content).to_bytes(8, "big") + content)
    sink.flush()


def _text(value: object) -> str | None:
    return None if value is None else str(value)
