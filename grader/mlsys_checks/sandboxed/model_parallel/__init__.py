"""How lab 09's checks call the learner's code: layers, stages, rings and experts, each rank with its own arrays."""

# torch imports it in the first backward pass from a given gradient: before a limit on the learner's code begins.
import torch.fx.experimental.symbolic_shapes  # noqa: F401
