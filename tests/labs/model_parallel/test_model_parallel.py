"""Lab 09: where figures in the text come from; a mistake costs its own check; what is lent fails its own check."""

from __future__ import annotations

import pytest

from mlsys_checks.runner import run_check
from mlsys_checks.sandboxed import model_parallel as calls
from tests.labs.figures import assert_held
from tests.labs.slips import failed, lab_of, leave_unwritten, load_reference
from tests.sampling import sample

LAB = lab_of("model-parallel")
IN_CODE = (
    "4 ranks, 256 tokens and a vocabulary of 8,192",
    "A sequence of 4,096 tokens is divided into contiguous chunks over 8 ranks",
    "sends 512 tokens to 2 of 16 experts each",
    "12/d bytes (optimizer states",
    "T·D·(10 + 24/t) bytes",
)
COMPUTED = (  # Llama 2 70B: 80 layers, width 8,192, MLP 28,672; a stage of 5 layers, 16 micro-batches of 4,096
    f"({80 * (4 * 8192**2 + 3 * 8192 * 28672) / 1e9:.0f} billion parameters by the formula above",
    f"activations alone take {4096 * 8192 * (10 + 24) * 5 * 16 / 1e9:.0f} GB per GPU",
)
GIVEN = (
    "about 16 bytes per parameter",
    "For 70 billion parameters that is 1,120 GB, and an H100 has 80 GB",
    "at least 14 GPUs",
    "[lab 07](07-collectives.ipynb)",
    "[lab 08](08-data-parallel.ipynb)",
    "[chapter 11](../chapters/11-model-parallel.md)",
    "the 128,256 tokens of Llama 3's vocabulary the ratio is 16 times larger",
    "capacity for ⌈0.75 · 4 · 2 / 3⌉ = 2",
    "with a mean of 64 rows their standard deviation is about 7.5",
    "averages 0.4 standard deviations: 3 rows of 64, or nearly 5% of the choices",
    "16 stages, and only 32 micro-batches for each replica",
    "4 replicas with 256 micro-batches",
    "one all-reduce of 5 × 2 numbers of 8 bytes, over 2 ranks",
    "Four layouts of a model with Llama 2 70B's layers and widths on 512 H100s",
)
OWN = {
    "shard_parameter": {"take_part"},
    "CopyToTensorParallelRegion": {"column_linear"},
    "ReduceFromTensorParallelRegion": {"row_linear"},
    "ColumnParallelLinear": {"column_linear"},
    "RowParallelLinear": {"row_linear"},
    "one_forward_one_backward": {"schedule"},
    "zigzag_positions": {"zigzag"},
    "all_to_all": {"all_to_all"},
    "route": {"route"},
    "step_seconds": {"step_parts"},
}
"""Functions on which later ones build, and the checks that a mistake in them costs."""


def test_figures_are_in_code_or_given() -> None:
    assert_held(LAB, computed=COMPUTED, in_code=IN_CODE, given=GIVEN)
    assert 16 * 70e9 / 1e9 == 1120
    assert -(-1120 // 80) == 14
    assert pytest.approx(16, rel=0.03) == 128_256 / 8192
    assert (64, pytest.approx(8, rel=0.1)) == (512 * 2 / 16, (64 * (1 - 2 / 16)) ** 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("name", sample([*OWN], 6))
def test_an_unwritten_function_costs_its_own_check(name: str) -> None:
    module = load_reference(LAB)
    leave_unwritten(module, name)
    assert failed(LAB, module) == OWN[name]


LENT = {
    "take_part": {"shard_parameter": calls._shard},
    "column_linear": {"CopyToTensorParallelRegion": calls._Copy},
    "row_linear": {"ReduceFromTensorParallelRegion": calls._Reduce},
    "all_to_all": {"all_to_all": calls._exchange},
}


@pytest.mark.parametrize("name", LENT)
def test_what_is_lent_fails_the_check_of_its_own_name(name: str) -> None:
    module = load_reference(LAB)
    vars(module).update(LENT[name])
    assert not run_check(LAB.checks[name], module).passed
