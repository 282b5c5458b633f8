"""The emulated board: logits, counted instructions, and programs that do not fit or do not end well."""

import numpy as np
import pytest
import torch
from torch import nn

from mlsys_lab.efficiency.embedded import generate_c, quantize_network, run_here, run_on_board, simulate
from mlsys_lab.errors import InputError, MissingToolError
from tests.efficiency.embedded.models import make_example
from tests.efficiency.embedded.tools import needs_board, needs_gcc

LOOP = """
int putchar(int character);
int main(void)
{
    for (int line = 0; line < 2; line++) {
        int count = 1000000;
        __asm__ volatile("1: subs %0, #1\\n bne 1b" : "+r"(count) : : "cc");
        putchar('7');
        putchar('\\n');
    }
    return STATUS;
}
"""


@needs_board
def test_the_board_prints_the_simulation_s_logits():
    example = make_example("convolutions", seed=2)
    run = run_on_board(generate_c(example.network, example.codes), "-O3")
    np.testing.assert_array_equal(run.logits, simulate(example.network, example.codes))


@needs_board
def test_a_loop_of_two_instructions_is_counted_exactly():
    run = run_on_board(LOOP.replace("STATUS", "0"))
    assert run.logits.tolist() == [[7], [7]]
    assert run.instructions == pytest.approx(2e6, rel=1e-4)
    assert 0 < run.stack_bytes < 200 and run.ram_bytes < 50 and run.flash_bytes < 1000


@needs_board
@pytest.mark.parametrize(
    "source", [LOOP.replace("STATUS", "1"), "int main(void) { return *(volatile int *)0x80000000; }"]
)
def test_a_program_that_fails_or_crashes_is_named(source):
    with pytest.raises(InputError, match="qemu-system-arm failed: got status 1"):
        run_on_board(source)


@needs_board
def test_what_does_not_compile_is_named():
    with pytest.raises(InputError, match="arm-none-eabi-gcc failed: got error: unused variable"):
        run_on_board("int main(void) { int unused; return 0; }")


@needs_board
@pytest.mark.parametrize(
    ("model", "images", "message"),
    [
        (nn.Linear(400, 400), torch.rand(2, 400), r"region `FLASH' overflowed by \d+ bytes"),
        (nn.Conv2d(1, 5, 3, padding=1), torch.rand(1, 1, 104, 104), "region `RAM' has less than 1 KiB"),
        (nn.Conv2d(1, 9, 3, padding=1), torch.rand(1, 1, 104, 104), r"region `RAM' overflowed by \d+ bytes"),
    ],
)
def test_a_network_over_the_budget_is_refused_by_the_linker(model, images, message):
    network = quantize_network(nn.Sequential(model), images)
    with pytest.raises(InputError, match=message):
        run_on_board(generate_c(network, network.encode(images.numpy())))


@pytest.mark.parametrize(("run", "program"), [(run_here, "gcc"), (run_on_board, "gcc-arm-none-eabi")])
def test_a_missing_compiler_is_one_line(run, program, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingToolError, match=f"gcc is not on this machine; help: apt install {program}$"):
        run(LOOP)


@needs_gcc
def test_undefined_behaviour_ends_a_program_here():
    with pytest.raises(InputError, match=r"./network failed"):
        run_here("int main(int count, char **words) { (void)words; return 0x7fffffff + count; }")
