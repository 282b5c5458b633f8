"""Distributed training techniques, each a module or function that takes a model and the group of ranks to use.

Gradients, weights and optimizer states equal those of one process, up to rounding, except where gradients or weights
are compressed and where experts have a limited capacity. Read each technique by itself: `data` (DDP), `zero` (ZeRO 1 to
3, FSDP), `tensor`, `pipeline`, `context`, `expert`; `train` composes them all. These are for understanding: for real
runs use torch's DistributedDataParallel and fully_shard, DeepSpeed or Megatron-Core.
"""
