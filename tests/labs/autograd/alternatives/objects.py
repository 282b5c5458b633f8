"""One object per operation instead of closures; segments as equal as can be, cut one after the other."""


class Operand:
    def __init__(self, slope):
        self.slope = slope

    def __call__(self, g):
        return self.slope * g


def value_mul(self, other):
    other = as_value(other)
    return Value(self.data * other.data, ((self, Operand(other.data)), (other, Operand(self.data))), "mul")


def value_exp(self):
    return Value(math.e**self.data, ((self, Operand(math.e**self.data)),), "exp")


def value_tanh(self):
    e = math.exp(-2 * abs(self.data))
    t = math.copysign((1 - e) / (1 + e), self.data)
    return Value(t, ((self, Operand((1 - t) * (1 + t))),), "tanh")


Value.__mul__, Value.exp, Value.tanh = value_mul, value_exp, value_tanh


def relu(x):
    return node(torch.maximum(x.data, torch.zeros_like(x.data)), "relu", (x, Operand((x.data > 0).to(x.dtype))))


class Again:
    def __init__(self, fn, x):
        self.fn, self.x = fn, x

    def __call__(self, g):
        copy = Tensor(self.x, requires_grad=True)
        copy.grad = torch.zeros_like(self.x)
        with set_grad_enabled(True):
            again = self.fn(copy)
        again.backward(g)
        return copy.grad


def checkpoint(fn, x):
    before, Tensor.recording = Tensor.recording, False
    try:
        value = fn(Tensor(x.data)).data
    finally:
        Tensor.recording = before
    if not Tensor.recording:
        return Tensor(value)
    return Tensor(value, requires_grad=True, edges=((x, Again(fn, x.data)),), op="checkpoint")


def checkpoint_sequential(layers, x, segments):
    share, longer = divmod(len(layers), segments)
    start = 0
    for i in range(segments):
        stop = start + share + (i < longer)
        part = list(layers[start:stop])
        x = checkpoint(make_runner(part), x)
        start = stop
    return x


def make_runner(part):
    return lambda h: run_layers(part, h)


def choose_segments(layers):
    best, least = 1, None
    for k in range(1, layers + 1):
        held = k + 3 * -(-layers // k)
        if least is None or held < least:
            best, least = k, held
    return best


def train_classifier(x_train, y_train, x_test, progress=iter):
    generator = torch.Generator().manual_seed(3)
    model = MLP(64, 96, 48, 10, generator=generator)
    losses = []
    for epoch in progress(range(25)):
        optimiser = SGD(model.parameters(), lr=0.3 / (1 + epoch / 10))
        for batch in torch.randperm(len(x_train), generator=generator).split(32):
            losses.append(train_step(model, optimiser, x_train[batch], y_train[batch]))
    return torch.stack([model(Tensor(image[None])).data[0].argmax() for image in x_test]), losses


# As those write it who keep large graphs small: a number takes no attributes beside its own.
own = {name: value for name, value in vars(Value).items() if name not in ("__dict__", "__weakref__")}
Value = type("Value", (), {**own, "__slots__": ("data", "edges", "grad", "label", "op")})
