"""The operations by family: what each computes, and beside it what it sends back."""

# Tensor's methods call operations and operations make Tensors: whoever comes here first, the class is made first.
from mlsys_lab.autograd import tensor as tensor
