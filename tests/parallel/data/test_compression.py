"""Compressed gradients: their errors, error feedback, bytes, and the effect on the loss."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from mlsys_lab.comm import Rank, RankError, run
from mlsys_lab.comm.collectives.chunks import chunk_lengths
from mlsys_lab.errors import InputError
from mlsys_lab.flops.communication import all_reduce_bytes
from mlsys_lab.parallel.data.compression import INT8_MAX, BlockQuantizer, Int8GradientAverager, PowerSGD
from mlsys_lab.parallel.data.ddp import average_gradients_flat
from mlsys_lab.parallel.tags import Tag
from tests.parallel.training import loss_of, make_batches, make_model, make_optimizer, rows_of

SHAPES = [(12, 7), (5,), (3, 3)]


def draw(rank: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in SHAPES]


def parameters_with(gradients: list[torch.Tensor]) -> list[nn.Parameter]:
    parameters = [nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    return parameters


@pytest.mark.parametrize("size", [1, 4, 7, 100])
@pytest.mark.parametrize("count", [0, 1, 7, 30])
def test_no_number_is_off_by_more_than_half_a_step_of_its_block(count: int, size: int) -> None:
    x = torch.randn(count, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    codes, scales = BlockQuantizer(size).quantize(x)
    assert (codes.dtype, codes.shape, scales.dtype) == (torch.int8, x.shape, torch.float32)
    assert len(scales) == -(-count // size)
    back = BlockQuantizer(size).dequantize(codes, scales, x.dtype)
    for own, rounded in zip(x.split(size), back.split(size), strict=True):
        if len(own):
            assert (own - rounded).abs().max() <= own.abs().max() * (0.5 / INT8_MAX + 1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_16_bits_the_error_is_half_a_step_and_one_rounding(dtype: torch.dtype) -> None:
    x = torch.randn(256, generator=torch.Generator().manual_seed(0)).to(dtype)
    back = BlockQuantizer(256).dequantize(*BlockQuantizer(256).quantize(x), dtype)
    half_step = float(x.abs().max()) * 0.5 / INT8_MAX
    rounding = back.double().abs() * torch.finfo(dtype).eps / 2
    assert ((x.double() - back.double()).abs() <= half_step * 1.001 + rounding).all()


def test_zeros_stay_zeros_and_a_block_has_a_number() -> None:
    quantizer = BlockQuantizer(2)
    assert quantizer.dequantize(*quantizer.quantize(torch.zeros(3)), torch.float32).tolist() == [0, 0, 0]
    with pytest.raises(InputError, match="a quantization block has at least one number: got 0"):
        BlockQuantizer(0)


@pytest.mark.parametrize("block", [4, 256])
@pytest.mark.parametrize("p", [1, 3])
def test_eight_bits_are_off_by_two_roundings(p: int, block: int) -> None:
    def average(rank: Rank, _: None) -> list[torch.Tensor]:
        parameters = parameters_with(draw(rank.rank))
        Int8GradientAverager(parameters, rank, block).average_gradients()
        return [parameter.grad for parameter in parameters if parameter.grad is not None]

    results, ledger = run(average, [None] * p)
    every = [draw(rank) for rank in range(p)]
    for number, shape in enumerate(SHAPES):
        mean = torch.stack([one[number] for one in every]).mean(0)
        largest = max(float(one[number].abs().max()) for one in every)
        for mine in results:
            assert torch.equal(mine[number], results[0][number])
            assert mine[number].shape == shape
            assert 0 < float((mine[number] - mean).abs().max()) <= largest / INT8_MAX * 1.001
    lengths = [length for shape in SHAPES for length in chunk_lengths(torch.Size(shape).numel(), p)]
    assert sum(ledger.sent_bytes(Tag.GRADIENTS)) == 2 * (p - 1) * sum(one + 4 * -(-one // block) for one in lengths)


def test_quantization_errors_are_fed_back() -> None:
    gradients, steps = draw(0), 40

    def add_up(rank: Rank, _: None) -> list[torch.Tensor]:
        parameters = parameters_with(gradients)
        averager, totals = Int8GradientAverager(parameters, rank), [torch.zeros_like(one) for one in gradients]
        for _ in range(steps):
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient.clone()
            averager.average_gradients()
            for total, parameter in zip(totals, parameters, strict=True):
                total += parameter.grad
        return totals

    (totals,), _ = run(add_up, [None])
    for total, gradient in zip(totals, gradients, strict=True):
        assert float((total - steps * gradient).abs().max()) < 1.1 * float(gradient.abs().max()) / INT8_MAX


@pytest.mark.parametrize("p", [1, 3])
def test_a_product_is_exact_where_the_mean_gradient_has_its_rank(p: int) -> None:
    generator = torch.Generator().manual_seed(9)
    columns = torch.randn(12, 2, dtype=torch.float64, generator=generator)  # what all ranks' gradients are made of
    rows = torch.randn(p, 2, 7, dtype=torch.float64, generator=generator)

    def average(rank: Rank, _: None) -> list[torch.Tensor]:
        parameters = parameters_with([columns @ rows[rank.rank], draw(rank.rank)[1]])
        PowerSGD(parameters, rank, matrix_rank=2).average_gradients()
        return [parameter.grad for parameter in parameters if parameter.grad is not None]

    results, ledger = run(average, [None] * p)
    matrix = columns @ rows.mean(0)
    vector = torch.stack([draw(rank)[1] for rank in range(p)]).mean(0)
    for mine in results:
        torch.testing.assert_close(mine[0], matrix, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(mine[1], vector, rtol=1e-12, atol=1e-14)
    sent = p * all_reduce_bytes(8 * (2 * (12 + 7) + 5), p)
    assert sum(ledger.sent_bytes(Tag.GRADIENTS)) == pytest.approx(sent)


def final_loss(average: Callable[[nn.Module, Rank], Callable[[], None]], p: int = 2) -> tuple[float, int]:
    """Mean loss of the last of 20 steps on the same two batches over and over, and bytes of gradients."""
    batches = make_batches(rows=4, steps=2)

    def train(rank: Rank, _: None) -> float:
        model = make_model()
        optimizer, send = make_optimizer(model.parameters()), average(model, rank)
        for step in range(20):
            optimizer.zero_grad()
            loss = loss_of(model, rows_of(rank, batches)[step % 2])
            loss.backward()
            send()
            optimizer.step()
        return loss.item()

    results, ledger = run(train, [None] * p)
    return sum(results) / p, sum(ledger.sent_bytes(Tag.GRADIENTS))


def test_what_compression_saves_and_what_it_costs_in_loss() -> None:
    exact, whole = final_loss(lambda model, rank: lambda: average_gradients_flat(model, rank))
    int8, eighth = final_loss(lambda model, rank: Int8GradientAverager(model.parameters(), rank).average_gradients)
    power, thin = final_loss(lambda model, rank: PowerSGD(model.parameters(), rank, matrix_rank=1).average_gradients)
    assert int8 == pytest.approx(exact, rel=0.01) and eighth < 0.15 * whole  # of float64; a quarter of float32
    assert exact < power < 1.15 * exact and thin < 0.26 * whole


@pytest.mark.parametrize(
    "make", [lambda rank, _: Int8GradientAverager([], rank, 0), lambda rank, _: PowerSGD([], rank, 0)]
)
def test_empty_blocks_and_rank_zero_raise(make: Callable[[Rank, None], object]) -> None:
    with pytest.raises((RankError, InputError), match=r"has at least .*: got 0"):
        run(make, [None])
