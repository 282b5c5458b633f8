"""variants.diff: what its hunks become, and what is refused."""

import pytest

from mlsys_grader.proving.variants import Variant, parse_variants
from mlsys_lab.errors import InputError

TEXT = """\
# Two mistakes.
@@ rms, norm @@ one line for two
 def rms(x):

-    y = x * x
+    y = x
+    y = y + 0


# A mishap.
@@ rms (hangs) @@ a line too many
! no | answer
     squares = x * x
+    while True: pass
"""


def test_lines_go_come_or_stay():
    mutant, mishap = parse_variants(TEXT)
    old = "\ndef rms(x):\n\n    y = x * x\n"
    new = "\ndef rms(x):\n\n    y = x\n    y = y + 0\n"
    assert mutant == Variant("one line for two", old, new, ("rms", "norm"))
    old = "\n    squares = x * x\n"
    new = f"{old}    while True: pass\n"
    assert mishap == Variant("a line too many", old, new, ("rms",), hangs=True, says="no | answer")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("-gone\n@@ rms @@ late\n", "a line belongs to no variant: got '-gone', expected @@ or #"),
        ("@@ rms\n-gone\n", "not the head of a variant: got '@@ rms', expected @@ check, check @@ what is wrong"),
        ("@@ rms @@ odd\n-gone\n?\n", "variant 'odd' is no diff: got '?', expected lines after -, + or a blank"),
        ("@@ rms @@ same\n stays\n", "variant 'same' changes nothing: expected lines after - or +"),
    ],
)
def test_what_is_no_diff_is_refused(text, message):
    with pytest.raises(InputError) as refused:
        parse_variants(text)
    assert str(refused.value) == message
