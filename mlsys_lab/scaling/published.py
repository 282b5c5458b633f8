"""Tables that papers print, as data to fit: best models by compute, and runs with their losses.

Arrays are of shape (R,), one element a row: parameters N, tokens D, training FLOPs as the paper counts them, loss in
nats a token. FLOPs need not be 6ND.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlsys_lab.scaling.laws import FloatArray, Frontier, PowerLaw, positive_array


@dataclass(frozen=True)
class BestModels:
    """A table of compute-optimal models, all arrays (R,): parameters, tokens and training FLOPs as printed."""

    n_params: FloatArray
    tokens: FloatArray
    flops: FloatArray

    def frontier(self) -> Frontier:
        """Power laws through the rows: parameters and tokens by printed FLOPs, each fitted on logarithms."""
        return Frontier(PowerLaw.fit(self.flops, self.n_params), PowerLaw.fit(self.flops, self.tokens))


@dataclass(frozen=True)
class PublishedRuns:
    """Trained models of a paper, all arrays (R,): parameters, tokens, printed training FLOPs, loss in nats a token."""

    n_params: FloatArray
    tokens: FloatArray
    flops: FloatArray
    loss: FloatArray

    def __len__(self) -> int:
        return len(self.loss)


def _column(*numbers: float, scale: float = 1) -> FloatArray:
    column = scale * positive_array("a column", numbers)
    column.flags.writeable = False
    return column


_SIZES = _column(0.4, 1, 10, 67, 175, 280, 520, 1_000, 10_000, scale=1e9)

HOFFMANN_TABLES = {
    "approach 1": BestModels(
        _SIZES,
        _column(8.0, 20.2, 205.1, 1_500, 3_700, 5_900, 11_000, 21_200, 216_200, scale=1e9),
        _column(1.92e19, 1.21e20, 1.23e22, 5.76e23, 3.85e24, 9.90e24, 3.43e25, 1.27e26, 1.30e28),
    ),
    "approach 2": BestModels(
        _SIZES,
        _column(7.7, 20.0, 219.5, 1_700, 4_300, 7_100, 13_400, 26_500, 292_000, scale=1e9),
        _column(1.84e19, 1.20e20, 1.32e22, 6.88e23, 4.54e24, 1.18e25, 4.19e25, 1.59e26, 1.75e28),
    ),
    "approach 3": BestModels(
        _SIZES,
        _column(9.2, 27.1, 410.1, 4_100, 12_000, 20_100, 43_500, 94_100, 1_425_500, scale=1e9),
        _column(2.21e19, 1.62e20, 2.46e22, 1.71e24, 1.26e24, 3.52e25, 1.36e26, 5.65e26, 8.55e28),
    ),
}
"""Best models that Chinchilla's three approaches predict (Hoffmann et al. 2022, arXiv:2203.15556, tables 3 and A3).

As printed: the fifth row of approach 3 has 1.26e24 FLOPs, but parameters and tokens that make 1.26e25.
"""

CEREBRAS_GPT = PublishedRuns(
    _column(0.111, 0.256, 0.59, 1.3, 2.7, 6.7, 13, scale=1e9),
    _column(2.22e9, 5.12e9, 1.18e10, 2.63e10, 5.30e10, 1.33e11, 2.57e11),
    _column(2.6e18, 1.3e19, 6.1e19, 2.8e20, 1.1e21, 6.3e21, 2.3e22),
    _column(2.608, 2.349, 2.181, 1.997, 1.834, 1.704, 1.572),
)
"""Seven models trained at 20 tokens a parameter, loss on the Pile's test set (Dey et al. 2023, arXiv:2304.03208).

FLOPs include attention and the output layer. Models of the standard parameterisation.
"""
CEREBRAS_FLOOR = 0.5066
"""The floor of the law that Dey et al. fitted to all but the largest of `CEREBRAS_GPT` (equation 1), nats a token."""
CEREBRAS_COMPUTE = PowerLaw(5.984e22**0.0737, -0.0737)
"""Loss above `CEREBRAS_FLOOR` by training FLOPs (Dey et al. 2023, equation 1)."""
