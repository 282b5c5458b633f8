"""What sparse weights cost: bytes, FLOPs and least time of a product, and the density from which a layout pays.

The product is X·Wᵀ of n tokens with a linear layer, and its time that of the roofline. Decoding (n = 1) is limited by
the bytes of the weights, prefill by FLOPs. Needs neither torch nor NumPy. Dimension letters: O outputs, I inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mlsys_lab.errors import InputError
from mlsys_lab.flops.memory import element_bytes
from mlsys_lab.flops.roofline import Bound, bound_on
from mlsys_lab.hardware import Device
from mlsys_lab.validation import require_at_least_one, require_one_of

VECTOR_PRECISION = "fp32"
"""Precision in which weights without a pattern are multiplied: by vector units, one at a time."""


@dataclass(frozen=True)
class Layout:
    """How a weight is stored, and which weights are multiplied.

    A square of `block`² weights is kept or dropped as a whole, with `index_bits` for each that is kept, `row_bits` for
    each row of squares, and `mask_bits` for each weight, kept or not. `density` is the only one that there is, or None;
    `group` inputs are kept or dropped by a pattern.
    `vector`: the product runs on vector units at `VECTOR_PRECISION`, else on those of the weights' precision;
    `skips_zeros`: dropped weights are not multiplied.
    """

    block: int = 1
    index_bits: int = 0
    row_bits: int = 0
    mask_bits: int = 0
    density: float | None = None
    group: int = 1
    vector: bool = False
    skips_zeros: bool = True


LAYOUTS: Mapping[str, Layout] = {
    "dense": Layout(density=1.0),
    "csr": Layout(index_bits=32, row_bits=32, vector=True),
    "bitmap": Layout(mask_bits=1, skips_zeros=False),
    "block 16": Layout(block=16, index_bits=32, row_bits=32),
    "block 64": Layout(block=64, index_bits=32, row_bits=32),
    "2:4": Layout(index_bits=2, density=0.5, group=4),
}
"""Layouts by name.

csr: each weight kept has a 32-bit column index. bitmap: kept weights and one bit for every weight; they are expanded on
the chip and multiplied with the zeros (Xia et al. 2023, Flash-LLM, arXiv:2309.10285, "load as sparse, compute as
dense"). block: squares of 16 or 64 with a 32-bit index each. 2:4: a 2-bit index for each weight kept, which sparse
tensor cores multiply at twice the dense rate (Mishra et al. 2021, arXiv:2104.08378, §3).
"""


def weight_bytes(layout: str, shape: tuple[int, int], density: float, precision: str) -> float:
    """Bytes of a weight (O, I) in a layout of `LAYOUTS`, indices included.

    InputError for an unknown layout or precision, a density outside (0, 1] or another than the layout's, and a shape
    that blocks do not divide.

    >>> [weight_bytes(layout, (4096, 4096), 0.5, "bf16") / 4096**2 for layout in ("2:4", "bitmap", "csr")]
    [1.125, 1.125, 3.0009765625]
    """
    one = _layout(layout, shape, density)
    O, I = shape
    blocks = density * O * I / one.block**2
    values = density * O * I * element_bytes(precision)
    return values + (blocks * one.index_bits + (O // one.block) * one.row_bits + O * I * one.mask_bits) / 8


def product_bound(
    device: Device, precision: str, layout: str, shape: tuple[int, int], density: float, tokens: int
) -> Bound:
    """Least time of a product of `tokens` tokens with a weight (O, I) in a layout of `LAYOUTS`, and what sets it.

    Inputs, outputs and the weight are moved once; 2·tokens FLOPs for each weight that is multiplied. InputError as in
    `weight_bytes`, for fewer than one token, and a device without a peak for the layout's precision.
    """
    require_at_least_one(tokens=tokens)
    size_bytes = weight_bytes(layout, shape, density, precision) + tokens * sum(shape) * element_bytes(precision)
    one, (O, I) = LAYOUTS[layout], shape
    multiplied = (density if one.skips_zeros else 1.0) * O * I
    return bound_on(device, VECTOR_PRECISION if one.vector else precision, 2 * tokens * multiplied, size_bytes)


def speedup(device: Device, precision: str, layout: str, shape: tuple[int, int], density: float, tokens: int) -> float:
    """Least time of the dense product over that of the layout; arguments and errors are those of `product_bound`."""
    dense = product_bound(device, precision, "dense", shape, 1.0, tokens)
    return dense.time_s / product_bound(device, precision, layout, shape, density, tokens).time_s


def break_even_density(device: Device, precision: str, layout: str, shape: tuple[int, int], tokens: int) -> float:
    """Largest density at which a layout's least time is no longer than the dense one: 0 if none, 1 if all.

    InputError as in `product_bound`, and for a layout that has only one density.
    """
    if layout in LAYOUTS and LAYOUTS[layout].density is not None:
        raise InputError("a layout of one density breaks even at none", got=layout, help="compute its speedup")
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        pays = speedup(device, precision, layout, shape, middle, tokens) >= 1
        low, high = (middle, high) if pays else (low, middle)
    return round(high, 9)


def _layout(name: str, shape: tuple[int, int], density: float) -> Layout:
    """The layout of this name, which the shape and density must fit."""
    require_one_of("layout", name, tuple(LAYOUTS))
    layout = LAYOUTS[name]
    if not 0 < density <= 1 or density != (layout.density or density):
        expected = "a number above 0, at most 1" if layout.density is None else layout.density
        raise InputError(f"density of {name} weights", got=density, expected=expected)
    inputs = max(layout.block, layout.group)
    if shape[0] % layout.block or shape[1] % inputs:
        expected = f"multiples of {layout.block} and {inputs}"
        raise InputError(f"{name} does not divide the weight", got=shape, expected=expected)
    return layout
