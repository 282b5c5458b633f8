"""Differentiable operations by family: each function computes a result and, beside it, its vector-Jacobian products."""

# Tensor's methods call operations and operations make Tensors: whoever comes here first, the class is made first.
from mlsys_lab.autograd import tensor as tensor
