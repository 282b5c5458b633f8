"""Number formats of 8 bits and fewer: codes of tensors, rounding, and packing into bytes.

elements     FloatFormat, IntFormat, CodeBook: formats as data; E4M3, E5M2, E3M2, E2M3, E2M1, E8M0, INT8 … UINT2
normal       NF4, the code book of normal quantiles; normal_float(bits)
codes        encode(x, format), decode(codes, format), round_to(x, format); Rounding
packing      pack(codes, bits), unpack(packed, bits): 2-, 3-, 4- and 6-bit codes in bytes
"""

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
    "NF4",
    "UINT2",
    "UINT3",
    "UINT4",
    "UINT8",
    "CodeBook",
    "ElementFormat",
    "FloatFormat",
    "IntFormat",
    "Rounding",
    "decode",
    "encode",
    "normal_float",
    "pack",
    "round_to",
    "unpack",
]
