"""Codes, scales and zero points equal to those of torchao, for weights and for whole layers."""

import pytest
import torch
from torch import nn

from mlsys_lab.efficiency.formats import INT4, INT8, UINT3, UINT4, UINT8
from mlsys_lab.efficiency.quantization import Scheme, quantize_tensor

W = torch.randn(48, 128, generator=torch.Generator().manual_seed(0))
SCHEMES = {
    "int8 by channel": (Scheme(INT8, scale_dtype=torch.float32), (1, 128)),
    "int8 by tensor": (Scheme(INT8, "tensor", scale_dtype=torch.float32), (48, 128)),
    "int4 by group": (Scheme(INT4, "group", 32, torch.float32), (1, 32)),
    "uint4 by group": (Scheme(UINT4, "group", 32, torch.float32), (1, 32)),
    "uint3 by group": (Scheme(UINT3, "group", 16, torch.float32), (1, 16)),
    "uint8 by channel": (Scheme(UINT8, scale_dtype=torch.float32), (1, 128)),
}


@pytest.mark.parametrize("name", SCHEMES)
def test_codes_and_scales_are_torchao_s(name):
    from torchao.quantization.quant_primitives import MappingType, choose_qparams_affine, quantize_affine

    scheme, block = SCHEMES[name]
    mapping = MappingType.SYMMETRIC if scheme.symmetric else MappingType.ASYMMETRIC
    dtype = torch.int8 if scheme.symmetric else torch.uint8
    limits = scheme.format.smallest, scheme.format.largest
    scale, zero_point = choose_qparams_affine(W, mapping, block, dtype, *limits, scale_dtype=torch.float32)
    codes = quantize_affine(W, block, scale, zero_point, dtype, *limits)
    ours = quantize_tensor(W, scheme)
    torch.testing.assert_close(ours.scale.flatten(), scale.flatten(), rtol=1e-6, atol=0)
    assert (ours.codes != codes).sum() <= 1  # where a quotient lies between two codes, to the last bit
    if ours.zero_point is not None:
        assert torch.equal(ours.zero_point.flatten().int(), zero_point.flatten().int())


def test_a_layer_in_groups_of_32_has_torchao_s_weights():
    from torchao.quantization import IntxWeightOnlyConfig, quantize_
    from torchao.quantization.granularity import PerGroup
    from torchao.quantization.quant_primitives import MappingType

    layer = nn.Linear(128, 48, bias=False)
    layer.weight.data.copy_(W)
    config = IntxWeightOnlyConfig(torch.int4, PerGroup(32), MappingType.ASYMMETRIC)
    quantize_(layer, config)
    ours = quantize_tensor(W, Scheme(UINT4, "group", 32, torch.float32))
    torch.testing.assert_close(ours.dequantize(), layer.weight.dequantize(), rtol=1e-5, atol=1e-6)
    assert ours.codes.int().sub(8).equal(layer.weight.qdata.int())  # theirs go from -8 to 7
