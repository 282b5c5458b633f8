"""Lab 07: where figures in the text come from; a mistake in one function costs the checks of that function only."""

from __future__ import annotations

from functools import wraps
from typing import Any

import pytest

from mlsys_lab.comm.cost.alpha_beta import LinkCost, crossover_bytes, naive, ring
from tests.labs.figures import assert_held
from tests.labs.slips import failed, lab_of, load_reference
from tests.sampling import sample

COLLECTIVES = lab_of("collectives")
NVLINK, NETWORK = LinkCost(1e-6, 450e9), LinkCost(5e-6, 50e9)
GRADIENT_BYTES = 2 * 8e9
IN_CODE = ("on a network of 5 µs and 50 GB/s", "comes close to the 50 GB/s of the network")
COMPUTED = (
    f"{GRADIENT_BYTES / 1e9:.0f} GB of them for a model of 8 billion weights in bf16",
    f"that takes {1e3 * naive(8, GRADIENT_BYTES, NVLINK):.0f} ms at 450 GB/s per GPU",
    f"A ring of the same GPUs takes {1e3 * ring(8, GRADIENT_BYTES, NVLINK):.0f} ms",
    f"The ring pays in steps: {2 * 7} against {2 * 3}",
    f"{8 * NETWORK.half_bytes / 1e6:.0f} MB for 8 ranks at 5 µs and 50 GB/s",
)
GIVEN = (
    "which costs little at 450 GB/s",
    "Eight GPUs train one model",
    "all eight need the sum",
    "[lab 01](01-autograd.ipynb)",
    "Eight ranks and a large array",
    "Eight ranks in two islands of four",
    "(1 µs and 450 GB/s inside an island, 5 µs and 50 GB/s across)",
    "12 bytes, and the one before it, 4 bytes, share a bucket of 16 bytes",
    "buckets of 25 MB, PyTorch's default",
    "[lab 08](08-data-parallel.ipynb)",
    "derives the answer for eight GPUs",
    "One of eight ranks has fewer rows",
    "Is the mean of the eight gradients still the gradient",
    "Broadcast over eight ranks in two islands",
)


def test_figures_are_in_code_computed_or_given() -> None:
    assert_held(COLLECTIVES, computed=COMPUTED, in_code=IN_CODE, given=GIVEN)


def test_the_example_crosses_where_the_package_says() -> None:
    size = load_reference(COLLECTIVES).crossover_bytes("tree", "ring", 8, NVLINK)
    assert size == pytest.approx(crossover_bytes("tree", "ring", 8, NVLINK), abs=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", sample(["reduce_scatter", "send_recv", "split_chunks", "all_gather", "all_reduce"], 5))
def test_a_mistake_costs_the_checks_of_its_own_function(name: str) -> None:
    module = load_reference(COLLECTIVES)
    right = getattr(module, name)

    @wraps(right)
    def turned(*args: Any) -> Any:
        answer = right(*args)
        return answer[::-1] if isinstance(answer, list) else -answer

    setattr(module, name, turned)
    assert failed(COLLECTIVES, module) == {name}
