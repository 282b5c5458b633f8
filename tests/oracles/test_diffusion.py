"""What the closed forms of a decoder say of DiT, whose blocks are the same but for what the time step modulates."""

from __future__ import annotations

import pytest

from mlsys_lab.flops.compute import forward
from mlsys_lab.flops.config import TransformerConfig
from mlsys_lab.flops.einsum import Einsum
from tests.oracles.catalogue import oracles

DIT_XL = TransformerConfig("DiT-XL", 28, 1152, 16, 4 * 1152, vocab_size=1, context=1024, activation="gelu")
"""Peebles and Xie, arXiv:2212.09748, table 1."""


def giga_multiply_adds(tokens: int) -> float:
    """DiT prints multiply-adds as "Gflops". A block's six modulations come from one vector an image, not a token."""
    D = DIT_XL.d_model
    modulation = DIT_XL.n_layers * Einsum.parse("d,de->e", d=D, e=6 * D).flops
    return (forward(DIT_XL, tokens).layers + modulation) / 2 / 1e9


COMPUTED = {
    "DI03": lambda i: [giga_multiply_adds(i["tokens"])],
    "DI04": lambda i: [giga_multiply_adds(tokens) for tokens in i["tokens"]],
}


@pytest.mark.parametrize("name", COMPUTED)
def test_published_figure(name: str) -> None:
    oracle = oracles()[name]
    oracle.check(*COMPUTED[name](oracle.inputs))
