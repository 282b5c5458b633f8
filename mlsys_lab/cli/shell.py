"""The shell of both commands: an exit code whatever happens, and one line on stderr for what a person can mend.

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

MISTAKE = 1
"""Exit code of what a person can mend."""
MISUSE = 2
"""Exit code of a command line that is not understood."""
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
            return _flushed(command, sys.argv[1:] if argv is None else argv)
        except KeyboardInterrupt:
            interrupted = True
            return _tell(program, stopped, INTERRUPTED)
        except Exception as error:
            if interrupts:  # a library took it for an error of its own, as torch does of NumPy's import, and went on
                interrupted = True
                return _tell(program, stopped, INTERRUPTED)
            return _explained(program, error, extras or {})
    finally:
        if argv is None and not interrupted:
            _ignore_interrupts()  # the exit code stands; what is left of the process is its clearing up


def _flushed(command: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """Run the command, and see that its output arrives."""
    try:
        code = command(arguments)
    except SystemExit as end:  # of argparse, which has shown a help, or of rich, whose reader went away
        if isinstance(end.__context__, BrokenPipeError):
            raise end.__context__ from None
        _flush()
        raise
    _flush()
    return code


def _explained(program: str, error: Exception, extras: Mapping[str, str]) -> int:
    """Say an error in one line, or raise it again if it is no person's mistake."""
    from mlsys_lab.errors import CourseError, MissingToolError, UsageError

    if isinstance(error, CourseError):
        return _tell(program, error, MISUSE if isinstance(error, UsageError) else MISTAKE)
    if isinstance(error, ModuleNotFoundError) and error.name and error.name in extras:
        install = f"pip install 'mlsys-lab[{extras[error.name]}]'"
        return _tell(program, MissingToolError(f"{error.name} is not installed", help=install), MISTAKE)
    if isinstance(error, BrokenPipeError):  # whoever read our output has seen enough, as in `export | head`
        _discard_output()
        return BROKEN_PIPE
    if isinstance(error, OSError) and error.filename is not None:
        return _tell(program, f"cannot use {error.filename}: {error.strerror}", MISTAKE)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        _discard_output()
        return _tell(program, f"cannot write all of it: {error.strerror}", MISTAKE)
    raise error


def _tell(program: str, said: object, code: int) -> int:
    print(f"{program}: {said}", file=sys.stderr)
    return code


def _flush() -> None:
    if sys.stdout is not None:  # closed by the caller, as in `mlsys-lab list >&-`
        sys.stdout.flush()


def _discard_output() -> None:
    """Send nowhere what standard output holds and cannot write: the interpreter flushes it once more at its end."""
    try:
        _flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _end_at_second_interrupt(interrupts: list[int]) -> None:
    """Have the first interrupt stop the command, and one that comes while it clears up end the process at once.

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
