"""What both commands run in: an exit code whatever happens, and one line on stderr for what a person can fix.

Nothing but the interpreter's own modules is imported before `run` watches, so that an interrupt finds its line from the
first moment on.
"""

from __future__ import annotations

import errno
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ERROR = 1
"""Exit code for what a person can fix."""
USAGE_ERROR = 2
"""Exit code for a command line that is not understood."""
INTERRUPTED = 130
"""Exit code after Ctrl-C: what a shell reports for a program that SIGINT ends."""
BROKEN_PIPE = 141
"""Exit code when standard output was closed by its reader: what a shell reports for a program that SIGPIPE ends."""


def run(
    program: str,
    command: Callable[[Sequence[str]], int],
    argv: Sequence[str] | None,
    *,
    stopped: str = "stopped",
    extras: Mapping[str, str] | None = None,
) -> int:
    """Run a command on its arguments and return the exit code.

    Args:
        program: the name that its lines on stderr begin with.
        command: takes the arguments, returns an exit code; imports what it needs when it is called.
        argv: the arguments; None means the process's own, and that the process ends with this command.
        stopped: what an interrupt says.
        extras: packages that may be missing, with the extra of mlsys-lab that installs each.
    """
    interrupts: list[int] = []
    interrupted = False
    try:
        try:
            if argv is None:
                _end_at_second_interrupt(interrupts)
            return _run_and_flush(command, sys.argv[1:] if argv is None else argv)
        except KeyboardInterrupt:
            interrupted = True
            return _print_error(program, stopped, INTERRUPTED)
        except Exception as error:
            if interrupts:  # a library took it for an error of its own, as torch does of NumPy's import, and went on
                interrupted = True
                return _print_error(program, stopped, INTERRUPTED)
            return _report(program, error, extras or {})
    finally:
        if argv is None and not interrupted:
            _ignore_interrupts()  # the exit code stands; only clean-up remains


def _run_and_flush(command: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """Run the command, and flush its output."""
    try:
        code = command(arguments)
    except SystemExit as end:  # of Typer after a completion, or of rich, whose reader went away
        if isinstance(end.__context__, BrokenPipeError):
            raise end.__context__ from None
        _flush()
        raise
    _flush()
    return code


def _report(program: str, error: Exception, extras: Mapping[str, str]) -> int:
    """Print an error in one line, or raise it again if a person cannot fix it."""
    from mlsys_lab.errors import CourseError, MissingToolError, UsageError

    if isinstance(error, CourseError):
        return _print_error(program, error, USAGE_ERROR if isinstance(error, UsageError) else ERROR)
    if isinstance(error, ModuleNotFoundError) and error.name and error.name in extras:
        install = f"pip install 'mlsys-lab[{extras[error.name]}]'"
        return _print_error(program, MissingToolError(f"{error.name} is not installed", help=install), ERROR)
    if isinstance(error, BrokenPipeError):  # the reader of our output has closed it, as `head` does
        _discard_output()
        return BROKEN_PIPE
    if isinstance(error, OSError) and error.filename is not None:
        return _print_error(program, f"cannot use {error.filename}: {error.strerror}", ERROR)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        _discard_output()
        return _print_error(program, f"cannot write all of it: {error.strerror}", ERROR)
    raise error


def _print_error(program: str, said: object, code: int) -> int:
    print(f"{program}: {said}", file=sys.stderr)
    return code


def _flush() -> None:
    if sys.stdout is not None:  # closed by the caller, as in `mlsys-lab list >&-`
        sys.stdout.flush()


def _discard_output() -> None:
    """Discard what standard output holds and cannot write: the interpreter flushes it again when it exits."""
    try:
        _flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _end_at_second_interrupt(interrupts: list[int]) -> None:
    """Have the first interrupt stop the command, and one during its clean-up end the process at once.

    The first is noted in `interrupts`.
    """
    import signal

    def end(*_: object) -> None:
        os._exit(INTERRUPTED)

    def interrupt(number: int, _: object) -> None:
        signal.signal(signal.SIGINT, end)
        interrupts.append(number)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)


def _ignore_interrupts() -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
