import ctypes
import errno
import os
import socket
import struct

import pytest

from mlsys_grader.sandbox.inside import seccomp
from mlsys_lab.errors import MissingToolError
from tests.grader.inside import answer, ask

REFUSE, MISSING = seccomp.ERRNO | errno.EPERM, seccomp.ERRNO | errno.ENOSYS
COLUMNS = {"x86_64": 0, "aarch64": 1}
NAMES_BY_ARGUMENT = "clone clone3 mmap socket fcntl setsockopt socketpair prctl futex preadv2 madvise ioctl getsockopt"
BY_ARGUMENT = {name: getattr(seccomp, name.upper()) for name in NAMES_BY_ARGUMENT.split()}
"""The numbers of calls whose arguments decide."""
NEWEST_KNOWN = 450
"""The last system call that libseccomp 2.5.4 has in its table."""


def verdict(machine, number, *arguments, audit=None, gpu=False):
    """What the filter says of one call, by running its instructions as the kernel does."""
    steps = list(struct.iter_unpack("=HBBI", seccomp.build_program(machine, gpu=gpu)))
    audit = seccomp.ARCHITECTURES[machine] if audit is None else audit
    data = struct.pack("=IIQ6Q", number, audit, 0, *(*arguments, 0, 0, 0, 0, 0, 0)[:6])
    place, held = 0, 0
    while True:
        code, then, otherwise, value = steps[place]
        place += 1
        if code == seccomp.LOAD:
            held = struct.unpack_from("=I", data, value)[0]
        elif code == seccomp.AND:
            held &= value
        elif code == seccomp.RETURN:
            return value
        else:
            holds = {
                seccomp.JUMP_EQUAL: held == value,
                seccomp.JUMP_AT_LEAST: held >= value,
                seccomp.JUMP_ANY_BIT: bool(held & value),
            }
            place += then if holds[code] else otherwise


@pytest.mark.parametrize(("machine", "column"), COLUMNS.items())
class TestTheFilter:
    def test_refuses_what_is_listed_and_nothing_else(self, machine, column):
        listed = {numbers[column] for numbers in seccomp.REFUSED.values()}
        special = {numbers[column] for numbers in (*BY_ARGUMENT.values(), *seccomp.IDLE.values())}
        for number in set(range(600)) - special:
            assert verdict(machine, number) == (REFUSE if number in listed else seccomp.ALLOW), number

    def test_what_reaches_other_jobs_seems_to_be_done(self, machine, column):
        assert {verdict(machine, numbers[column]) for numbers in seccomp.IDLE.values()} == {seccomp.ERRNO}

    def test_clone_makes_processes_and_threads_but_no_namespaces(self, machine, column):
        clone, fork, thread = seccomp.CLONE[column], 0x1200011, 0x3D0F00
        assert verdict(machine, clone, fork) == verdict(machine, clone, thread) == seccomp.ALLOW
        for namespace in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
            assert verdict(machine, clone, fork | namespace) == REFUSE
        assert verdict(machine, clone, fork | 0x1000) == REFUSE  # CLONE_PIDFD
        assert verdict(machine, seccomp.CLONE3[column]) == MISSING

    @pytest.mark.parametrize(
        ("flags", "allowed"),
        [
            (0x22, True),
            (0x02, True),
            (0x01, True),
            (0x4022, True),
            (0x21, False),
            (0x23 | 1, False),
            (0x122, False),
            (0x40022, False),
        ],
    )
    def test_memory_that_no_limit_counts_cannot_be_mapped(self, machine, column, flags, allowed):
        found = verdict(machine, seccomp.MMAP[column], 0, 4096, 3, flags)
        assert found == (seccomp.ALLOW if allowed else REFUSE)

    def test_sockets_are_local_or_internet_only(self, machine, column):
        for family in range(64):
            allowed = family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
            found = verdict(machine, seccomp.SOCKET[column], family, 1, 0)
            assert found == (seccomp.ALLOW if allowed else REFUSE)
            # the kernel reads 32 bits of it
            assert verdict(machine, seccomp.SOCKET[column], family | 1 << 32, 1, 0) == found
            pair = verdict(machine, seccomp.SOCKETPAIR[column], family | 1 << 32, 1, 0)
            assert pair == (seccomp.ALLOW if family == socket.AF_UNIX else REFUSE)
        for family in (socket.AF_INET, socket.AF_INET6):
            for protocol in range(300):
                found = verdict(machine, seccomp.SOCKET[column], family, 1, protocol | 1 << 32)
                assert found == (REFUSE if protocol in (33, 115, 132, 136, 256, 262) else seccomp.ALLOW), protocol
        assert verdict(machine, seccomp.SOCKET[column], socket.AF_NETLINK, 3, 12) == REFUSE  # the firewall's

    def test_a_file_has_descriptors_and_flags_but_no_locks_of_bytes(self, machine, column):
        for command in range(2048):
            found = verdict(machine, seccomp.FCNTL[column], 3, command)
            assert found == (REFUSE if command in (6, 7, 37, 38, 1024, 1026, 1036, 1038) else seccomp.ALLOW), command
            assert verdict(machine, seccomp.FCNTL[column], 3, command | 1 << 32) == found

    def test_a_sockets_buffers_keep_their_size_and_all_else_of_it_can_be_set(self, machine, column):
        for level, option in ((1, 7), (1, 8), (1, 7 | 1 << 32), (1 | 1 << 32, 8)):
            assert verdict(machine, seccomp.SETSOCKOPT[column], 3, level, option) == seccomp.ERRNO  # as if it were done
        for level, option in ((1, 2), (1, 9), (1, 15), (6, 1), (6, 7), (6, 60), (41, 8)):
            assert verdict(machine, seccomp.SETSOCKOPT[column], 3, level, option) == seccomp.ALLOW
        assert verdict(machine, seccomp.SETSOCKOPT[column], 3, 1, 60 | 1 << 32) == REFUSE  # SO_ZEROCOPY
        assert verdict(machine, seccomp.SETSOCKOPT[column], 3, 1, 76) == REFUSE  # SO_PASSPIDFD

    def test_nothing_waits_on_a_shared_futex(self, machine, column):
        again, late = seccomp.ERRNO | errno.EAGAIN, seccomp.ERRNO | errno.ETIMEDOUT
        for command in range(16):
            for flags in (0, 256, 1 << 32):  # FUTEX_CLOCK_REALTIME, and what the kernel does not read
                found = [verdict(machine, seccomp.FUTEX[column], 8, command | flags, 1, time) for time in (0, 4096)]
                assert found == ([seccomp.ALLOW] * 2 if command == 1 else [again, late])
                assert verdict(machine, seccomp.FUTEX[column], 8, command | flags | 128, 1, 0) == seccomp.ALLOW

    def test_a_file_is_read_and_not_asked_what_of_it_is_in_memory(self, machine, column):
        unsupported = seccomp.ERRNO | errno.EOPNOTSUPP
        for flags in range(256):
            found = verdict(machine, seccomp.PREADV2[column], 3, 4096, 1, 0, 0, flags)
            assert found == (unsupported if flags else seccomp.ALLOW)
        for advice in range(32):
            found = verdict(machine, seccomp.MADVISE[column], 0, 4096, advice)
            assert found == (REFUSE if advice in (12, 21) else seccomp.ALLOW)  # MADV_MERGEABLE, MADV_PAGEOUT
        for kind in range(256):  # 0x66 is a file system's
            for command in (kind << 8 | 1, 1 << 32 | 0x80080000 | kind << 8):
                found = verdict(machine, seccomp.IOCTL[column], 3, command)
                assert found == (seccomp.ALLOW if kind in (0x54, 0x89) else seccomp.ERRNO | errno.ENOTTY), kind
                assert verdict(machine, seccomp.IOCTL[column], 3, command, gpu=True) == seccomp.ALLOW

    def test_of_a_socket_all_can_be_asked_but_what_counts_those_of_others(self, machine, column):
        for option in range(128):
            found = verdict(machine, seccomp.GETSOCKOPT[column], 3, 1, option)
            assert found == (REFUSE if option in (57, 77) else seccomp.ALLOW), option  # SO_COOKIE, SO_PEERPIDFD
            assert verdict(machine, seccomp.GETSOCKOPT[column], 3, 6, option) == seccomp.ALLOW

    def test_of_itself_a_process_can_set_all_but_filters_cores_and_tables(self, machine, column):
        for option in (*range(100), 0x53564D41, 0x59616D61):
            found = verdict(machine, seccomp.PRCTL[column], option | 1 << 32)
            assert found == (REFUSE if option in (22, 62, 67, 78) else seccomp.ALLOW), option

    def test_with_a_gpu_cuda_can_start_and_all_else_is_as_without(self, machine, column):
        allowed = {seccomp.REFUSED[name][column] for name in seccomp.FOR_CUDA}
        for number in set(range(600)) - {numbers[column] for numbers in BY_ARGUMENT.values()}:
            expected = seccomp.ALLOW if number in allowed else verdict(machine, number)
            assert verdict(machine, number, gpu=True) == expected, number
        for flags, expected in ((0x22, seccomp.ALLOW), (0x21, seccomp.ALLOW), (0x122, REFUSE), (0x121, REFUSE)):
            assert verdict(machine, seccomp.MMAP[column], 0, 4096, 3, flags, gpu=True) == expected
        assert verdict(machine, seccomp.SOCKET[column], 40, 1, 0, gpu=True) == REFUSE

    def test_a_call_of_another_architecture_kills(self, machine, column):
        assert verdict(machine, 1, audit=0x40000003) == seccomp.KILL  # 32-bit x86
        assert verdict(machine, seccomp.X32 | 1) == REFUSE


@pytest.mark.parametrize(("machine", "column"), COLUMNS.items())
def test_every_number_is_the_one_that_libseccomp_knows_by_that_name(machine, column):
    try:
        number_of = ctypes.CDLL("libseccomp.so.2").seccomp_syscall_resolve_name_arch
    except OSError:
        pytest.skip("libseccomp is not installed")
    named = {**seccomp.REFUSED, **seccomp.IDLE, **BY_ARGUMENT}
    found = {name: number_of(ctypes.c_uint32(seccomp.ARCHITECTURES[machine]), name.encode()) for name in named}
    for name, numbers in named.items():
        if found[name] == -1:  # a name that it does not know at all
            assert numbers[0] == numbers[1] > NEWEST_KNOWN, name  # new calls have one number everywhere
        else:
            assert numbers[column] == (found[name] if found[name] >= 0 else None), name


def test_a_machine_whose_numbers_are_not_known_is_refused():
    with pytest.raises(MissingToolError, match="no system call filter for this machine: got riscv64"):
        seccomp.build_program("riscv64")


CALLS = """\
import ctypes, socket
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    ctypes.set_errno(0)
    return ctypes.get_errno() if libc.syscall(*map(ctypes.c_long, arguments)) == -1 else 0
"""
COLUMN = COLUMNS.get(os.uname().machine)


@pytest.mark.sandbox
def test_every_listed_call_is_refused_in_a_job(sandbox):
    numbers = {name: at[COLUMN] for name, at in seccomp.REFUSED.items() if at[COLUMN] is not None}
    expression = (
        f"[[name, got] for name, n in {numbers}.items() if (got := call(n, 0, 0, 0, 0, 0, 0)) != {errno.EPERM}]"
    )
    assert answer(sandbox, expression, before=CALLS) == []


# Each would do something for anybody without the filter, so that a right on its own does not explain the refusal.
NAMES = {
    "a user namespace": f"call({seccomp.REFUSED['unshare'][COLUMN]}, 0x10000000)",
    "a child in a user namespace": f"call({seccomp.CLONE[COLUMN]}, 0x10000011, 0, 0, 0, 0)",
    "being traced": f"call({seccomp.REFUSED['ptrace'][COLUMN]}, 0, 0, 0, 0)",
    "a keyring": f"call({seccomp.REFUSED['keyctl'][COLUMN]}, 1, 0)",
    "shared memory": f"call({seccomp.REFUSED['shmget'][COLUMN]}, 0, 4096, 0o1600)",
    "a message queue": f"call({seccomp.REFUSED['msgget'][COLUMN]}, 0, 0o1600)",
    "personality": f"call({seccomp.REFUSED['personality'][COLUMN]}, 0xffffffff)",
    "anonymous shared memory": f"call({seccomp.MMAP[COLUMN]}, 0, 4096, 3, 0x21, -1, 0)",
    "memory that grows down": f"call({seccomp.MMAP[COLUMN]}, 0, 4096, 3, 0x122, -1, 0)",
    "a lock of a byte": f"call({seccomp.FCNTL[COLUMN]}, os.open('/scratch/locked', os.O_CREAT | os.O_RDWR), 6, 0)",
    "a huge page in a pipe": f"call({seccomp.REFUSED['vmsplice'][COLUMN]}, os.pipe()[1], 0, 0, 0)",
    "rules of its own for files": f"call({seccomp.REFUSED['landlock_create_ruleset'][COLUMN]}, 0, 0, 1)",
    "a larger table of waits": f"call({seccomp.PRCTL[COLUMN]}, 78, 1, 64, 0)",
    "a pair of sockets of a cluster": f"call({seccomp.SOCKETPAIR[COLUMN]}, 30, 1, 0, 0)",
    "a socket of many paths": f"call({seccomp.SOCKET[COLUMN]}, 2, 1, 262)",
    "a socket to the host": f"call({seccomp.SOCKET[COLUMN]}, 40, 1, 0)",
    "a socket to the host, its family with a higher bit": f"call({seccomp.SOCKET[COLUMN]}, 40 | 1 << 32, 1, 0)",
    "a socket of the kernel's ciphers": f"call({seccomp.SOCKET[COLUMN]}, 38, 5, 0)",
    "a descriptor of a process": f"call({seccomp.REFUSED['pidfd_open'][COLUMN]}, 1, 0)",
    "a barrier for all threads of the machine": f"call({seccomp.REFUSED['membarrier'][COLUMN]}, 0, 0, 0)",
}


@pytest.mark.sandbox
def test_what_anybody_may_do_elsewhere_is_refused_in_a_job(sandbox):
    found = answer(sandbox, f"[{', '.join(NAMES.values())}]", before=CALLS)
    assert dict(zip(NAMES, found, strict=True)) == dict.fromkeys(NAMES, errno.EPERM)
    assert answer(sandbox, f"call({seccomp.CLONE3[COLUMN]}, 0, 0)", before=CALLS) == errno.ENOSYS


@pytest.mark.sandbox
def test_the_filter_stays_on_threads_and_on_programs_that_a_job_starts(sandbox):
    program = f"import ctypes; l = ctypes.CDLL(None, use_errno=True); l.syscall({seccomp.REFUSED['unshare'][COLUMN]}, "
    program += "0x10000000); print(ctypes.get_errno())"
    run = "import subprocess, sys\nran = subprocess.run([sys.executable, '-c', {!r}], capture_output=True, text=True)"
    assert answer(sandbox, "ran.stdout", before=run.format(program)) == f"{errno.EPERM}\n"
    thread = f"{CALLS}import threading\nseen = []\n"
    thread += f"t = threading.Thread(target=lambda: seen.append({NAMES['a user namespace']}))\nt.start(); t.join()"
    assert answer(sandbox, "seen", before=thread) == [errno.EPERM]


HONEST = {
    "torch": "import torch\na = torch.randn(64, 64, requires_grad=True)\n(a @ a).tanh().sum().backward()",
    "torch on two threads": (
        "import torch\ntorch.set_num_threads(2)\na = torch.ones(600, 600)\nassert (a @ a)[0, 0] == 600\n"
        "assert torch.ones(1 << 20).exp().sum() > 0"
    ),
    "threads": (
        "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(8) as pool:\n"
        "    assert sum(pool.map(abs, range(100))) == 4950"
    ),
    "processes": (
        "import multiprocessing\ncontext = multiprocessing.get_context('fork')\nwith context.Pool(3) as pool:\n"
        "    assert pool.map(abs, [-1, -2, -3]) == [1, 2, 3]"
    ),
    "shared memory by name": (
        "from multiprocessing.shared_memory import SharedMemory\nblock = SharedMemory(create=True, size=1 << 20)\n"
        "np.ndarray(8, buffer=block.buf)[:] = 1\nblock.close(); block.unlink()"
    ),
    "tensors in shared memory": (
        "import torch, torch.multiprocessing as mp\nt = torch.zeros(4).share_memory_()\n"
        "def add(): t.add_(1)\np = mp.get_context('fork').Process(target=add)\np.start(); p.join()\n"
        "assert p.exitcode == 0 and t.tolist() == [1] * 4"
    ),
    "semaphores of processes": """\
import multiprocessing
context = multiprocessing.get_context('fork')
lock, once, queue, begin = context.RLock(), context.Semaphore(2), context.Queue(), context.Event()
number, together = context.Value('i', 0), context.Barrier(3)
def add():
    begin.wait()
    for _ in range(100):
        with lock, lock, once, number.get_lock():
            number.value += 1
    together.wait()
    queue.put(number.value)
workers = [context.Process(target=add) for _ in range(3)]
for worker in workers:
    worker.start()
begin.set()
assert [queue.get() for _ in workers] == [300] * 3
for worker in workers:
    worker.join()""",
    "processes of a program of its own": """\
import subprocess, sys
lines = ["import multiprocessing", "def double(x, queue): queue.put(2 * x)", "if __name__ == '__main__':",
    " context = multiprocessing.get_context('spawn')", " queue = context.Queue()",
    " workers = [context.Process(target=double, args=(x, queue)) for x in (1, 2)]",
    " for worker in workers: worker.start()", " assert sorted(queue.get() for _ in workers) == [2, 4]",
    " for worker in workers: worker.join(); assert worker.exitcode == 0"]
open('program.py', 'w').write('\\n'.join(lines))
subprocess.run([sys.executable, 'program.py'], check=True)""",
    "a loader of data": (
        "import torch\nfrom torch.utils.data import DataLoader\n"
        "loader = DataLoader(torch.arange(64.0), batch_size=8, num_workers=2, multiprocessing_context='fork')\n"
        "assert sum(batch.sum() for batch in loader) == 2016"
    ),
    "a thread of C that is joined": """\
import ctypes, time
threads = ctypes.CDLL('libpthread.so.0')
done, handle = [], ctypes.c_ulong()
work = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda _: time.sleep(0.2) or done.append(1))
assert threads.pthread_create(ctypes.byref(handle), None, work, None) == 0
assert threads.pthread_join(handle, None) == 0 and done == [1]""",
    "terminals": "import os, shutil\nassert not os.isatty(0) and shutil.get_terminal_size().columns == 80",
    "a program": "import subprocess\nassert subprocess.run(['/bin/echo', 'a'], capture_output=True).stdout == b'a\\n'",
    "asyncio": "import asyncio\nasync def f(): await asyncio.sleep(0.01); return 3\nassert asyncio.run(f()) == 3",
    "files": (
        "import mmap, tempfile\nwith tempfile.TemporaryFile() as f:\n    f.write(bytes(4096)); f.flush()\n"
        "    mmap.mmap(f.fileno(), 4096)[:2] = b'ab'\nnp.save('a.npy', np.ones(3)); np.load('a.npy', mmap_mode='r')"
    ),
    "locks of whole files": (
        "import fcntl\nwith open('locked', 'w') as f, open('locked') as again:\n"
        "    fcntl.flock(f, fcntl.LOCK_EX); fcntl.flock(f, fcntl.LOCK_UN); fcntl.flock(again, fcntl.LOCK_SH)"
    ),
    "loopback": (
        "import socket\nfor family, at in ((socket.AF_INET, '127.0.0.1'), (socket.AF_INET6, '::1')):\n"
        "    with socket.create_server((at, 0), family=family) as server, \\\n"
        "            socket.create_connection(server.getsockname()[:2], 2) as near:\n"
        "        far, _ = server.accept(); far.sendall(b'x'); assert near.recv(1) == b'x'; far.close()"
    ),
    "four ranks of gloo": """\
import os, socket, torch, torch.distributed as dist
with socket.create_server(('127.0.0.1', 0)) as free:
    port = free.getsockname()[1]
def rank(r):
    dist.init_process_group('gloo', init_method=f'tcp://127.0.0.1:{port}', rank=r, world_size=4)
    t = torch.full((1000,), float(r))
    dist.all_reduce(t)
    assert t[0] == 6
    dist.destroy_process_group()
pids = []
for r in range(4):
    pids.append(os.fork())
    if not pids[-1]:
        try:
            rank(r)
            os._exit(0)
        finally:
            os._exit(1)
assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 4""",
}


@pytest.mark.sandbox
@pytest.mark.parametrize("work", HONEST)
def test_honest_work_goes_on(sandbox, work):
    reply = ask(sandbox, f"{HONEST[work]}\nreturn 2 * x", deadline_s=120.0)
    assert getattr(reply, "kind", "") == "answer", reply
