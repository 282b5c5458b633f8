"""Counts the results that still wait for each node (Kahn 1962), and lists gradients before it adds them."""

from collections import Counter, deque


def topological_order(root):
    reached, stack = {root}, [root]
    waiting = Counter()
    while stack:
        for operand, _ in stack.pop().edges:
            waiting[operand] += 1
            if operand not in reached:
                reached.add(operand)
                stack.append(operand)
    ready, order = deque([root]), []
    while ready:
        node = ready.popleft()
        order.append(node)
        for operand, _ in node.edges:
            waiting[operand] -= 1
            if not waiting[operand]:
                ready.append(operand)
    return order[::-1]


def backward(root, grad):
    arrived = {root: [grad]}
    for node in topological_order(root)[::-1]:
        total = arrived[node][0]
        for more in arrived.pop(node)[1:]:
            total = total + more
        for operand, vjp in node.edges:
            arrived.setdefault(operand, []).append(vjp(total))
        node.accumulate(total)


class Again:
    def __init__(self, function, x):
        self.function, self.x = function, x

    def __call__(self, g):
        copy = Tensor(self.x, requires_grad=True)
        copy.grad = torch.zeros_like(self.x)
        with set_grad_enabled(True):
            again = self.function(copy)
        again.backward(g)
        return copy.grad


def checkpoint(function, x):
    before, Tensor.recording = Tensor.recording, False
    try:
        result = function(Tensor(x.data)).data
    finally:
        Tensor.recording = before
    if not Tensor.recording:
        return Tensor(result)
    return Tensor(result, requires_grad=True, edges=((x, Again(function, x.data)),), op="checkpoint")


def checkpoint_sequential(functions, x, segments):
    length, longer = divmod(len(functions), segments)
    start = 0
    for i in range(segments):
        stop = start + length + (i < longer)
        x = checkpoint(make_runner(list(functions[start:stop])), x)
        start = stop
    return x


def make_runner(part):
    return lambda h: run_layers(part, h)
