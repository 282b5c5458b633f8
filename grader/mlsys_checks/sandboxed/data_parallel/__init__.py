"""How lab 08's checks call the learner's code: each rank goes through its own steps, and its weights tell the rest."""

# torch imports it in the first backward pass from a given gradient: before a limit on the learner's code begins.
import torch.fx.experimental.symbolic_shapes  # noqa: F401
