"""Bytes that one device sends in a training step, by parallel strategy.

Collectives are counted as their bandwidth-optimal (ring) forms send them. Of a buffer of S bytes over n devices, an
all-gather or a reduce-scatter sends (n - 1)/n · S from each device, an all-reduce is one after the other, an all-to-all
sends (n - 1)/n of what each device holds (Chan et al., 2007; Rajbhandari et al., arXiv:1910.02054, §7). Each device
receives as many bytes at the same time. How long that takes depends on the wires: of a ring, on whether its links are
used one way round or both ways at once (`ring_link_bytes`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from mlsys_lab.configs.transformer import TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.flops.compute import check_recomputation
from mlsys_lab.flops.memory import check_zero_stage
from mlsys_lab.validation import require_at_least_one, require_non_negative, require_positive


def gather_bytes(size_bytes: float, devices: int) -> float:
    """Bytes that a device sends in an all-gather, reduce-scatter or all-to-all of `size_bytes`: (n - 1)/n of them."""
    require_non_negative(size_bytes=size_bytes)
    require_at_least_one(devices=devices)
    return size_bytes * (devices - 1) / devices


def all_reduce_bytes(size_bytes: float, devices: int) -> float:
    """Bytes that each device sends in an all-reduce of `size_bytes`: 2·(n - 1)/n of them.

    >>> all_reduce_bytes(1e9, 8)
    1750000000.0
    """
    return 2 * gather_bytes(size_bytes, devices)


def ring_link_bytes(size_bytes: float, devices: int, *, both_ways: bool = True) -> float:
    """Bytes that a link of a ring carries in one direction in an all-gather or reduce-scatter of `size_bytes`.

    One way round that is all that a device sends; both ways at once half of it goes each way, in half of the time.

    >>> ring_link_bytes(8e9, 8, both_ways=False), ring_link_bytes(8e9, 8)
    (7000000000.0, 3500000000.0)
    """
    return gather_bytes(size_bytes, devices) / (2 if both_ways else 1)


def torus_link_bytes(size_bytes: float, axes: Sequence[int]) -> float:
    """Bytes that a link of a torus carries in one direction in an all-gather or reduce-scatter over all of its axes.

    `axes` are their lengths. Every device has two links on each axis, used both ways at once: parts of the array take
    the axes in different orders, so that all links carry as much. One axis is a ring.

    >>> torus_link_bytes(8e9, [8]), torus_link_bytes(8e9, [8, 8])
    (3500000000.0, 1968750000.0)
    """
    if not axes:
        raise InputError("a torus has at least one axis", got=list(axes))
    return gather_bytes(size_bytes, math.prod(axes)) / (2 * len(axes))


def ring_steps(devices: int, *, both_ways: bool = True) -> int:
    """Hops after which an all-gather or reduce-scatter of a ring is done: n - 1 one way round, ⌊n/2⌋ both ways."""
    require_at_least_one(devices=devices)
    return devices // 2 if both_ways else devices - 1


def all_to_all_link_bytes(size_bytes: float, devices: int, *, both_ways: bool = True) -> float:
    """Bytes that a link of a ring carries in one direction in an all-to-all of `size_bytes` on all devices together.

    Every device has 1/n² of them for every other, which pass as many links as it is away: (n - 1)/2n of the bytes go
    over each link one way round. Both ways, where each takes the shorter one, it is about an eighth, whatever n.

    >>> all_to_all_link_bytes(8e9, 8, both_ways=False), all_to_all_link_bytes(8e9, 8)
    (3500000000.0, 1000000000.0)
    """
    require_non_negative(size_bytes=size_bytes)
    require_at_least_one(devices=devices)
    hops = devices**2 // 4 / 2 if both_ways else devices * (devices - 1) / 2
    return size_bytes * hops / devices**2


def data_parallel_bytes(
    weight_bytes: float, gradient_bytes: float, devices: int, *, zero_stage: int = 0, micro_batches: int = 1
) -> float:
    """Bytes of gradients, and with ZeRO of weights, that a device sends among `devices` ranks with equal parameters.

    Stage 0 all-reduces gradients; stage 1 reduce-scatters them and gathers the updated weights, as many bytes. Stage 2
    keeps no whole gradient, so each micro-batch has its reduce-scatter; stage 3 keeps no weights either, so each
    micro-batch gathers them forward and backward. In units of Ψ 16-bit parameters and one micro-batch the four send 2,
    2, 2 and 3 (ZeRO, §7).
    """
    require_non_negative(weight_bytes=weight_bytes, gradient_bytes=gradient_bytes)
    require_at_least_one(micro_batches=micro_batches)
    times = {
        0: (0, 2),
        1: (1, 1),
        2: (1, micro_batches),
        3: (2 * micro_batches, micro_batches),
    }
    check_zero_stage(zero_stage)
    weights, gradients = times[zero_stage]
    return gather_bytes(weights * weight_bytes + gradients * gradient_bytes, devices)


def tensor_parallel_bytes(
    config: TransformerConfig,
    tokens: float,
    devices: int,
    *,
    layers: float,
    element_bytes: float = 2,
    sequence_parallel: bool = False,
    recomputation: str = "none",
    training: bool = True,
) -> float:
    """Bytes of activations that a tensor-parallel device sends for `tokens` tokens in `layers` layers.

    The matrices are divided over `devices` as in Megatron (arXiv:1909.08053, §3).

    Attention and MLP each end in an all-reduce of T·D elements forward, and each begin with one backward; latent
    attention begins with its latent vectors. Sequence parallelism takes a reduce-scatter and an all-gather in their
    place, and gathers its divided inputs once more for the gradient of the weights (Korthikanti et al., §4.2.2);
    experts and latent attention keep what they gathered. Full recomputation repeats the forward ones. The bytes for a
    sharded vocabulary are in `vocabulary_parallel_bytes`.
    """
    check_recomputation(recomputation)
    require_positive(tokens=tokens, layers=layers, element_bytes=element_bytes)
    ends = 1 if config.parallel_blocks else 2
    begins, kept = float(ends), 1 - config.experts.dense_layers / config.n_layers if config.experts else 0.0
    if (latent := config.latent) and not config.parallel_blocks:
        width = latent.kv_rank + latent.rope_dim + (latent.q_rank or config.d_model)
        begins, kept = 1 + width / config.d_model, kept + 1
    gathers = forward = ends + (begins if sequence_parallel else ends)
    if training:
        gathers = 2 * (ends + begins)
        gathers += forward if recomputation == "full" else 0
        gathers += ends - kept if sequence_parallel else 0
    return gathers * layers * gather_bytes(tokens * config.d_model * element_bytes, devices)


class VocabularyBytes(NamedTuple):
    """Bytes that a device sends in a training step for a sharded vocabulary: of activations, and of the loss."""

    embedding: float
    head: float
    loss: float


def vocabulary_parallel_bytes(
    config: TransformerConfig,
    tokens: float,
    devices: int,
    *,
    element_bytes: float = 2,
    sequence_parallel: bool = False,
) -> VocabularyBytes:
    """Bytes that a tensor-parallel device sends for `tokens` tokens where the vocabulary is sharded.

    Embedded tokens are all-reduced forward, gradients of what goes into the head backward (arXiv:1909.08053, §3). With
    sequence parallelism the head's input is gathered and its gradient reduce-scattered, as many bytes; and gradients of
    embedded tokens, whole again, are gathered too. The loss takes three numbers a token from each device.
    """
    require_positive(tokens=tokens, element_bytes=element_bytes)
    once = gather_bytes(tokens * config.d_model * element_bytes, devices)
    return VocabularyBytes(
        embedding=(3 if sequence_parallel else 2) * once,
        head=2 * once,
        loss=gather_bytes(3 * devices * tokens * element_bytes, devices),
    )


def pipeline_bytes(config: TransformerConfig, tokens: float, *, element_bytes: float = 2, tensor: int = 1) -> float:
    """Bytes of activations of `tokens` tokens that a device sends to the next pipeline stage, in one direction.

    Tensor-parallel devices each send a part and gather on the other side (Narayanan et al., arXiv:2104.04473, §4.1).

    >>> one_trillion = TransformerConfig("1T", 128, 25600, 160, 4 * 25600, 51200, 2048)
    >>> pipeline_bytes(one_trillion, 2048) / 1e6, pipeline_bytes(one_trillion, 2048, tensor=8) / 1e6
    (104.8576, 13.1072)
    """
    require_positive(tokens=tokens, element_bytes=element_bytes)
    require_at_least_one(tensor=tensor)
    return tokens * config.d_model * element_bytes / tensor


def expert_parallel_bytes(
    config: TransformerConfig, tokens: float, devices: int, *, layers: float, element_bytes: float = 2
) -> float:
    """Bytes that a device sends to take its tokens to their experts and back, forward; backward, as many again.

    A token is sent once for each expert that it uses, routed evenly (GShard, arXiv:2006.16668, §3), also where two of
    these lie on one device. What node-limited routing spares between nodes, `bounds.Traffic.split` takes off.
    `layers`: those with experts.
    """
    if config.experts is None:
        return 0.0
    require_positive(tokens=tokens, layers=layers, element_bytes=element_bytes)
    return 2 * layers * gather_bytes(tokens * config.experts.active * config.d_model * element_bytes, devices)


def context_parallel_bytes(
    config: TransformerConfig, tokens: float, devices: int, *, layers: float, element_bytes: float = 2, tensor: int = 1
) -> float:
    """Bytes of keys and values that a device sends around the ring, forward, for `tokens` tokens (arXiv:2310.01889).

    The backward pass sends keys and values again, and their gradients with them: twice as many bytes. With latent
    attention too, whole keys and values are passed.
    """
    require_positive(tokens=tokens, layers=layers, element_bytes=element_bytes)
    require_at_least_one(tensor=tensor)
    value_dim = config.latent.v_dim if config.latent else config.head_dim
    heads = max(1.0, config.n_kv_heads / tensor)
    return layers * gather_bytes(tokens * heads * (config.head_dim + value_dim) * element_bytes, devices)


def ulysses_bytes(
    config: TransformerConfig, tokens: float, devices: int, *, layers: float, element_bytes: float = 2
) -> float:
    """Bytes that a device sends to exchange its `tokens` tokens for heads and back, forward (arXiv:2309.14509).

    An all-to-all of queries, keys and values, and one of attention's results; backward, as many again. What a device
    has falls with the ranks that share a sequence, while `context_parallel_bytes` passes all keys and values of it.
    """
    require_positive(tokens=tokens, layers=layers, element_bytes=element_bytes)
    value_dim = config.latent.v_dim if config.latent else config.head_dim
    elements = (config.n_heads + config.n_kv_heads) * (config.head_dim + value_dim)
    return layers * gather_bytes(tokens * elements * element_bytes, devices)


def bubble(stages: int, micro_batches: int, *, interleave: int = 1) -> float:
    """Idle time of a pipeline over its busy time: (p - 1)/(v·m) (Narayanan et al., arXiv:2104.04473, §2.2).

    `interleave` is v, the model chunks of each stage. As a fraction of the total time it is b/(1 + b).

    >>> bubble(4, 8), bubble(4, 8, interleave=2)
    (0.375, 0.1875)
    """
    require_at_least_one(stages=stages, micro_batches=micro_batches, interleave=interleave)
    return (stages - 1) / (interleave * micro_batches)


def critical_tokens(peak_flops_per_s: float, link_bytes_per_s: float, *, active_share: float = 1.0) -> float:
    """Tokens a device from which data parallelism's traffic hides behind compute, with 16-bit gradients.

    4·N FLOPs a token in the backward pass against 4·N bytes all-reduced, both over the device's rates: C/W tokens. A
    mixture of experts of which a token uses `active_share` of the parameters needs 1/active_share as many.

    >>> critical_tokens(990e12, 450e9)
    2200.0
    """
    require_positive(peak_flops_per_s=peak_flops_per_s, link_bytes_per_s=link_bytes_per_s, active_share=active_share)
    return peak_flops_per_s / link_bytes_per_s / active_share


def partial_sums_width(peak_flops_per_s: float, link_bytes_per_s: float) -> float:
    """Width D from which a product over a divided D is faster as partial products added up than with D gathered.

    Gathered, every device does all 2·B·D·F FLOPs; added up, each sends 4·B·F bytes in 16 bits: D = 2·C/W.

    >>> partial_sums_width(459e12, 180e9)
    5100.0
    """
    require_positive(peak_flops_per_s=peak_flops_per_s, link_bytes_per_s=link_bytes_per_s)
    return 2 * peak_flops_per_s / link_bytes_per_s


def tensor_limit(d_ff: int, peak_flops_per_s: float, link_bytes_per_s: float) -> float:
    """Tensor-parallel devices above which an MLP's activations take longer to send than it takes to compute.

    Of x·W₁·W₂ each device does 4·T·D·F/t FLOPs and sends 4·T·D bytes (all-gather and reduce-scatter): t = F·W/C.
    """
    require_positive(d_ff=d_ff, peak_flops_per_s=peak_flops_per_s, link_bytes_per_s=link_bytes_per_s)
    return d_ff * link_bytes_per_s / peak_flops_per_s


def best_data_ways(tokens: float, devices: int, d_ff: int, *, data_axes: int = 1, tensor_axes: int = 1) -> float:
    """Data-parallel degree X of n devices (n/X are tensor-parallel) at which each device sends the fewest bytes.

    A matrix multiplied by B tokens gathers 2·D·F·X/n bytes of weights on each device and 2·D·B/X of activations; over
    `data_axes` and `tensor_axes` axes of a torus their times are equal, and add up to least, at
    X² = B·n/F · data_axes/tensor_axes (Austin et al., "How to scale your model", 2025, on training).

    >>> round(best_data_ways(4.19e6, 8960, 28672, data_axes=2))
    1618
    """
    require_positive(tokens=tokens, devices=devices, d_ff=d_ff, data_axes=data_axes, tensor_axes=tensor_axes)
    return math.sqrt(tokens * devices / d_ff * data_axes / tensor_axes)


def mixed_critical_tokens(d_ff: int, intensity: float, *, data_axes: int = 1, tensor_axes: int = 1) -> float:
    """Tokens a device from which `best_data_ways`'s division is limited by compute, both kinds of traffic taking turns.

    2·B·D·F/n FLOPs over C against twice 2·D·√(B·F/(n·axes)) bytes over W: B/n = 4·(C/W)²/(F·data_axes·tensor_axes).
    `intensity` is C/W, the device's FLOPs for each byte that one axis carries.

    >>> round(mixed_critical_tokens(28672, 2550, data_axes=2))
    454
    """
    require_positive(d_ff=d_ff, intensity=intensity, data_axes=data_axes, tensor_axes=tensor_axes)
    return 4 * intensity**2 / (d_ff * data_axes * tensor_axes)
