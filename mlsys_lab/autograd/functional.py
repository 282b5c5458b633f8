"""Operations as functions of Tensors, as in torch.nn.functional. Shapes and VJPs: `mlsys_lab.autograd.ops`."""

from typing import Any

from mlsys_lab.autograd.ops import elementwise, network, shaping
from mlsys_lab.autograd.ops import matmul as products
from mlsys_lab.autograd.tensor import Tensor, differentiable

relu = differentiable(elementwise.relu)
gelu = differentiable(elementwise.gelu)
where = differentiable(elementwise.where)
cat = differentiable(shaping.cat)
matmul = differentiable(products.matmul)
linear = differentiable(products.linear)
softmax = differentiable(network.softmax)
log_softmax = differentiable(network.log_softmax)
logsumexp = differentiable(network.logsumexp)
cross_entropy = differentiable(network.cross_entropy)
layer_norm = differentiable(network.layer_norm)
rms_norm = differentiable(network.rms_norm)
embedding = differentiable(network.embedding)
_dropout = differentiable(network.dropout)


def dropout(a: Any, p: float = 0.5, training: bool = True) -> Tensor:
    """In training, zero each element with probability p and divide the others by 1 - p; otherwise return `a` itself."""
    if training and p != 0:
        return _dropout(a, p)
    return a if isinstance(a, Tensor) else Tensor(a)
