"""Machine-made mistakes of small texts: which there are, what they are called, that they are Python and differ."""

import ast
import textwrap

from mlsys_grader.proving.mutation.code import Code, read_appended_code, read_solved_code
from mlsys_grader.proving.mutation.mutants import mutate
from mlsys_grader.proving.mutation.shown import Shown
from mlsys_grader.proving.mutation.statements import know_only


def all_of(text, more=()):
    text = textwrap.dedent(text).strip("\n")
    return list(mutate(Code(text, frozenset(range(1, len(text.split("\n")) + 1))), "reference", more))


def returned(text):
    """The last line of every mutant of a function, as Python writes it."""
    return {ast.unparse(ast.parse(mutant.text)).split("\n")[-1].strip() for mutant in all_of(text)}


def test_numbers_names_and_signs():
    found = returned("def f(a, b):\n    return a - 2 * b")
    assert {"return a - 3 * b", "return a - 1 * b", "return a + 2 * b", "return a - 2 / b", "return 2 * b - a"} <= found
    assert {"return b - 2 * b", "return a - 2 * a", "return a", "return 2 * b", "return a - b"} <= found
    assert "return x" in returned("def f(x):\n    return -x")


def test_comparisons_conditions_and_guards():
    names = {mutant.name for mutant in all_of("def f(x, n):\n    if x < n and x:\n        x = 0\n    return x")}
    for changed in ("x <= n and x", "x > n and x", "x < n or x", "x < n", "x", "True", "False"):
        assert f"reference f: if x < n and x: => if {changed}:" in names


def test_masks_limits_axes_and_types():
    names = " ".join(
        mutant.name for mutant in all_of("def f(x):\n    return min(load(x, mask=x.m), x.sum(axis=1), x.float32)")
    )
    for changed in ("min(load(x), x.sum", "=> return load(x, mask=x.m)", "axis=2", "x.sum()", "x.float16", "max(load("):
        assert changed in names


def test_loops_are_cut_and_statements_dropped():
    text = "def f(n):\n    total = 0\n    for i in range(n):\n        total += i\n    return total"
    names = {mutant.name for mutant in all_of(text)}
    told = "reference f: for i in range(n):"
    assert {f"{told} => for i in range(0, n - 1, 1):", f"{told} … break", f"{told} => pass"} <= names
    assert f"{told} => for i in reversed(range(n)):" in names
    assert "reference f: total += i => pass" in names
    assert "reference f: total = 0 => pass" not in names  # without it nothing runs at all


def test_results_in_the_input_and_kept_between_calls():
    mutants = all_of("def f(x, y):\n    x = x + y\n    return x * 2")
    lines = {line.strip() for mutant in mutants for line in mutant.text.split("\n")}
    assert "return (x.__imul__(2))" in lines
    kept = [mutant for mutant in mutants if mutant.operator == "remember_results"]
    assert len(kept) == 2
    names = {}
    exec(kept[0].text, names)
    assert [names["f"](1, 1), names["f"](5, 5)] == [4, 4]


def test_arguments_that_only_shown_cases_have():
    shown = know_only(Shown(values={("f", "block"): (16, 32)}))
    names = {mutant.name for mutant in all_of("def f(x, block):\n    return x // block", shown)}
    assert "reference f: + block = 16" in names
    assert "reference f: + block = block if block in (16, 32) else 16" in names


def test_arguments_changed_by_list_methods():
    found = " ".join(returned("def f(x, y):\n    return [*sorted(x, key=abs), *reversed(x.left), *[*x, y]]"))
    assert "x.sort(key=abs) or x" in found
    assert "x.left.reverse() or x.left" in found
    assert "x.append(y) or x" in found


def test_results_kept_for_each_object():
    text = "class A:\n    def __init__(self, x):\n        self.x = x\n\n    def f(self, y):\n        return self.x + y"
    mutants = [one for one in all_of(text) if one.operator == "remember_results"]
    (kept,) = (one for one in mutants if one.name.startswith("reference A.f"))
    names = {}
    exec(kept.text, names)
    one, other = names["A"](1), names["A"](10)
    assert [one.f(1), other.f(1), one.f(2), other.f(2)] == [2, 11, 2, 11]


def test_the_last_argument_is_left_out():
    assert "return f(x, y)" in returned("def f(x, y, z):\n    return f(x, y, z)")


KERNEL = '''def text():
    return r"""
// below n = 1 there is nothing
extern "C" __global__ void f(const float* x, float* y, int rows, int n) {
    int row = threadIdx.y, i = 16 * blockIdx.x + threadIdx.x;
    __shared__ float part[16];
    if (row < rows && (i < n || rows > 2)) part[i] = x[i];
    __syncthreads();
    y[i] = part[i] + 1;
}
"""'''


def test_cuda_text():
    texts = []
    for mutant in (one for one in all_of(KERNEL) if one.operator == "change_cuda_text"):
        names = {}
        exec(mutant.text, names)
        texts.append(names["text"]())
    assert {
        "int row = threadIdx.x, i = 16 * blockIdx.x + threadIdx.x;",
        "int row = threadIdx.y, i = 17 * blockIdx.x + threadIdx.x;",
        "int row = threadIdx.y, i = 16 * blockIdx.x - threadIdx.x;",
        "if (row <= rows && (i < n || rows > 2)) part[i] = x[i];",
        "if (row < rows || (i < n || rows > 2)) part[i] = x[i];",
        "if ((i < n || rows > 2)) part[i] = x[i];",
        "if (row < rows ) part[i] = x[i];",
        "if (row < rows && (rows > 2)) part[i] = x[i];",
        "if (row < rows && (i < n )) part[i] = x[i];",
        "if (true) part[i] = x[i];",
        "if (row < rows && (i < n || rows > 2)) ;",
        "if (row < rows && (i < rows || rows > 2)) part[i] = x[i];",
        "if (row < rows && (i < n || rows > 2)) part[row] = x[i];",
        "if (row < rows && (i < n || rows > 2)) part[i] = y[i];",
        "y[i] = part[i] - 1;",
    } <= {line.strip() for text in texts for line in text.split("\n")}
    assert any("__syncthreads" not in text for text in texts)
    assert all("// below n = 1 there is nothing" in text for text in texts)
    assert len(set(texts)) == len(texts)


def test_no_two_are_equal_and_every_name_is_used_once():
    mutants = all_of(
        "class A:\n    def f(self, a, b):\n        a = a + 1\n        a = a + 1\n        return max(a, b - 1)"
    )
    trees = [ast.dump(ast.parse(mutant.text)) for mutant in mutants]
    assert len(set(trees)) == len(trees) > 20
    assert len({mutant.name for mutant in mutants}) == len(mutants)
    assert all(mutant.name.startswith("reference A.f: ") and mutant.top == "A" for mutant in mutants)
    assert any(mutant.name.endswith("#2") for mutant in mutants)


def test_names_outlive_edits_elsewhere():
    before = "def f(x):\n    y = x + 1\n    return y"
    after = (
        "import math\n\n\ndef g(x):\n    return x\n\n\ndef f(x):\n    # more\n    print(x)\n    y = x + 1\n    return y"
    )
    kept = {mutant.name for mutant in all_of(after)}
    assert {mutant.name for mutant in all_of(before)} <= kept


def test_long_statements_are_told_by_what_differs():
    terms = " + ".join(f"a[{i}]" for i in range(100, 140))
    names = [mutant.name for mutant in all_of(f"def f(a):\n    return {terms}")]
    assert "reference f: …+ a[119] + a[120] + a[121] + a[122]…" not in names
    assert min(map(len, names)) < 150 < len(terms)


def test_only_what_the_learner_writes_is_changed():
    own = "    ### BEGIN SOLUTION\n    return y + 2\n    ### END SOLUTION\n"
    text = f"def f(x):\n    y = x + 1\n{own}\n\ndef g(x):\n    return x + 3"
    mutants = list(mutate(read_solved_code(text), "reference"))
    assert mutants
    assert all("y = x + 1" in mutant.text and "return x + 3" in mutant.text for mutant in mutants)
    whole = f"{text}\n# %% cell 1000\ndef g(x):\n    return x + 4"
    changed = list(mutate(read_appended_code(whole, "def g(x):\n    return x + 4"), "other"))
    assert changed and all(mutant.text.startswith(text) for mutant in changed)


def test_patched_methods_are_reached_from_their_class():
    code = read_solved_code(
        "class A:\n    pass\n\n\ndef f(a):\n    return h(a)\n\n\ndef h(a):\n    return a\n\n\nA.f = f\n"
    )
    assert code.reached_from(["A"]) == {"A", "f", "h"}
    assert code.reached_from(["h"]) == {"h"}
