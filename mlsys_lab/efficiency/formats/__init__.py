"""Number formats of 8 bits and fewer: codes of tensors, rounding, blocks that share a scale, and packing into bytes.

elements     FloatFormat, IntFormat, CodeBook: formats as data; E4M3, E5M2, E3M2, E2M3, E2M1, E8M0, INT8 … UINT2
normal       NF4, the code book of normal quantiles; normal_float(bits)
codes        encode(x, format), decode(codes, format), round_to(x, format); Rounding
blocks       BlockFormat: MXFP8_E4M3, MXFP8_E5M2, MXFP6_E3M2, MXFP6_E2M3, MXFP4, NVFP4
             encode_blocks(x, format) -> BlockCodes, decode_blocks, round_to_blocks; bits_per_weight(format, *scales)
packing      pack(codes, bits), unpack(packed, bits): 2-, 3-, 4- and 6-bit codes in bytes
"""

from mlsys_lab.efficiency.formats.blocks import (
    MXFP4,
    MXFP6_E2M3,
    MXFP6_E3M2,
    MXFP8_E4M3,
    MXFP8_E5M2,
    NVFP4,
    BlockCodes,
    BlockFormat,
    bits_per_weight,
    decode_blocks,
    encode_blocks,
    round_to_blocks,
)
from mlsys_lab.efficiency.formats.codes import Rounding, decode, encode, round_to
from mlsys_lab.efficiency.formats.elements import (
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E5M2,
    E8M0,
    INT2,
    INT3,
    INT4,
    INT8,
    UINT2,
    UINT3,
    UINT4,
    UINT8,
    CodeBook,
    ElementFormat,
    IntFormat,
)
from mlsys_lab.efficiency.formats.normal import NF4, normal_float
from mlsys_lab.efficiency.formats.packing import pack, unpack
from mlsys_lab.flops.number_formats import FloatFormat

__all__ = [
    "E2M1",
    "E2M3",
    "E3M2",
    "E4M3",
    "E5M2",
    "E8M0",
    "INT2",
    "INT3",
    "INT4",
    "INT8",
    "MXFP4",
    "MXFP6_E2M3",
    "MXFP6_E3M2",
    "MXFP8_E4M3",
    "MXFP8_E5M2",
    "NF4",
    "NVFP4",
    "UINT2",
    "UINT3",
    "UINT4",
    "UINT8",
    "BlockCodes",
    "BlockFormat",
    "CodeBook",
    "ElementFormat",
    "FloatFormat",
    "IntFormat",
    "Rounding",
    "bits_per_weight",
    "decode",
    "decode_blocks",
    "encode",
    "encode_blocks",
    "normal_float",
    "pack",
    "round_to",
    "round_to_blocks",
    "unpack",
]
