"""A Python that has imported what is slow to import, and forks for each `python -c CODE ARGUMENTS` asked for.

    python fork_server.py SOCKET "IMPORTS"      ends when its standard input does

Who asks connects to the socket, sends three descriptors and a line of JSON, and is told the process's id, a line, and
in the end its status, another.
"""

import contextlib
import json
import os
import select
import signal
import socket
import sys
import traceback


def main(path, imports):
    exec(imports, {})
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen(64)
    print("ready", flush=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while 0 not in (ready := select.select([0, server], [], [])[0]):
        if ready:
            connection, _ = server.accept()
            if os.fork() == 0:
                server.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                attend(connection)
            connection.close()


def attend(connection):
    """Fork the process that was asked for, wait for its end and tell that."""
    said, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    while not said.endswith(b"\n"):
        said += connection.recv(1 << 20)
    order = json.loads(said)
    if (pid := os.fork()) == 0:
        become(order, descriptors, connection)
    for descriptor in (0, 1, 2, *descriptors):
        os.close(descriptor)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(OSError):  # nobody may be left to be told
        connection.sendall(f"{code}\n".encode())
    os._exit(0)


def become(order, descriptors, connection):
    """Be the program, from its first line to its end; whoever knows its id can reach its whole session."""
    status = 1
    try:
        os.setsid()
        connection.sendall(f"{os.getpid()}\n".encode())
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
        os.closerange(3, 1 << 16)
        os.chdir(order["folder"])
        os.environ.clear()
        os.environ.update(order["environment"])
        sys.argv = ["-c", *order["arguments"]]
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
        exec(order["code"], {"__name__": "__main__"})
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
    os._exit(status)


if __name__ == "__main__":
    main(*sys.argv[1:])
