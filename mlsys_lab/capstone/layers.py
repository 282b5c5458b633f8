"""What the capstone's stack asks of each lab's artifact, and where the reference package has the same names."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LayerSpec:
    """A layer of the stack: its field in `Stack`, the topic of its lab, and the names that it must have.

    `reference` are the modules of mlsys_lab with the same names and signatures, searched in this order; none where the
    package's functions take other arguments than the lab's, so that the layer cannot be swapped for the reference.
    """

    field: str
    topic: str
    required: tuple[str, ...]
    reference: tuple[str, ...] = ()


LAYERS = (
    LayerSpec("engine", "autograd", ("Tensor", "cross_entropy", "no_grad", "record"), ("mlsys_lab.autograd",)),
    LayerSpec(
        "kernels", "triton", ("silu_mul_kernel", "rms_norm_kernel", "matmul_kernel", "flash_kernel", "decode_kernel")
    ),
    LayerSpec(
        "collectives",
        "collectives",
        ("broadcast", "split_chunks", "reduce_scatter", "all_gather", "all_reduce"),
        (
            "mlsys_lab.comm.collectives.rooted",
            "mlsys_lab.comm.collectives.chunks",
            "mlsys_lab.comm.collectives.reduce_scatter",
            "mlsys_lab.comm.collectives.all_reduce",
        ),
    ),
    LayerSpec(
        "data_parallel",
        "data-parallel",
        ("ShardedOptimizer", "clip_grad_norm", "loss_weights"),
        ("mlsys_lab.parallel.zero", "mlsys_lab.parallel.data.ddp"),
    ),
    LayerSpec(
        "model_parallel",
        "model-parallel",
        ("ColumnParallelLinear", "RowParallelLinear", "vocab_parallel_cross_entropy"),
        ("mlsys_lab.parallel.tensor",),
    ),
    LayerSpec("cache", "kv-cache", ("Cache", "Contiguous", "extend"), ("mlsys_lab.inference.cache",)),
    LayerSpec("scheduler", "serving", ("build",), ("mlsys_lab.inference.engine.scheduler",)),
    LayerSpec(
        "arithmetic",
        "transformer-arithmetic",
        ("forward_products", "flops_of", "training_flops", "training_memory", "predict_training_step_s"),
    ),
    LayerSpec("scaling", "scaling-laws", ("fit_parametric", "compute_optimal")),
    LayerSpec("diffusion", "diffusion", ("Preconditioned", "ClassifierFreeGuidance", "edm_grid", "serve")),
    LayerSpec(
        "capstone",
        "capstone",
        (
            "GPT",
            "train_rank",
            "predict_training",
            "predict_messages",
            "predict_serving",
            "predict_seconds",
            "predict_swap",
            "BlockCache",
            "waterfall",
        ),
    ),
)
"""Layers in an order in which each comes after those that it loads."""
