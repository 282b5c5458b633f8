"""Computes in double precision and rounds the result: another path through the dtypes."""


def wide(t):
    return t.data.double()


def mul(x, y):
    return node(
        (wide(x) * wide(y)).to(x.dtype),
        "mul",
        (x, lambda g: unbroadcast((g.double() * wide(y)), x.shape).to(x.dtype)),
        (y, lambda g: unbroadcast((g.double() * wide(x)), y.shape).to(y.dtype)),
    )


def matmul(x, y):
    return node(
        (wide(x) @ wide(y)).to(x.dtype),
        "matmul",
        (x, lambda g: unbroadcast(g.double() @ wide(y).transpose(-1, -2), x.shape).to(x.dtype)),
        (y, lambda g: unbroadcast(wide(x).transpose(-1, -2) @ g.double(), y.shape).to(y.dtype)),
    )


def cross_entropy(logits, labels):
    z = wide(logits)
    one_hot = torch.nn.functional.one_hot(labels, z.shape[1]).double()
    p = torch.softmax(z, dim=1)
    loss = (torch.logsumexp(z, dim=1) - z.gather(1, labels[:, None])[:, 0]).mean()
    return node(
        loss.to(logits.dtype),
        "cross_entropy",
        (logits, lambda g: ((p - one_hot) / len(labels) * g.double()).to(logits.dtype)),
    )


def index(x, key):
    def vjp(g):
        grad = torch.zeros(x.shape, dtype=torch.float64)
        # Each picked gradient in turn, so that repeats add up.
        where = torch.arange(x.data.numel()).reshape(x.shape)[key].reshape(-1).tolist()
        for position, share in zip(where, g.reshape(-1).tolist(), strict=True):
            grad.view(-1)[position] += share
        return grad.to(x.dtype)

    return node(x.data[key].clone(), "index", (x, vjp))


class SGD:
    """Momentum in double precision, made with a parameter's first gradient."""

    def __init__(self, parameters, lr, momentum=0.0):
        self.parameters, self.lr, self.momentum = list(parameters), lr, momentum
        self.velocity = {}

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None

    def step(self):
        for i, p in enumerate(self.parameters):
            if p.grad is None:
                continue
            self.velocity[i] = self.momentum * self.velocity.get(i, 0.0) + p.grad.double()
            p.data = (p.data.double() - self.lr * self.velocity[i]).to(p.dtype)
