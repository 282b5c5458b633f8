"""Decoding of a small LLaMA in Numba, one token at a time. Letters as in `compiled`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mlsys_lab.kernels.runtime import compile_for_cpu


@compile_for_cpu
def decode(token_ids: Any, first: int, weights: Any, kv: Any, eps: float) -> Any:
    """Compute tokens at positions `first` and on, storing keys and values in kv (2, L, C, K, H).

    Returns the logits (V,) after the last one.
    """
    w, D = weights, weights.embedding.shape[1]
    K, H = kv.shape[3:]
    x, normed = np.empty(D, np.float32), np.empty(D, np.float32)
    q, heads = np.empty(w.query.shape[1], np.float32), np.empty(w.query.shape[1], np.float32)
    gate, up = np.empty(w.gate.shape[1], np.float32), np.empty(w.gate.shape[1], np.float32)
    added, logits = np.empty(D, np.float32), np.empty(w.head.shape[0], np.float32)
    for i in range(len(token_ids)):
        position = first + i
        for d in range(D):
            x[d] = w.embedding[token_ids[i], d]
        for layer in range(len(w.query)):
            keys, values = kv[0, layer], kv[1, layer]
            normalize(x, w.attention_norm[layer], eps, normed)
            multiply(w.query[layer], normed, q)
            multiply(w.key[layer], normed, keys[position].reshape(K * H))
            multiply(w.value[layer], normed, values[position].reshape(K * H))
            rotate(q, w.angles[0, position], w.angles[1, position], H)
            rotate(keys[position].reshape(K * H), w.angles[0, position], w.angles[1, position], H)
            attend(q, keys, values, position + 1, heads)
            multiply(w.out[layer], heads, added)
            for d in range(D):
                x[d] += added[d]
            normalize(x, w.mlp_norm[layer], eps, normed)
            multiply(w.gate[layer], normed, gate)
            multiply(w.up[layer], normed, up)
            for f in range(len(gate)):
                up[f] *= gate[f] / (np.float32(1) + math.exp(-gate[f]))
            multiply(w.down[layer], up, added)
            for d in range(D):
                x[d] += added[d]
    normalize(x, w.norm, eps, normed)
    multiply(w.head, normed, logits)
    return logits


@compile_for_cpu
def multiply(matrix: Any, x: Any, out: Any) -> None:
    """Write matrix (O, I) times x (I,) to out (O,)."""
    for o in range(len(out)):
        row, total = matrix[o], np.float32(0)
        for i in range(len(x)):
            total += row[i] * x[i]
        out[o] = total


@compile_for_cpu
def normalize(x: Any, weight: Any, eps: float, out: Any) -> None:
    """Write the RMS norm of x (D,) to out (D,)."""
    total = np.float32(0)
    for d in range(len(x)):
        total += x[d] * x[d]
    scale = np.float32(1 / math.sqrt(total / len(x) + eps))
    for d in range(len(x)):
        out[d] = x[d] * scale * weight[d]


@compile_for_cpu
def rotate(x: Any, cos: Any, sin: Any, H: int) -> None:
    """Apply rotary embedding to heads (n·H,) in place, to pairs (i, i + H/2) of each."""
    for start in range(0, len(x), H):
        for i in range(H // 2):
            first, second = x[start + i], x[start + H // 2 + i]
            x[start + i] = first * cos[i] - second * sin[i]
            x[start + H // 2 + i] = second * cos[i] + first * sin[i]


@compile_for_cpu
def attend(q: Any, keys: Any, values: Any, length: int, out: Any) -> None:
    """Write attention of one query (N·H,) over the first `length` of keys and values (C, K, H) to out (N·H,)."""
    K, H = keys.shape[1:]
    group, scale, scores = len(q) // H // K, np.float32(1 / math.sqrt(H)), np.empty(length, np.float32)
    for head in range(len(q) // H):
        query, output, largest, total = (
            q[head * H : (head + 1) * H],
            out[head * H : (head + 1) * H],
            np.float32(-1e30),
            np.float32(0),
        )
        for position in range(length):
            key, score = keys[position, head // group], np.float32(0)
            for d in range(H):
                score += query[d] * key[d]
            scores[position] = score * scale
            largest = max(largest, scores[position])
        for d in range(H):
            output[d] = 0
        for position in range(length):
            weight, value = math.exp(scores[position] - largest), values[position, head // group]
            total += weight
            for d in range(H):
                output[d] += weight * value[d]
        for d in range(H):
            output[d] /= total
