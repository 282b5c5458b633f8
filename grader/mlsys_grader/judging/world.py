"""The processes of a multi-rank submission, one per rank; the judge routes their messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from mlsys_checks.sandboxed.ranks import join_ranks, split_deferred, split_ranks
from mlsys_checks.sandboxed.spec import Arrays, Case, Check, Mismatch
from mlsys_grader.judging.problem import Ending, Problem
from mlsys_grader.judging.process import Process, read_problem
from mlsys_grader.judging.router import InvalidPostError, MessageRouter, RunAbortedError
from mlsys_grader.sandbox.inside import wire
from mlsys_lab.errors import InputError


class World:
    """Processes that have loaded the same submission and run together; the first is rank 0."""

    def __init__(self, processes: Sequence[Process]) -> None:
        self._processes = processes

    def run(
        self, check: Check, case: Case, inputs: Arrays, random_seed: int, meanwhile: Callable[[], None]
    ) -> Arrays | Problem:
        """Run a case on every rank; return all answers with their message logs, or the problem.

        `meanwhile` is called once all ranks run. After a problem the processes must not be reused.
        """
        parts = [split_deferred(part) for part in split_ranks(inputs)]
        router = MessageRouter(len(self._processes), [deferred for _, deferred in parts])
        with ThreadPoolExecutor(router.size) as pool:
            followers = [
                pool.submit(self._follow, router, rank, check, part, random_seed)
                for rank, (part, _) in enumerate(parts)
            ]
            try:
                meanwhile()
                answers = [follower.result() for follower in followers]
            except BaseException:  # an error of the judge; the pool waits for its threads
                router.abort()
                for process in self._processes:
                    process.job.kill()
                raise
        mismatch, ending = router.problem or (router.find_unreceived(), Ending.WRONG)
        if mismatch is not None:
            return Problem(mismatch, ending, case)
        try:
            joined = join_ranks(answers, router.logs, router.marks)
            wire.require_listable(joined)
        except (InputError, wire.WireError) as error:
            return Problem(
                Mismatch("its answer cannot be read", str(error), "a few arrays by name"), Ending.WRONG, case
            )
        if (size_bytes := sum(array.nbytes for array in joined.values())) > check.answer_bytes:
            most = f"at most {check.answer_bytes:,} bytes"
            return Problem(
                Mismatch("its answer is too large", f"{size_bytes:,} bytes", most), Ending.ANSWER_TOO_LARGE, case
            )
        return joined

    def _follow(self, router: MessageRouter, rank: int, check: Check, given: Arrays, random_seed: int) -> Arrays:
        """Run a case on one rank and route its messages until it answers; {} if the run was aborted."""
        process = self._processes[rank]
        try:
            has_deferred = router.deferred[rank] is not None
            process.send_rank(check, given, random_seed + rank, rank, router.size, has_deferred=has_deferred)
            while (frame := process.receive()).kind in ("post", "wait", "reveal"):
                if frame.kind == "post":
                    router.post(rank, frame)
                elif frame.kind == "reveal":
                    process.reply(wire.Frame("done", {"value": router.reveal(rank, frame)}))
                else:
                    array = router.wait(rank, frame)
                    process.reply(wire.Frame("done", arrays={} if array is None else {"array": array}))
            if frame.kind == "answer":
                router.end(rank)
                return frame.arrays
            is_todo = frame.meta.get("unfinished") is True
            router.fail(rank, read_problem(frame), Ending.NOT_IMPLEMENTED if is_todo else Ending.WRONG)
        except RunAbortedError:
            return {}  # the router has the reason
        except InvalidPostError as error:
            router.fail(rank, error.mismatch, Ending.WRONG)
        except wire.WireError as error:
            router.fail(rank, *process.explain(error, "it"))
        return {}
