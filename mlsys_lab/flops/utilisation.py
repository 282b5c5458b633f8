"""How much of a machine a run used: MFU and HFU of its compute, MBU of its memory bandwidth.

MFU counts the FLOPs that the model needs, HFU those that the hardware did, recomputed ones included (PaLM,
arXiv:2204.02311, appendix B; Korthikanti et al., arXiv:2205.05198, appendix A). MBU counts the bytes that a step has to
read: weights and KV cache. All are fractions of the dense peak; a figure above 1 means that an input is wrong.
"""

from __future__ import annotations

from mlsys_lab.validation import require_non_negative, require_positive


def flops_per_s(flops: float, time_s: float, devices: int = 1) -> float:
    """FLOP/s that each of `devices` reached, from the FLOPs and the seconds of one piece of work."""
    require_non_negative(flops=flops)
    require_positive(time_s=time_s, devices=devices)
    return flops / time_s / devices


def mfu(model_flops: float, time_s: float, *, peak_flops_per_s: float, devices: int = 1) -> float:
    """Model FLOPs utilisation: the model's own FLOPs over those that all devices could do in the time at their peak."""
    require_positive(peak_flops_per_s=peak_flops_per_s)
    return flops_per_s(model_flops, time_s, devices) / peak_flops_per_s


def hfu(hardware_flops: float, time_s: float, *, peak_flops_per_s: float, devices: int = 1) -> float:
    """Hardware FLOPs utilisation: FLOPs executed, recomputation included, over those of all devices at their peak."""
    return mfu(hardware_flops, time_s, peak_flops_per_s=peak_flops_per_s, devices=devices)


def mbu(needed_bytes: float, time_s: float, *, bandwidth_bytes_per_s: float, devices: int = 1) -> float:
    """Memory bandwidth utilisation: bytes that had to be read (weights and cache) over those that memory could move.

    >>> mbu(14e9, 0.014, bandwidth_bytes_per_s=2e12)  # 7 billion weights of 16 bits, 14 ms a token
    0.5
    """
    require_non_negative(needed_bytes=needed_bytes)
    require_positive(time_s=time_s, bandwidth_bytes_per_s=bandwidth_bytes_per_s, devices=devices)
    return needed_bytes / time_s / devices / bandwidth_bytes_per_s


def training_time_s(flops: float, *, peak_flops_per_s: float, devices: int = 1, utilisation: float = 1.0) -> float:
    """Seconds that this many FLOPs take at a utilisation of the peak: MFU with model FLOPs, HFU with hardware FLOPs.

    >>> days = training_time_s(6 * 70e9 * 15e12, peak_flops_per_s=990e12, devices=4096, utilisation=0.45) / 86400
    >>> round(days)
    40
    """
    require_non_negative(flops=flops)
    require_positive(peak_flops_per_s=peak_flops_per_s, devices=devices, utilisation=utilisation)
    return flops / (peak_flops_per_s * devices * utilisation)
