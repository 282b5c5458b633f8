"""What is counted while kernels run cannot be forged: nothing but kernels has run in the process that counts."""

from __future__ import annotations

import re

import pytest
import traced_checks

from mlsys_grader.course.lab import GradedLab
from mlsys_grader.judging.judge import judge
from mlsys_grader.judging.oracle import OracleServer
from mlsys_grader.sandbox.sandbox import Sandbox
from mlsys_lab.stack.artifact import Artifact, Cell
from mlsys_lab.stack.labinfo import LabInfo

pytestmark = pytest.mark.sandbox

KERNELS = """\
#| export
import math
import triton
import triton.language as tl
from numba import cuda
STEP = 1

@cuda.jit
def double(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = 2 * x[i]

def triple(x):
    return 3 * x

@triton.jit
def gather(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=at < n)
"""
TWICE = KERNELS.replace("y[i] = 2 * x[i]", "y[i] = x[i] + x[i]")
"""A kernel that reads each element twice: what every forgery below would hide."""


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    """Judge cells; verdicts by check."""
    folder = tmp_path_factory.mktemp("labs") / "03-traced"
    info = LabInfo(folder, "traced", "traced", 1, 3, checks_module=traced_checks.__name__)
    lab = GradedLab(info)
    with Sandbox(lab) as sandbox, OracleServer(lab) as oracles:
        yield lambda *cells: {
            v.check: v
            for v in judge(
                Artifact("03-traced.ipynb", tuple(Cell(n, cell) for n, cell in enumerate(cells, 1))),
                sandbox,
                oracles,
                time_factor=4.0,
            )
        }


def test_kernels_and_functions_are_each_asked_where_they_may_run(verdicts):
    got = verdicts(KERNELS)
    assert {name: v.passed for name, v in got.items()} == {"double": True, "triple": True, "gather": True}, got


def test_what_a_kernel_reads_is_counted(verdicts):
    got = verdicts(TWICE)
    assert not got["double"].passed and got["triple"].passed and got["gather"].passed
    assert "loads" in got["double"].what


FORGERIES = {
    "the recorder is patched on import": (
        "from mlsys_lab.kernels.trace import numba_simulator\n"
        "real = numba_simulator.record\n"
        "def record(*args, **kwargs):\n"
        "    trace = real(*args, **kwargs)\n"
        "    object.__setattr__(trace, 'accesses', trace.accesses[::2])\n"
        "    return trace\n"
        "numba_simulator.record = record\n"
    ),
    "traces are cut when asked": (
        "from mlsys_lab.kernels.trace.events import Trace\n"
        "real = Trace.of\n"
        "Trace.of = lambda *args, **kwargs: real(*args, **kwargs)[::2]\n"
    ),
    "cuda is another object": "import sys, types\nsys.modules['numba.cuda'] = types.SimpleNamespace(jit=lambda f: f)\n",
}


@pytest.mark.parametrize("how", FORGERIES)
def test_what_else_a_submission_does_is_not_there_when_kernels_are_counted(verdicts, how):
    got = verdicts("#| export\n" + FORGERIES[how], TWICE)
    assert not got["double"].passed and "loads" in got["double"].what


ESCAPES = {
    "a dictionary that outlives the thread": "y[i] = cache.setdefault(i, x[i])",
    "the array behind the recorder": "y[i] = x.base[i]",
    "the whole array at once": "y[:] = x[:]",
    "a helper that is no kernel": "y[i] = triple(x[i])",
    "the frame above": "y[i] = cuda.current_context()",
}


@pytest.mark.parametrize("how", ESCAPES)
def test_a_kernel_gets_at_nothing_but_elements(verdicts, how):
    got = verdicts("#| export\ncache = {}\n" + KERNELS.replace("y[i] = 2 * x[i]", ESCAPES[how]))
    assert not got["double"].passed and got["triple"].passed
    assert got["double"].what and "loads" not in got["double"].what


ADDRESSES = {
    "made of a number": "x_ptr - x_ptr.to(tl.int64) + 4096",
    "made of a number by its type": "(at.to(tl.int64) * 4 + 4096).to(x_ptr.dtype, bitcast=True)",
    "far outside": "x_ptr + at + (1 << 40)",
}


@pytest.mark.parametrize("how", ADDRESSES)
@pytest.mark.parametrize("act", ["load", "store"])
def test_a_pointer_to_anywhere_else_reads_and_writes_nothing(verdicts, how, act):
    plain = "tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=at < n)"
    act_there = {
        "load": f"tl.store(y_ptr + at, tl.load({ADDRESSES[how]}), mask=at < n)",
        "store": f"{plain}\n    tl.store({ADDRESSES[how]}, tl.zeros([BLOCK], tl.float32))",
    }[act]
    got = verdicts(KERNELS.replace(plain, act_there))
    assert got["double"].passed and got["triple"].passed
    assert "ended the process" not in got["gather"].what, "an address was followed"
    assert not got["gather"].passed or act == "store"


PLAIN = "    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
RUNS = "[kind for kind in ().__class__.__base__.__subclasses__() if 1 // 0]"
ANOTHER = f"def gather(x_ptr, y_ptr, n, BLOCK: tl.constexpr): {RUNS}"
OTHER_TEXTS = {
    "a docstring": (
        "",
        f"    '''\n    {ANOTHER.replace(': [', f':{chr(10)}        [')}\n        \"\"\"\n    '''\n{PLAIN}",
        '    \'"""#\'\n',
    ),
    **{
        f"lines that end in {end!r}": (f"X = 1  # {end * 24}\n# @triton.jit{end}{ANOTHER}\n", PLAIN, "")
        for end in ("\x0c", "\x1c", "\x85", "\u2028")
    },
}


@pytest.mark.parametrize("where", OTHER_TEXTS)
def test_the_text_that_was_checked_is_the_one_that_is_interpreted(verdicts, where):
    """Triton's interpreter looks a kernel's lines up again, and may find others: what they say is not run."""
    before, begins, ends = OTHER_TEXTS[where]
    got = verdicts(KERNELS.replace("STEP = 1\n", f"STEP = 1\n{before}").replace(PLAIN, begins) + ends)
    assert {name: v.passed for name, v in got.items()} == {"double": True, "triple": True, "gather": True}, got


@pytest.mark.parametrize("line", ["y[0] = eval", "max((max((), default='1 / 0'),), key=eval)"])
def test_an_annotation_makes_no_names_for_a_kernel(verdicts, line):
    hidden = f"def double(x, y) -> [1 for eval in ()]:\n    {line}\n"
    got = verdicts(KERNELS.replace("def double(x, y):\n", hidden))
    assert not got["double"].passed
    assert re.match(r"`eval` is nothing that kernel|`max` takes no keywords in a kernel", got["double"].what)


def test_a_kernel_that_may_not_run_costs_its_own_check_and_no_other(verdicts):
    got = verdicts(KERNELS.replace("        y[i] = 2", "        print(i)\n        y[i] = 2"))
    assert not got["double"].passed and got["triple"].passed and got["gather"].passed
    assert got["double"].what.startswith("`print` is nothing that kernel `double` can use (cell 1")


def test_a_constant_that_does_not_fit_in_memory_costs_the_kernels_that_use_it(verdicts):
    huge = KERNELS.replace("STEP = 1\n", "STEP = 1 << (1 << 40)\n")
    assert all(v.passed for v in verdicts(huge).values())
    got = verdicts(huge.replace("y[i] = 2", "y[i] = STEP"))
    assert not got["double"].passed and got["gather"].passed
    assert got["double"].what == "it needs too much memory"
