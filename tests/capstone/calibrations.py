"""Calibrations given as plain numbers, as a judge gives them."""

from __future__ import annotations

from mlsys_lab.capstone.job import Calibration, Rates
from mlsys_lab.configs import TrainConfig, TransformerConfig

RATE, UNIT_S, LATENCY_S, BANDWIDTH, PEAK, MEMORY = 1e9, 2e-9, 1e-4, 1e8, 1e10, 5e9


def plain_calibration(config: TransformerConfig, train_config: TrainConfig, world_size: int) -> Calibration:
    """One rate for all shapes of a training step, written down from the matrices of the model."""
    D, inner, keys = config.d_model, config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    T, H, batch = train_config.seq_len, config.head_dim, train_config.batch_size
    shapes = {(T, H, T), (T, T, H)}
    for size in {batch // world_size, -(-batch // world_size)}:
        for width, out in (
            (D, inner),
            (D, keys),
            (inner, D),
            (D, config.d_ff),
            (config.d_ff, D),
            (D, config.vocab_size),
        ):
            shapes |= {(size * T, width, out), (size * T, out, width), (width, size * T, out)}
    rates = dict.fromkeys([*shapes, *(shape[::-1] for shape in shapes)], RATE)
    return Calibration(Rates(rates), UNIT_S, LATENCY_S, BANDWIDTH, PEAK, MEMORY)
