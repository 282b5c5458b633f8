"""A kernel's text runs where nothing else of its submission has run, and takes nothing along that is not its own."""

from __future__ import annotations

import pytest
import text_checks

from mlsys_grader.course.lab import GradedLab
from mlsys_grader.judging.judge import judge
from mlsys_grader.judging.oracle import OracleServer
from mlsys_grader.sandbox.sandbox import Sandbox
from mlsys_lab.stack.artifact import Artifact, Cell
from mlsys_lab.stack.labinfo import LabInfo
from tests.kernels.cuda_cpp.tools import needs_gxx
from tests.sampling import sample

pytestmark = [pytest.mark.sandbox, needs_gxx]

KERNEL = r"""extern "C" __global__ void twice(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
}
"""
TRIPLE = "#| export\ndef triple(x):\n    return 3 * x\n"


def on_cpu(directives: str) -> str:
    """A text that says something else to the emulator than to CUDA's compiler, above the kernel and, as DO, inside."""
    kernel = KERNEL.replace("if (i < n)", "DO; if (i < n)")
    return f"#ifdef __CUDACC__\n#define DO\n#else\n{directives}\n#endif\n{kernel}"


def giving(text: str) -> str:
    return f"#| export\ndef double_cpp():\n    return {text!r}\n"


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    """Judge cells; verdicts by check."""
    info = LabInfo(tmp_path_factory.mktemp("labs") / "04-texts", "texts", "texts", 1, 2, checks_module="text_checks")
    lab = GradedLab(info)
    assert lab.checks is text_checks.LAB
    with Sandbox(lab) as sandbox, OracleServer(lab) as oracles:
        yield lambda *cells, time_factor=1.0: {
            v.check: v
            for v in judge(
                Artifact("04-texts.ipynb", tuple(Cell(n, cell) for n, cell in enumerate(cells, 1))),
                sandbox,
                oracles,
                time_factor=time_factor,
            )
        }


def test_a_text_and_a_function_are_each_asked_where_they_may_run(verdicts):
    got = verdicts(giving(KERNEL), TRIPLE)
    assert {name: v.passed for name, v in got.items()} == {"double": True, "triple": True}, got


FORGERIES = {
    "on import": "",
    "when the text is asked for": "def double_cpp():\n    forge()\n    return WRONG\n",
}


@pytest.mark.parametrize("when", FORGERIES)
def test_what_runs_a_text_cannot_be_replaced(verdicts, when):
    forge = (
        "#| export\n"
        f"WRONG = {KERNEL.replace('2 * x', '3 * x')!r}\n"
        "def double_cpp():\n    return WRONG\n"
        "def forge():\n"
        "    from mlsys_lab.kernels.cuda_cpp import Emulator\n"
        "    import mlsys_checks.sandboxed.kernel_sources as kernel_sources\n"
        "    Emulator.__call__ = lambda self, source, kernel, grid, block, x, y, n: y.copy_(2 * x)\n"
        "forge()\n"
    )
    got = verdicts(forge + FORGERIES[when], TRIPLE)
    assert not got["double"].passed and "`y`" in got["double"].what and got["triple"].passed


HOSTILE = {
    "a file is included": ('#include "/etc/ld.so.cache"\n' + KERNEL, ""),
    "a file of the course is included by the emulator": (
        on_cpu('#include "/course/mlsys_lab/errors.py"'),
        "includes",
    ),
    "assembly": (KERNEL.replace("if (", 'asm volatile("syscall"); if ('), ""),
    "assembly for the emulator": (on_cpu('#define DO asm volatile("syscall")'), "assembly"),
    "assembly that reads a file": (on_cpu('asm(".incbin \\"/etc/ld.so.cache\\"");\n#define DO'), "assembly"),
    "a program is started": (
        on_cpu('extern "C" int execl(const char*, const char*, ...);\n#define DO execl("/bin/true", "true", (char*)0)'),
        "`y`",
    ),
    "processes without end": (on_cpu('extern "C" int fork();\n#define DO while (true) fork()'), ""),
    "the shared file is cut": (
        on_cpu('extern "C" int ftruncate(int, long);\n#define DO ftruncate(3, 0)'),
        "",
    ),
    "memory without end": (on_cpu("#define DO while (true) *new char[1 << 20] = 1"), ""),
    "a compilation without end": (
        "template <int N, int M> struct Tree { Tree<N - 1, 2 * M> left; Tree<N - 1, 2 * M + 1> right; };\n"
        "template <int M> struct Tree<0, M> {};\n" + KERNEL.replace("if (", "Tree<60, 0> tree; if ("),
        "end",
    ),
    "a kernel without end": (KERNEL.replace("if (", "while (true) y[0] += 1; if ("), "end"),
    "an endless message": (f"#error {'x' * 60_000}\n" + KERNEL, ""),
    "an endless text": (KERNEL + "//" + "x" * (1 << 20), "too long"),
    "no text": ("\0", ""),
}


ENDLESS = 0.375
"""Share of a check's 4 s for what would take all of it: enough to compile the text and to begin."""


@pytest.mark.parametrize("how", sample([*HOSTILE], 3))
def test_a_hostile_text_costs_its_own_check_and_no_other(verdicts, how):
    text, told = HOSTILE[how]
    got = verdicts(giving(text), TRIPLE, time_factor=ENDLESS if "without end" in how else 1.0)
    assert not got["double"].passed and not got["double"].fault and got["triple"].passed, got
    assert told in got["double"].what, got["double"]
    assert len(got["double"].what) + len(got["double"].got) < 3000
