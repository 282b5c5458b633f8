"""Training on many ranks: who keeps what, who sends what, and when. Each technique takes a module and a group.

Gradients, weights and optimiser states come out as one process would have them, to rounding. These are for
understanding: at work use torch's DistributedDataParallel and fully_shard, DeepSpeed or Megatron-Core.
"""
