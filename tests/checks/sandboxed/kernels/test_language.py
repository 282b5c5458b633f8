"""What a kernel's text may use: real kernels pass, every way out of the language is refused at its line."""

from __future__ import annotations

import ast
import math
from types import SimpleNamespace

import pytest

from mlsys_checks.sandboxed.kernels.definitions import kernels_of
from mlsys_checks.sandboxed.kernels.language import KernelLanguageError

TRITON = SimpleNamespace(jit=lambda function: function)
MODULE = """
import math
from numba import cuda, float32
import triton.language as tl

TILE = 16
PITCH = TILE + 1
BLOCK = (TILE, 2 * TILE)
secret = open


def helper(x):
    raise SystemExit


print("never run")


@cuda.jit(device=True)
def weight(x, least=0.0):
    return max(math.exp(-x), least)


@cuda.jit
def total(x, out):
    "Sums of tiles."
    tile = cuda.shared.array((TILE, PITCH), float32)
    i, row = cuda.grid(1), cuda.threadIdx.x
    tile[row, 0] = 0.0
    for k in range(0, x.shape[0], TILE):
        if i + k < x.size and not row > TILE:
            tile[row, 0] += weight(x[i + k])
            tile[row][-1] = x[1:][k]
        cuda.syncthreads()
    while row < 0:
        break
    cuda.atomic.add(out, 0, tile[row, 0])


@triton.jit
def row_sums(x_ptr, y_ptr, n, B: tl.constexpr):
    at = tl.program_id(0) * n + tl.arange(0, B)[None, :]
    x = tl.load(x_ptr + at, mask=at < n, other=-float("inf"), eviction_policy="evict_first")
    shifted = tl.math.exp((x - tl.max(x, axis=1)[:, None]).to(tl.float32))
    tl.store(y_ptr + tl.zeros([1], tl.int32), tl.sum(shifted, axis=1).to(y_ptr.dtype.element_ty))
"""


LOST = "def kernel(x_ptr, B: tl.constexpr):\n    tl.store(x_ptr + tl.arange(0, B), 1.0)\n"


@pytest.mark.parametrize(
    ("source", "line", "said"),
    [
        (LOST, 1, "`kernel` is a plain function, no kernel"),
        ("def kernel(x):\n    x[cuda.grid(1)] = 1\n", 1, "`kernel` is a plain function, no kernel"),
        (f"@triton.autotune(configs=[], key=[])\n@triton.jit\n{LOST}", 1, "got @triton.autotune"),
        (f"@triton.jit\n@triton.heuristics({{}})\n{LOST}", 2, "got @triton.heuristics"),
        (
            f"@triton.autotune(configs=[], key=[])\n{LOST}",
            2,
            "is no kernel without `@triton.jit`: got @triton.autotune",
        ),
        (f"@triton.jit\n{LOST}    y = libdevice.tanh(1.0)\n", 4, "has no libdevice"),
        (f"@triton.jit\n{LOST}    y = exp(1.0)\n", 4, "`exp` is nothing that kernel `kernel` can use; help: tl.exp"),
        (f"@triton.jit\n{LOST}    y = tl.math.tanh(1.0)\n", 4, "help: 2 * tl.sigmoid(2 * x) - 1"),
        (f"@triton.jit\n{LOST}    y = x_ptr.to(tl.pointer_type(tl.float32))\n", 4, "let a table hold offsets"),
        (f"@triton.jit\n{LOST}    y = tl.extra.cuda.libdevice.tanh(1.0)\n", 4, "has no libdevice"),
    ],
)
def test_the_true_cause_is_told_at_its_line(source: str, line: int, said: str) -> None:
    error = kernels_of(source).refused["kernel"]
    assert error.line == line and said in str(error)


def test_a_kernel_that_calls_one_without_its_decorator_is_refused_for_that() -> None:
    caller = "\n@triton.jit\ndef caller(x_ptr):\n    kernel(x_ptr, 4)\n"
    for helper in (LOST, "def kernel(x, y):\n    return x / y\n"):
        error = kernels_of(helper + caller).refused["caller"]
        assert error.line == 1 and "`kernel` is a plain function" in str(error)


TRITON_BODY = "def kernel(x_ptr, B: tl.constexpr):\n    tl.store(x_ptr + {}.arange(0, B), 1.0)\n"
CUDA_BODY = "def kernel(x):\n    x[{}.grid(1)] = 1\n"


@pytest.mark.parametrize(
    ("imports", "decorator", "body"),
    [
        ("import triton as tr", "tr.jit", TRITON_BODY.format("tl")),
        ("from triton import jit as j", "j", TRITON_BODY.format("tl")),
        ("import triton\nimport triton.language as T", "triton.jit", TRITON_BODY.format("T")),
        ("from mlsys_lab.kernels.triton_language import tl as T, triton as tr", "tr.jit", TRITON_BODY.format("T")),
        ("import numba.cuda as nc", "nc.jit", CUDA_BODY.format("nc")),
        ("from numba import cuda as c", "c.jit(fastmath=True)", CUDA_BODY.format("c")),
        ("from numba.cuda import jit", "jit", CUDA_BODY.format("cuda")),
        ("import numba", "numba.cuda.jit", CUDA_BODY.format("cuda")),
        ("try:\n    from numba import cuda as c\nexcept ImportError:\n    c = None", "c.jit", CUDA_BODY.format("cuda")),
        ("from mlsys_lab.kernels.numba_language import cuda\nj = cuda.jit", "j", CUDA_BODY.format("cuda")),
    ],
)
def test_what_makes_a_kernel_may_go_by_any_name_of_an_import(imports: str, decorator: str, body: str) -> None:
    found = kernels_of(f"{imports}\n@{decorator}\n{body}")
    assert found.kernels == ("kernel",)
    text = ast.unparse(found.tree)
    assert text.startswith(("@cuda.jit", "@triton.jit")) and ("tl.arange" in text or "cuda.grid" in text)


def test_an_alias_is_a_name_of_the_module_and_no_way_around_the_language() -> None:
    head = "import os as cuda_\nimport numba.cuda as nc\n@nc.jit\n"
    for line in ("cuda_.system('')", "nc.to_device(x)", "nc.grid.__globals__", "x = nc"):
        refusal(f"{head}def kernel(x):\n    y = x\n    {line}\n")
    assert kernels_of(f"{head}def kernel(x, nc):\n    x[0] = nc\n").kernels == ("kernel",), "a parameter of that name"


@pytest.mark.parametrize(
    ("source", "line", "said"),
    [
        ("from numba import njit\n@njit\ndef kernel(x): pass\n", 2, "`@njit` compiles for a CPU"),
        ("import numba as nb\n@nb.jit(nopython=True)\ndef kernel(x): pass\n", 2, "`@nb.jit` compiles for a CPU"),
        ("import functools\n@functools.cache\ndef kernel(x): pass\n", 2, "none of the decorators that make one"),
        ("@nc.jit\ndef kernel(x): pass\n", 1, "no exported cell imports `nc`"),
        ("def kernel(x):\n    return x\n", 1, "is a plain function, no kernel"),
        ("@cuda.jit\ndef mine(x): pass\nkernel = mine\n", 3, "is another name of `mine`"),
        ("kernel = cuda.jit(print)\n", 1, "is neither a kernel nor a number by its text"),
        ("if True:\n    @cuda.jit\n    def kernel(x): pass\n", 3, "is defined inside of another statement"),
        ("from mine import kernel\n", 1, "is imported"),
        ("class kernel: pass\n", 1, "is no kernel"),
    ],
)
def test_what_is_no_kernel_is_told_for_what_it_is(source: str, line: int, said: str) -> None:
    error = kernels_of(source).refused["kernel"]
    assert error.line == line and said in str(error)


@pytest.mark.parametrize("value", ["np.zeros(3)", "[1, 2]", "np.log2(np.e)", "{}", "(lambda: 3)"])
def test_what_a_kernel_takes_of_its_module_is_told_by_its_own_text(value: str) -> None:
    error = kernels_of(f"TILE = 3\nTABLE = {value}\n@cuda.jit\ndef kernel(x): x[0] = TABLE\n").refused["kernel"]
    assert "`TABLE` is nothing that kernel `kernel` can use: got `TABLE = " in str(error)
    assert "did you mean" not in str(error) and "numbers and tuples of numbers" in str(error)


def test_what_a_dialect_lacks_is_answered_in_its_own_words() -> None:
    cuda = "from numba.cuda import libdevice as ld\n@cuda.jit\ndef kernel(x):\n    x[0] = ld.expf(1.0)\n"
    triton = "from triton.language.extra import libdevice as ld\n@triton.jit\ndef kernel(x):\n    y = ld.exp(1.0)\n"
    for source, own, foreign in ((cuda, "math.exp", "tl."), (triton, "tl.exp", "math.")):
        said = str(kernels_of(source).refused["kernel"])
        assert "has no libdevice" in said and own in said and foreign not in said
    for call in ("print(x)", "tl.static_print(x)", "tl.device_print(x)", "breakpoint()"):
        said = str(kernels_of(f"@triton.jit\ndef kernel(x):\n    {call}\n").refused["kernel"])
        assert said.endswith("help: a kernel in these checks prints nothing: look at what it stores, or at its trace")
    said = str(kernels_of("import torch\n@triton.jit\ndef kernel(x):\n    y = torch.sigmoid(x)\n").refused["kernel"])
    assert said.endswith("help: tl.sigmoid") and "`torch.sigmoid` is nothing" in said


def refusal(source: str) -> KernelLanguageError:
    """Why the last definition of a text is not run; nothing else of the text is refused."""
    ast.parse(source)
    found = kernels_of(source)
    ((name, error),) = found.refused.items()
    assert name not in found.kernels + found.constants
    assert f"def {name}(" not in ast.unparse(found.tree)
    return error


def test_kernels_and_constants_are_taken_and_all_else_is_left_out() -> None:
    found = kernels_of(MODULE)
    assert found.kernels == ("weight", "total", "row_sums")
    assert found.constants == ("TILE", "PITCH", "BLOCK")

    left = ast.unparse(found.tree)
    assert not any(word in left for word in ("import", "secret", "helper", "print", "open"))
    begins = [MODULE.splitlines()[node.lineno - 1].split("(")[0] for node in found.tree.body]
    assert begins == ["TILE = 16", "PITCH = TILE + 1", "BLOCK = ", "def weight", "def total", "def row_sums"], (
        "lines stay the learner's"
    )


def test_a_variable_may_be_named_as_a_constant_or_another_kernel_is_but_not_be_called() -> None:
    head = "TILE = 1\n@cuda.jit\ndef other(x): pass\n"
    kernel = "@cuda.jit\ndef kernel(x):\n    TILE = other = 2\n    x[TILE] = other\n"
    assert kernels_of(head + kernel).kernels == ("other", "kernel")
    assert "no variables" in str(refusal(head + kernel + "    other(x)\n"))


CUDA_LINES = [
    "import os",
    "global y",
    "x.y = 1",
    "x = cuda",
    "x.T[0] = 1",
    "cuda.threadIdx.x = 1",
    "x.__class__",
    "x = (1).real",
    "x = x.view(int32)",
    "x = [i for i in range(3)]",
    "x = {}",
    "x = [1, 2]",
    "x = max(x, 1, key=min)",
    "x = max((), default='text')",
    "x = lambda: 1",
    "x = 'text'",
    "x = f'{x}'",
    "x = b'text'",
    "x = ...",
    "print(x)",
    "open('file')",
    "getattr(x, 'y')",
    "x = __builtins__",
    "__import__('os')",
    "helper(x)",
    "x()",
    "(x or min)()",
    "x[0]()",
    "x[0].y[0] = 1",
    "max(x)[0] = 1",
    "y = min; y(1, 2)",
    "min(*x)",
    "min(**x)",
    "cuda.to_device(x)",
    "cuda.shared(x)",
    "cuda.shared.array.__globals__",
    "cuda.jit(x)",
    "math.__loader__",
    "tl.load(x)",
    "triton.cdiv(1, 2)",
    "for x, y in range(3): pass",
    "for y in x: pass",
    "for y in map(x): pass",
    "with x: pass",
    "try: pass\n    finally: pass",
    "raise x",
    "assert open",
    "del x",
    "def inner(): pass",
    "class Inner: pass",
    "yield x",
    "await x",
    "(y := 1)",
    "cuda = 1",
    "range = 1",
    "__x = 1",
    "x[(y := 2)] = 1",
    "x[0], y.z = 1, 2",
    "x += x.data",
    "x = float('1e5')",
    "match x:\n        case _: pass",
]
TRITON_LINES = [
    "tl.static_print(x)",
    "tl.device_print('x', x)",
    "tl.inline_asm_elementwise('', '', [x], tl.int32, True, 1)",
    "y = x.to(tl.pointer_type(tl.float32))",
    "y = x.handle",
    "x.handle.data = 1",
    "y = x.type",
    "y = tl.core",
    "y = tl.load(x, _semantic=x)",
    "y = tl.load(x, member=x)",
    "y = tl.swizzle2d(0, 1, 2, 3, 4)",  # lab 04 asks for it
    "y = tl.extra.cuda.libdevice",
    "y = tl.tensor(x, 1)",
    "y = cuda.grid(1)",
    "y = math.exp(x)",
    "y = x.__getitem__(0)",
    "tl.load.fn(x)",
    "y = z = x",
    "y = max(x, 1, key=min)",
    "y = [0.0] * 8",
    "x[0] = 1",
]


@pytest.mark.parametrize(
    ("decorator", "line"),
    [("cuda.jit", line) for line in CUDA_LINES] + [("triton.jit", line) for line in TRITON_LINES],
)
def test_what_a_kernel_does_not_have_is_refused_at_its_line(decorator: str, line: str) -> None:
    source = f"TILE = 1\n@{decorator}\ndef kernel(x):\n    y = x\n    {line}\n"
    error = refusal(source)
    assert error.line in (3, 5), "the line itself, or the kernel whose variable is misnamed"
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    "head",
    [
        "@cuda.jit\ndef kernel(*x): pass",
        "@cuda.jit\ndef kernel(**x): pass",
        "@cuda.jit\ndef kernel(x=[]): pass",
        "@cuda.jit\ndef kernel(x=open): pass",
        "@triton.jit\ndef kernel(x: print('run')): pass",
        "@triton.jit\ndef kernel(x: [1 for eval in ()]): pass",
        "@triton.jit\ndef kernel(x: tl.int8): pass",
        "@triton.jit\ndef kernel(x: 'fp16'): pass",
        "@triton.jit\ndef kernel(x: '*fp32'): pass",
        "@triton.jit\ndef kernel(x: 'constexpr'): pass",
        "@triton.jit\ndef kernel(x: tl.const): pass",
        "@triton.jit\ndef kernel(x: torch.tensor[0]): pass",
        "@triton.jit\ndef kernel(x) -> print('run'): pass",
        "@triton.jit\ndef kernel(x) -> [1 for eval in ()]: pass",
        "@cuda.jit(print('run'))\ndef kernel(x): pass",
        "@cuda.jit\n@print\ndef kernel(x): pass",
        "@print\n@cuda.jit\ndef kernel(x): pass",
        "@cuda.jit\ndef range(x): pass",
        "@cuda.jit\ndef __builtins__(x): pass",
        "@cuda.jit\ndef kernel(x): pass\n@cuda.jit(print())\ndef kernel(x): pass",
        "kernel = 1\n@cuda.jit\ndef kernel(x): pass",
        "cuda = 1",
        "tl = 2",
    ],
)
def test_a_kernels_head_holds_constants_only(head: str) -> None:
    assert refusal(head).what


def test_annotations_of_numbas_kernels_are_left_out_unrun() -> None:
    found = kernels_of("@cuda.jit\ndef kernel(x: print('run'), *, y: 'float32[:]' = 1) -> [1 for eval in ()]: pass")
    assert ast.unparse(found.tree).endswith("def kernel(x, *, y=1):\n    pass")
    hidden = "@cuda.jit\ndef kernel(x, y: [0 for eval in ()]) -> [0 for eval in ()]:\n    x[0] = eval"
    assert "`eval` is nothing that kernel" in str(refusal(hidden))


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("x: int", "x: int"),
        ("x: 'int' = 4", "x: int=4"),
        ("x: bool, *, y: float = 1.0", "x: bool, *, y: float=1.0"),
        ("x: tl.int64, y: language.float32", "x: tl.int64, y: tl.float32"),
        ("x: torch.Tensor, y: 'Tensor', z: None", "x, y, z"),
        ("x: 'tl.constexpr', y: constexpr, z: tl.constexpr", "x: tl.constexpr, y: tl.constexpr, z: tl.constexpr"),
    ],
)
@pytest.mark.parametrize("returned", ["", " -> None", " -> int", " -> torch.Tensor", " -> 'nothing'"])
def test_annotations_of_tritons_kernels_are_types_or_constants_or_left_out_unrun(
    written: str, kept: str, returned: str
) -> None:
    imports = "from triton import language\nfrom triton.language import constexpr\n"
    found = kernels_of(f"{imports}@triton.jit\ndef kernel({written}){returned}: pass")
    assert "kernel" in found.kernels and ast.unparse(found.tree).endswith(f"def kernel({kept}):\n    pass")


@pytest.mark.parametrize(
    "line",
    [
        "x = [1]",
        "x = open",
        "x = 'text'",
        "x = float('1')",
        "x = y",
        "__x = 1",
        "x: int",
        "x, y = 1, 2",
        "x = min(1, y)",
        "x = min(*range(9))",
        "x = range(3)",
        "x = int(1, base=2)",
        "x = math.exp",
        "x = math.pow(2, y)",
        "x = math.factorial(9)",
        "x = math.floor.real",
        "x = tl.constexpr(y)",
    ],
)
def test_a_constant_is_made_of_numbers(line: str) -> None:
    assert kernels_of(line).constants == ()


@pytest.mark.parametrize(
    "line",
    [
        "E = tl.constexpr(2 + 3)",
        "_TWO = math.sqrt(4)\nE = tl.constexpr(_TWO + 3)",
        "FAR = float('inf')\nE = tl.constexpr(-(-5 + 1 / FAR))",
        "E: tl.constexpr = tl.constexpr(5)",
        "E: print('run') = tl.constexpr(max(5, int(math.log2(16))))",
        "T = 2\nE = tl.constexpr(T + 3)",
        "T = tl.constexpr(2)\nE = T + 3",
        "E = tl.constexpr(2)\nE += 3",
    ],
)
def test_a_constant_may_be_written_as_tritons_compiler_asks(line: str) -> None:
    found = kernels_of(f"{line}\n@triton.jit\ndef kernel(x_ptr):\n    tl.store(x_ptr, E)\n")
    assert found.constants[-1] == "E" and found.kernels == ("kernel",)
    exec(compile(found.tree, "<lab>", "exec"), names := {"math": math, "triton": TRITON})
    assert names["E"] == 5
    assert kernels_of(f"{line}\n{line}\n").constants == found.constants
    exec(compile(kernels_of(f"{line}\nE = 6\n").tree, "<lab>", "exec"), names)
    assert names["E"] == 6, "the last counts"


@pytest.mark.parametrize("line", ["E = 5", "E: tl.constexpr = 5", "E = 2\nE += 3", "E = tl.constexpr(5)\nE = 5"])
def test_a_constant_that_tritons_compiler_refuses_is_refused_in_a_kernel_of_triton_alone(line: str) -> None:
    error = refusal(f"{line}\n@triton.jit\ndef kernel(x_ptr):\n    tl.store(x_ptr, E)\n")
    assert "`E` is a plain number" in str(error) and str(error).endswith("help: E = tl.constexpr(number)")
    assert kernels_of(f"{line}\n@cuda.jit\ndef kernel(x): x[0] = E\n").kernels == ("kernel",)


@pytest.mark.parametrize(
    ("kernel", "instead"),
    [
        ("@nb.cuda.jit\ndef kernel(x): pass", "help: import it there, or @cuda.jit or @triton.jit"),
        ("@jit\ndef kernel(x): pass", "help: import it there, or @cuda.jit or @triton.jit"),
        ("@cuda.jit\ndef kernel(x): x[0] = np.inf", "help: math.inf"),
        ("@triton.jit\ndef kernel(x): y = math.inf", 'help: float("inf")'),
        ("@triton.jit\ndef kernel(x): y = triton.cdiv(x, 2)", "help: tl.cdiv"),
        ("@cuda.jit\ndef kernel(x): x.T[1] = 2", "help: array[row, column] = value"),
    ],
)
def test_what_is_refused_says_what_to_write_instead(kernel: str, instead: str) -> None:
    assert str(refusal(kernel)).endswith(instead)
    assert kernels_of("@numba.jit\ndef kernel(x): pass").kernels == ()


def test_an_assertion_of_constants_may_say_what_is_wrong() -> None:
    assert kernels_of('@triton.jit\ndef kernel(x):\n    tl.static_assert(2 > 1, "too small")\n').kernels == ("kernel",)
    head = "@triton.jit\ndef kernel(x):\n    "
    for line in ('tl.static_assert("2", "too small")', 'tl.store(x, "text")'):
        assert "numbers only" in str(refusal(head + line + "\n"))


@pytest.mark.parametrize("name", ["np.float32", "numpy.int64", "numba.boolean", "nb.int32", "types.uint8"])
def test_number_types_go_by_the_names_of_their_libraries_and_nothing_else_of_these_does(name: str) -> None:
    module = name.partition(".")[0]
    head = "@cuda.jit\ndef kernel(x):\n    "
    for line in (f"x[0] = {name}(1)", f"tile = cuda.shared.array(32, dtype={name})"):
        assert kernels_of(f"{head}{line}\n").kernels == ("kernel",)
    for line in (
        f"x[0] = {name}.__init__(1)",
        f"x[0] = {name}.type(1)",
        f"x[0] = {module}.load(1)",
        f"i = {module}",
        f"{module} = x\n    i = {name}(1)",
        f"i = {module}.core.float32",
        "i = np.boolean(1)",
    ):
        refusal(f"{head}{line}\n")
    refusal(f"{module} = 3\n{head}i = {name}(1)\n")
    refusal(f"@triton.jit\ndef kernel(x):\n    i = {name}(1)\n")


def test_numbas_kernels_may_assert() -> None:
    head = "@cuda.jit\ndef kernel(x):\n    "
    for line in ("assert x.size > 3", 'assert x.size > 3, "too few"'):
        assert kernels_of(f"{head}{line}\n").kernels == ("kernel",)
        refusal(f"@triton.jit\ndef kernel(x):\n    {line}\n")
    for line in ("assert open(x)", "assert x.size > 3, open(x)", "assert x.size > 3, x.size"):
        refusal(f"{head}{line}\n")


def test_a_misspelt_name_gets_the_near_one() -> None:
    assert "tl.cdiv" in str(refusal("@triton.jit\ndef kernel(x):\n    i = tl.math.cdiv(x, 2)\n"))
    said = str(refusal("@triton.jit\ndef kernel(x):\n    i = tl.swizzle2d(0, 1, 2, 3, 4)\n"))
    assert said.endswith("help: write it out, from the program's number: a lab asks for it")
    assert "`float32` alone" in str(refusal("@cuda.jit\ndef kernel(x):\n    i = torch.float32(1)\n"))
    assert "it has abs, bool" in str(refusal("@cuda.jit\ndef kernel(x):\n    i = divmod(x, 1)\n"))
    assert "did you mean 'threadIdx.x'" in str(refusal("@cuda.jit\ndef kernel(x):\n    i = cuda.threadIx.x\n"))
    assert "did you mean 'TILE'" in str(refusal("TILE = 8\n@cuda.jit\ndef kernel(x):\n    i = TYLE\n"))


def test_what_is_refused_takes_what_uses_it_along_and_nothing_else() -> None:
    head = "T = 1\nU = T + 1\nV = 3\n"
    helper = "@cuda.jit\ndef helper(x):\n    print(x)\n"
    calls = "@cuda.jit\ndef {}(x):\n    {}\n"
    source = head + helper + calls.format("first", "helper(x)") + calls.format("second", "first(x)")
    source += calls.format("own", "helper = T = 2") + calls.format("good", "x[0] = V + U")
    found = kernels_of(source)
    assert set(found.refused) == {"helper", "first", "second"}
    assert {str(error) for error in found.refused.values()} == {str(found.refused["helper"])}
    assert found.kernels == ("own", "good")

    twice = kernels_of(source + "T = 2\n")
    assert (twice.kernels, twice.constants) == (("own", "good"), ("T", "U", "V"))
    assert ast.unparse(twice.tree).startswith("T = 1\nU = T + 1\nV = 3\nT = 2\n")


def test_a_text_may_be_a_keyword_or_one_of_two() -> None:
    head = "@triton.jit\ndef kernel(x, exact: tl.constexpr):\n    tl.dot(x, x, input_precision="
    for text in ('"ieee")', '"ieee" if exact else "tf32")'):
        assert kernels_of(f"{head}{text}\n").kernels == ("kernel",)
    assert "numbers only" in str(refusal(f'{head}"ieee" if "text" else "tf32")\n'))
