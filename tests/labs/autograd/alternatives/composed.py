"""Builds the larger operations out of smaller recorded ones, instead of writing their gradients down."""


def relu(x):
    on = x.data > 0
    return node(torch.where(on, x.data, 0.0), "relu", *mul(x, Tensor(on.to(x.dtype))).edges)


def tanh(x):
    value = 2.0 * torch.sigmoid(2.0 * x.data) - 1.0
    return node(value, "tanh", (x, lambda g: (1.0 - value) * g * (1.0 + value)))


def matmul(x, y):
    return node(
        torch.einsum("...mk,...kn->...mn", x.data, y.data),
        "@",
        (x, lambda g: unbroadcast(torch.einsum("...mn,...kn->...mk", g, y.data), x.shape)),
        (y, lambda g: unbroadcast(torch.einsum("...mk,...mn->...kn", x.data, g), y.shape)),
    )


def cross_entropy(logits, labels):
    shifted = logits - Tensor(logits.data.max(dim=1, keepdim=True).values)
    total = shifted.exp().sum(axis=1).log()
    picked = shifted[torch.arange(len(labels)), labels]
    return (total - picked).sum() * (1.0 / len(labels))


def value_power(self, power):
    slope = 0.0 if power == 0 else power * math.pow(self.data, power - 1)
    return Value(math.pow(self.data, power), [(self, lambda g: slope * g)], "power")


Value.__pow__ = value_power
Value.relu = lambda self: self * 1.0 if self.data > 0 else Value(0.0, (self * 0.0).edges[:1])
