"""What lab 01's checks ask, as code for a notebook: a case's inputs are its variables, or entries of `given`."""

ARITHMETIC = """\
def shares(result):
    return [sum(vjp(one) for operand, vjp in result.edges if operand is to) for to in (a, b) for one in g.tolist()]

try:
    print("0 to the power of −1:", (Value(0.0) ** -1).data)
except ArithmeticError as error:
    print("0 to the power of −1:", error)
a, b = Value(x), Value(y)
[(result.data, *shares(result)) for result in (a * b, a * a, 3 * a, a**p)]"""
FUNCTIONS = """\
try:
    print("exp of 1000:", Value(1000.0).exp().data)
except OverflowError as error:
    print("exp of 1000:", error)
below, at = Value(-abs(x)), Value(x)
results = below.exp(), at.tanh(), at.relu()
[(result.data, *(vjp(one) for _, vjp in result.edges for one in g.tolist())) for result in results]"""
ORDER = """\
nodes = []
for i, j in operands.tolist():
    nodes.append(Value(1.0) if i < 0 else nodes[i] + nodes[j])
[nodes.index(node) for node in topological_order(nodes[-1])]"""
REUSE = """\
a, b = Value(x), Value(y)
product = a * b
first = ((product + 1.0) * 0.5).tanh() * product + a * a + product
results = first, first * 0.5 + b * a
if fails:
    stuck = Value(0.0, ((b, lambda g: 1 / 0),))
    try:
        backward(Value(0.0, ((first, lambda g: g), (a, lambda g: g), (stuck, lambda g: g))), 1.0)
    except ZeroDivisionError:
        pass
    for node in (a, b, product, first):
        node.grad = 0.0
for which in calls.tolist():
    backward(results[which], seed)
a.grad, b.grad, product.grad, first.grad"""
DEEP = """\
a = Value(x)
result = a
for factor in factors.tolist():
    result = result * factor
for _ in range(doublings):
    result = result + result
result.backward()
result.data, a.grad"""

BY_COLUMN = """\
def by_column(g):
    turned = tuple(reversed(range(g.ndim)))
    return g.permute(turned).contiguous().permute(turned)  # as it arrives from a transpose

"""
ELEMENTWISE = (
    BY_COLUMN
    + """\
def gradients(f, g):
    a, b = (Tensor(by_column(array) if transposed else array, requires_grad=True) for array in (x, y))
    result = f(a, b)
    arriving = by_column(torch.as_tensor(g, dtype=result.dtype))
    backward(result, arriving)
    grads = a.grad, b.grad
    backward(result, 2 * arriving)  # what the first pass kept would be of no use
    return result.data, *grads, a.grad

def at_infinity(z):
    return z.relu() + z.exp() + z.tanh()

def permute(x):
    return x.permute(*range(x.ndim))

print("log of 0 and of −1:", Tensor([0.0, -1.0]).log().data)
single = Tensor(x).dtype == torch.float32
far, small, large = (70.0, 1e-32, 2.5e38) if single else (300.0, 1e-200, 1.25e308)
{
    "x * y": gradients(lambda x, y: x * y, g2),
    "(x * x).exp()": gradients(lambda x, y: (x * x * 0.5).exp(), g1),
    "((x * x + 1) * small).log()": gradients(lambda x, y: ((x * x + 1.0) * small).log(), g1),
    "(x * 0 + far).exp()": gradients(lambda x, y: (x * 0.0 + far).exp(), g1),
    "(x - far).exp()": gradients(lambda x, y: (x - far).exp(), g1),
    "x.tanh()": gradients(lambda x, y: x.tanh(), g1),
    "(x * 4000).tanh()": gradients(lambda x, y: (x * 4000.0).tanh(), g1),
    "x.relu()": gradients(lambda x, y: x.relu(), g1),
    "(x.tanh() * large).relu() * (10 / large)": gradients(lambda x, y: (x.tanh() * large).relu() * (10 / large), g1),
    "z.relu() + z.exp() + z.tanh(), z = x * 0 - inf": gradients(lambda x, y: at_infinity(x * 0.0 - math.inf), g1),
    "(x + y) + y * y": gradients(lambda x, y: (x + y) + y * y, g2),
    "y * y + (x + y)": gradients(lambda x, y: y * y + (x + y), g2),
    "x.permute(0, …) + x * y": gradients(lambda x, y: permute(x) + x * y, g2),
    "x * y + x.permute(0, …)": gradients(lambda x, y: x * y + permute(x), g2),
}"""
)
MATMUL = (
    BY_COLUMN
    + """\
from torch.utils.flop_counter import FlopCounterMode

a, b = (Tensor(by_column(array) if transposed else array, requires_grad=True) for array in (x, y))
result = a @ b
with FlopCounterMode(display=False) as counter:
    backward(result, g)
grads = a.grad, b.grad
backward(result, 2 * g)
result.data, *grads, a.grad, b.grad, counter.get_total_flops()"""
)

SUMS = (
    BY_COLUMN
    + """\
def gradient(f, g):
    a = Tensor(by_column(x) if transposed else x, requires_grad=True)
    result = f(a)
    backward(result, by_column(torch.as_tensor(g, dtype=result.dtype)))
    return result.data, a.grad

axis = tuple(axes.tolist()) if is_tuple else axes.tolist()[0] if len(axes) else None
{
    "sum": gradient(lambda a: a.sum(axis=axis, keepdims=keepdims), g),
    "mean": gradient(lambda a: a.mean(axis=axis, keepdims=keepdims), g),
    "reshape": gradient(lambda a: a.reshape(len(g2), -1), g2),
    "reshape between transposes": gradient(
        lambda a: a.reshape(-1, len(g2)).T.reshape(-1).reshape(len(g2), -1).T, g2.reshape(-1, len(g2))
    ),
}"""
)
INDEX = (
    BY_COLUMN
    + """\
def gradient(key, g):
    a = Tensor(x, requires_grad=True)
    picked = a[key]
    arriving = by_column(torch.from_numpy(g))
    backward(picked, arriving)
    once = a.grad
    backward(picked, 2 * arriving)
    return picked.data, once, a.grad

keys = {
    "x[2]": 2,
    "x[1:4]": slice(1, 4),
    "x[:, -1]": (slice(None), -1),
    "x[rows]": rows,
    "x[rows, 0]": (rows, 0),
    "x[arange, rows % 3]": (torch.arange(len(rows)) % 5, rows % 3),
    "x[mask]": torch.arange(5) % 2 == 0,
    "x[list]": rows.tolist(),
    "x[None, list, -1]": (None, rows.tolist(), -1),
}
{name: gradient(key, given[f"g of {name}"]) for name, key in keys.items()}"""
)
LOSS = """\
a = Tensor(logits, requires_grad=True)
loss = cross_entropy(a, labels)
backward(loss, torch.as_tensor(g, dtype=logits.dtype))
once = a.grad
backward(loss, torch.as_tensor(2 * g, dtype=logits.dtype))
loss.data, once, a.grad"""

MODEL = """\
model = MLP(*widths.tolist())
for i, layer in enumerate(model.layers):
    layer.weight.data, layer.bias.data = (torch.from_numpy(given[f"{part} {i}"]) for part in ("weight", "bias"))
"""
FORWARD_AND_BACK = (
    MODEL
    + """\
if tied:
    model.layers[-1] = model.layers[0]
try:
    model(Tensor(torch.zeros(1, widths[0] + 1)))
except Exception as error:
    print("too wide a batch:", error)
logits = model(Tensor(x))
backward(logits, g)
logits.data, [(layer.weight.grad, layer.bias.grad) for layer in model.layers]"""
)
SGD = """\
a, b = Tensor(p, requires_grad=True), Tensor(q, requires_grad=True)
idle = Tensor(q, requires_grad=True)
optimiser = SGD(iter([idle, b, a]), lr=rates[0].item(), momentum=momenta[0].item())
for i, rate in enumerate(rates.tolist()):
    if i > 0:
        optimiser.lr, optimiser.momentum = rate, momenta[i].item()
    if not kept[i]:
        a.grad = torch.from_numpy(given["gradients of p"][i])
    b.grad = None if given["q rests"][i] else torch.from_numpy(given["gradients of q"][i])
    optimiser.step()
a.data, b.data, idle.data"""
TRAIN_STEP = (
    MODEL
    + """\
offset = Tensor(torch.zeros(widths[-1], dtype=x.dtype), requires_grad=True)
parameters = [*model.parameters(), offset]
for parameter in parameters:
    parameter.grad = torch.ones_like(parameter.data)  # of an earlier pass
optimiser = SGD(parameters, lr=0.1, momentum=momentum)
with_offset = lambda x: model(x) + offset
used = given["offset is used"]
losses = [train_step(with_offset if at else model.__call__, optimiser, *batch) for *batch, at in zip(x, y, used)]
losses, [layer.weight.data for layer in model.layers], offset.data"""
)

CHECKPOINT = """\
turns = iter(turns.tolist())
a, b, c = Tensor(x, requires_grad=x_wants), Tensor(w, requires_grad=True), Tensor(v, requires_grad=True)

def stage(h):
    return (((h @ b).tanh() @ c) + h * 0.5) * next(turns)

def twice(h):
    return checkpoint(stage, h) + checkpoint(stage, h) if branches else checkpoint(stage, checkpoint(stage, h))

if raises:
    try:
        checkpoint(lambda h: 1 / 0, a)
    except ZeroDivisionError:
        pass
    runs = iter((lambda h: h * 2.0, lambda h: 1 / 0))
    once = checkpoint(lambda h: next(runs)(h), a)
    with no_grad():
        try:
            backward(once, g)
        except ZeroDivisionError:
            pass
        print("recorded inside no_grad():", bool((b + b).edges))
result = checkpoint(twice, a) if nested else twice(a)
if stops:
    result = result + checkpoint(lambda h: h.detach() @ b, a) @ c
for _ in range(backwards):
    with set_grad_enabled(not quiet):
        backward(result, g)
        print("recorded:", bool((b + b).edges))
result.data, a.grad, b.grad, c.grad"""
DEEP_STACK = """\
parts = [(Tensor(w, requires_grad=True), Tensor(b, requires_grad=True)) for w, b in zip(weights, biases)]
stack = [lambda h, w=w, b=b: (h @ w + b).tanh() for w, b in parts]
result = checkpoint_sequential(tuple(stack) if as_tuple else stack, Tensor(x, requires_grad=True), segments)
if segments > 1:
    stack.clear()
backward(result, g)
result.data[::1000], parts[0][0].grad"""
