"""Judge on this machine: one sandbox, and threads that wait for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from types import TracebackType

from mlsys_grader.engines import Result, Task
from mlsys_grader.judging.judge import judge
from mlsys_grader.judging.oracle import OracleServer
from mlsys_grader.sandbox.sandbox import Sandbox

AHEAD = 2
"""Tasks that wait beside those at work. What is not taken from the iterable yet holds no memory here."""


class LocalEngine:
    """`workers` submissions at a time in a running sandbox; `time_factor` stretches every time limit.

    Waits for the sandbox, and raises the `CourseError` of one that cannot start; the oracles warm up meanwhile. Close
    it, or use it in a `with` block.
    """

    def __init__(self, sandbox: Sandbox, *, workers: int = 1, time_factor: float = 1.0) -> None:
        self.sandbox = sandbox
        self.workers = workers
        self.time_factor = time_factor
        self._oracles = OracleServer(sandbox.lab)
        try:
            sandbox.wait()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the processes that decide, even in the midst of a comparison."""
        self._oracles.close()

    def judge_all(self, tasks: Iterable[Task]) -> Iterator[Result]:
        """One result per task; a task that raises is a result with an error. Tasks are taken as they are needed."""
        pool = ThreadPoolExecutor(self.workers, thread_name_prefix="judge")
        pending: set[Future[Result]] = set()
        try:
            for task in tasks:
                pending.add(pool.submit(self._judge, task))
                if len(pending) >= self.workers + AHEAD:
                    ready, pending = wait(pending, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in ready)
            while pending:
                ready, pending = wait(pending, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in ready)
        finally:
            pool.shutdown(wait=not pending, cancel_futures=True)  # cut off, it does not wait for those at work

    def _judge(self, task: Task) -> Result:
        try:
            verdicts = judge(task.artifact, self.sandbox, self._oracles, time_factor=self.time_factor, seeds=task.seeds)
        except Exception as error:  # one submission must not stop the others; the instructor is told
            return Result(task.student, error=f"{type(error).__name__}: {error}")
        return Result(task.student, tuple(verdicts))
