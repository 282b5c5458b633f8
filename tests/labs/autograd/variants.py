"""Mistakes that learners make in the autograd lab, as changes of the reference."""

from mlsys_grader.proving.variants import Variant

SCALAR = [
    Variant(
        "a product gives each factor its own value as slope",
        "((self, lambda g: g * b), (other, lambda g: g * a))",
        "((self, lambda g: g * a), (other, lambda g: g * b))",
        ("value_arithmetic",),
    ),
    Variant(
        "a product forgets the gradient that arrives",
        "((self, lambda g: g * b), (other, lambda g: g * a))",
        "((self, lambda g: b), (other, lambda g: a))",
        ("value_arithmetic",),
    ),
    Variant(
        "a product keeps an edge to one factor only",
        "((self, lambda g: g * b), (other, lambda g: g * a))",
        "((self, lambda g: g * b),)",
        ("value_arithmetic",),
    ),
    Variant(
        "a power forgets to multiply by the exponent",
        "power * self.data ** (power - 1) if power",
        "self.data ** (power - 1) if power",
        ("value_arithmetic",),
    ),
    Variant("a power of zero divides by zero", " if power else 0.0", "", ("value_arithmetic",)),
    Variant(
        "the slope of exp is taken as x",
        'Value(value, ((self, lambda g: g * value),), "exp")',
        'Value(value, ((self, lambda g: g * self.data),), "exp")',
        ("value_functions",),
    ),
    Variant(
        "tanh overflows",
        "value = math.tanh(self.data)",
        "value = (math.exp(2 * self.data) - 1) / (math.exp(2 * self.data) + 1)",
        ("value_functions",),
    ),
    Variant("tanh's slope lacks the square", "g * (1 - value**2)", "g * (1 - value)", ("value_functions",)),
    Variant(
        "relu's slope at zero is one",
        "1.0 if self.data > 0 else 0.0",
        "1.0 if self.data >= 0 else 0.0",
        ("value_functions",),
    ),
    Variant(
        "relu lets every gradient through",
        'Value(self.data * slope, ((self, lambda g: g * slope),), "relu")',
        'Value(self.data * slope, ((self, lambda g: g),), "relu")',
        ("value_functions",),
    ),
]

ORDER = """    order, seen, stack = [], set(), [(root, False)]
    while stack:
        node, operands_done = stack.pop()
        if operands_done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((operand, False) for operand, _ in node.edges)
    return order
"""
BACKWARD = """    travelling = {root: seed}
    for node in reversed(topological_order(root)):
        grad = travelling.pop(node)
        node.accumulate(grad)
        for operand, vjp in node.edges:
            share = vjp(grad)
            travelling[operand] = travelling[operand] + share if operand in travelling else share
"""
WALK = [
    Variant(
        "a recursive search",
        ORDER,
        """    order, seen = [], set()

    def visit(node):
        if node not in seen:
            seen.add(node)
            for operand, _ in node.edges:
                visit(operand)
            order.append(node)

    visit(root)
    return order
""",
        ("backward_deep",),
    ),
    Variant("a search that forgets where it was", "elif node not in seen:", "else:", ("topological_order",)),
    Variant(
        "a search that forgets where it was takes for ever",
        "elif node not in seen:",
        "else:",
        ("backward_deep",),
        hangs=True,
    ),
    Variant(
        "results before operands",
        "            stack.append((node, True))\n",
        "            order.append(node)\n",
        ("topological_order", "backward_reuse"),
    ),
    Variant(
        "breadth first, reversed",
        ORDER,
        """    order, queue = [root], [root]
    for node in queue:
        for operand, _ in node.edges:
            if operand not in order:
                order.append(operand)
                queue.append(operand)
    return order[::-1]
""",
        ("topological_order",),
    ),
    Variant("the root is left out", "    return order\n", "    return order[:-1]\n", ("topological_order",)),
    Variant(
        "gradients are overwritten",
        "travelling[operand] = travelling[operand] + share if operand in travelling else share",
        "travelling[operand] = share",
        ("backward_reuse", "backward_deep"),
    ),
    Variant(
        "gradients travel in .grad itself",
        BACKWARD,
        """    root.grad = seed if root.grad is None else root.grad + seed
    for node in reversed(topological_order(root)):
        for operand, vjp in node.edges:
            operand.accumulate(vjp(node.grad))
""",
        ("backward_reuse",),
    ),
    Variant(
        "gradients are added in place",
        "            travelling[operand] = travelling[operand] + share if operand in travelling else share\n",
        """            if operand in travelling:
                travelling[operand] += share
            else:
                travelling[operand] = share
""",
        ("tensor_elementwise",),
    ),
    Variant(
        "the seed is forgotten",
        "{root: seed}",
        "{root: seed * 0 + 1.0}",
        ("backward_reuse", "tensor_elementwise", "cross_entropy"),
    ),
    Variant(
        "the gradient of the root is doubled",
        "        node.accumulate(grad)\n",
        "        node.accumulate(grad + grad if node is root else grad)\n        node.accumulate(grad * 0)\n"
        "        grad = grad + grad if node is root else grad\n",
        ("backward_reuse",),
    ),
    Variant(
        "every way back is walked on its own",
        BACKWARD,
        """    stack = [(root, seed)]
    while stack:
        node, grad = stack.pop()
        node.accumulate(grad)
        stack.extend((operand, vjp(grad)) for operand, vjp in node.edges)
""",
        ("backward_deep",),
        hangs=True,
    ),
]

ARRAYS = [
    Variant(
        "unbroadcast leaves stretched axes as they are",
        "        if size == 1 and grad.shape[axis] != 1:\n            grad = grad.sum(axis, keepdim=True)\n",
        "        pass\n",
        ("unbroadcast", "tensor_elementwise"),
    ),
    Variant(
        "unbroadcast leaves the axes in front",
        "    while grad.ndim > len(shape):\n        grad = grad.sum(0)\n",
        "",
        ("unbroadcast", "mlp_forward"),
    ),
    Variant("unbroadcast loses the axis of size one", "sum(axis, keepdim=True)", "sum(axis)", ("unbroadcast",)),
    Variant("unbroadcast averages", "grad = grad.sum(0)", "grad = grad.mean(0)", ("unbroadcast",)),
    Variant(
        "unbroadcast sums the last axes instead of the first",
        "grad = grad.sum(0)",
        "grad = grad.sum(-1)",
        ("unbroadcast",),
    ),
    Variant(
        "a product of arrays is not unbroadcast",
        "(x, lambda g: unbroadcast(g * y.data, x.shape)),",
        "(x, lambda g: g * y.data),",
        ("tensor_elementwise",),
    ),
    Variant(
        "a product of arrays takes the wrong factor",
        "(y, lambda g: unbroadcast(g * x.data, y.shape)),",
        "(y, lambda g: unbroadcast(g * y.data, y.shape)),",
        ("tensor_elementwise",),
    ),
    Variant(
        "exp of an array forgets the gradient that arrives",
        'node(value, "exp", (x, lambda g: g * value))',
        'node(value, "exp", (x, lambda g: value))',
        ("tensor_elementwise",),
    ),
    Variant("log of an array has slope x", "lambda g: g / x.data", "lambda g: g * x.data", ("tensor_elementwise",)),
    Variant("tanh of an array lacks the square", "(1 - value * value)", "(1 - value)", ("tensor_elementwise",)),
    Variant("relu looks at the gradient", "g * (x.data > 0)", "g * (g > 0)", ("tensor_elementwise",)),
    Variant("relu lets a constant through", "x.data.clamp(min=0)", "x.data.abs()", ("tensor_elementwise",)),
    Variant("matmul: right operand not transposed", "g @ y.data.mT", "g @ y.data", ("tensor_matmul",)),
    Variant(
        "matmul: factors of the right gradient exchanged",
        "x.data.mT @ g",
        "(g.mT @ x.data)",
        ("tensor_matmul",),
    ),
    Variant(
        "matmul: the first two axes are transposed instead of the last two",
        "x.data.mT @ g",
        "x.data.transpose(0, 1) @ g",
        ("tensor_matmul",),
    ),
    Variant(
        "matmul: the gradient of a shared weight keeps its batch",
        "unbroadcast(x.data.mT @ g, y.shape)",
        "x.data.mT @ g",
        ("tensor_matmul",),
    ),
]

SHAPES = [
    Variant(
        "the summed axis is not put back",
        "lambda g: g.reshape(kept).expand(x.shape)",
        "lambda g: g.expand(x.shape)",
        ("tensor_sum",),
    ),
    Variant("negative axes are not understood", "{a % x.ndim for a in", "{a for a in", ("tensor_sum",)),
    Variant("keepdims is ignored", "total.reshape(kept if keepdims else gone)", "total.reshape(gone)", ("tensor_sum",)),
    Variant(
        "the gradient of a sum is averaged",
        "lambda g: g.reshape(kept).expand(x.shape)",
        "lambda g: g.reshape(kept).expand(x.shape) * (g.numel() / x.data.numel())",
        ("tensor_sum",),
    ),
    Variant(
        "reshape transposes on the way back",
        "lambda g: g.reshape(x.shape)",
        "lambda g: g.mT.reshape(x.shape)",
        ("tensor_sum",),
    ),
    Variant(
        "an element picked twice gets one gradient",
        "grad.index_add_(0, positions.reshape(-1), g.reshape(-1))",
        "grad.index_copy_(0, positions.reshape(-1), g.reshape(-1))",
        ("tensor_index",),
    ),
    Variant(
        "an array of gradients in single precision",
        "torch.zeros(n, dtype=g.dtype, device=g.device)",
        "torch.zeros(n)",
        ("tensor_index",),
    ),
    Variant(
        "the picked gradients lie at the front",
        "positions.reshape(-1), g",
        "torch.arange(g.numel()), g",
        ("tensor_index",),
    ),
]

LOSS = [
    Variant(
        "the largest logit is not subtracted",
        "logits.data - logits.data.amax(dim=1, keepdim=True)",
        "logits.data",
        ("cross_entropy",),
    ),
    Variant(
        "the largest logit of the whole batch is subtracted",
        "logits.data.amax(dim=1, keepdim=True)",
        "logits.data.amax()",
        ("cross_entropy",),
    ),
    Variant(
        "the softmax runs over the batch",
        "shifted.exp().sum(dim=1, keepdim=True)",
        "shifted.exp().sum(dim=0, keepdim=True)",
        ("cross_entropy",),
    ),
    Variant("the gradient is not divided by the batch", "(g / len(labels))", "g", ("cross_entropy",)),
    Variant("the loss is summed", "-log_p[rows, labels].mean()", "-log_p[rows, labels].sum()", ("cross_entropy",)),
    Variant("the loss ignores the gradient that arrives", "(g / len(labels))", "(1 / len(labels))", ("cross_entropy",)),
    Variant(
        "the way back changes what it kept",
        "        grad = log_p.exp()\n",
        "        grad = log_p.exp_()\n",
        ("cross_entropy",),
    ),
    Variant("one-hot is forgotten", "        grad[rows, labels] -= 1.0\n", "", ("cross_entropy", "train_step")),
    Variant(
        "the label's column is cleared in every row",
        "grad[rows, labels] -= 1.0",
        "grad[:, labels] -= 1.0",
        ("cross_entropy",),
    ),
    Variant(
        "torch's autograd does the work",
        """        grad = log_p.exp()
        grad[rows, labels] -= 1.0
        return grad * (g / len(labels))
""",
        """        with torch.enable_grad():
            z = logits.data.clone().requires_grad_(True)
            torch.nn.functional.cross_entropy(z, labels).backward()
        return z.grad * g
""",
        ("cross_entropy",),
    ),
]

TRAINING = [
    Variant(
        "relu after the last layer too",
        "return self.layers[-1](x)",
        "return self.layers[-1](x).relu()",
        ("mlp_forward",),
    ),
    Variant("no relu at all", "x = layer(x).relu()", "x = layer(x)", ("mlp_forward",)),
    Variant("the first layer is skipped", "self.layers[:-1]:", "self.layers[1:-1]:", ("mlp_forward",)),
    Variant("momentum is ignored", "p.data -= self.lr * v", "p.data -= self.lr * p.grad", ("sgd",)),
    Variant("uphill", "p.data -= self.lr * v", "p.data += self.lr * v", ("sgd",)),
    Variant(
        "the new gradient is damped like the velocity",
        "v.mul_(self.momentum).add_(p.grad)",
        "v.add_(p.grad).mul_(self.momentum)",
        ("sgd",),
    ),
    Variant(
        "the gradient itself becomes the velocity",
        "v.mul_(self.momentum).add_(p.grad)",
        "v.copy_(p.grad.add_(self.momentum * v))",
        ("sgd",),
    ),
    Variant("a parameter without gradient stops the step", "if p.grad is not None:", "if True:", ("sgd",)),
    Variant("old gradients are kept", "    optimiser.zero_grad()\n", "", ("train_step",)),
    Variant(
        "the step comes before the gradients",
        "    loss.backward()\n    optimiser.step()\n",
        "    optimiser.step()\n    loss.backward()\n",
        ("train_step",),
    ),
    Variant(
        "the loss after the step",
        "    return loss.item()\n",
        "    return cross_entropy(model(Tensor(x)), y).item()\n",
        ("train_step",),
    ),
    Variant("multiply-adds instead of FLOPs", "[2 * batch * n * m for", "[batch * n * m for", ("step_flops",)),
    Variant(
        "the gradient of the images is counted", "3 * sum(forward) - forward[0]", "3 * sum(forward)", ("step_flops",)
    ),
    Variant("the way back is counted once", "3 * sum(forward) - forward[0]", "2 * sum(forward)", ("step_flops",)),
    Variant("hardly any training", "x_train, y_train, 20, 64", "x_train[:64], y_train[:64], 1, 64", ("train_digits",)),
    Variant("the least likely class", "data.argmax(dim=1), losses", "data.argmin(dim=1), losses", ("train_digits",)),
    Variant("the learning rate is far too large", "lr=0.1, momentum=0.9", "lr=50.0, momentum=0.9", ("train_digits",)),
]

CHECKPOINTING = [
    Variant(
        "elements instead of bytes",
        "return 3 * layers * batch * width * 4",
        "return 3 * layers * batch * width",
        ("graph_bytes",),
    ),
    Variant(
        "one result a layer",
        "return 3 * layers * batch * width * 4",
        "return layers * batch * width * 4",
        ("graph_bytes",),
    ),
    Variant(
        "a checkpoint that forgets nothing and runs once",
        """    with no_grad():
        value = fn(x.detach()).data
    anchor = x if x.requires_grad else Tensor(x.data, requires_grad=True)

    def vjp(g: torch.Tensor) -> torch.Tensor:
        again = Tensor(x.data, requires_grad=True)
        backward(fn(again), g)
        return again.grad
""",
        """    again = Tensor(x.data, requires_grad=True)
    first = fn(again)
    value = first.data
    anchor = x if x.requires_grad else Tensor(x.data, requires_grad=True)

    def vjp(g: torch.Tensor) -> torch.Tensor:
        again.grad = None
        backward(first, g)
        return again.grad
""",
        ("checkpoint", "checkpoint_memory"),
    ),
    Variant(
        "weights learn nothing where x is data",
        "anchor = x if x.requires_grad else Tensor(x.data, requires_grad=True)",
        "anchor = x",
        ("checkpoint", "checkpoint_memory"),
    ),
    Variant(
        "the second run goes on into the outer graph",
        "        again = Tensor(x.data, requires_grad=True)\n        backward(fn(again), g)\n        return again",
        "        backward(fn(x), g)\n        return x",
        ("checkpoint",),
    ),
    Variant(
        "a checkpoint ignores the gradient that arrives",
        "backward(fn(again), g)",
        "backward(fn(again), g * 0 + 1)",
        ("checkpoint",),
    ),
    Variant(
        "one input for all backward passes, never cleared",
        """    def vjp(g: torch.Tensor) -> torch.Tensor:
        again = Tensor(x.data, requires_grad=True)
""",
        """    again = Tensor(x.data, requires_grad=True)

    def vjp(g: torch.Tensor) -> torch.Tensor:
""",
        ("checkpoint",),
    ),
    Variant(
        "whole layers only, rounded down",
        "3 * math.ceil(layers / segments)",
        "3 * (layers // segments)",
        ("checkpointed_bytes",),
    ),
    Variant("segment outputs are not counted", "(segments + 3 * math", "(3 * math", ("checkpointed_bytes",)),
    Variant(
        "the square root, rounded",
        "min(range(1, layers + 1), key=lambda segments: predict_checkpointed_bytes(1, 1, layers, segments))",
        "round(math.sqrt(layers))",
        ("checkpointed_bytes",),
    ),
    Variant(
        "the last number of segments is not tried",
        "range(1, layers + 1), key",
        "range(1, max(layers, 1)), key",
        ("checkpointed_bytes",),
    ),
    Variant(
        "every piece is the last one", "lambda h, part=part: run_layers", "lambda h: run_layers", ("checkpoint_memory",)
    ),
    Variant(
        "a checkpoint for every layer", "size = math.ceil(len(layers) / segments)", "size = 1", ("checkpoint_memory",)
    ),
    Variant(
        "size and number mixed up",
        "size = math.ceil(len(layers) / segments)",
        "size = segments",
        ("checkpoint_memory",),
    ),
    Variant(
        "the short last piece is dropped",
        "range(0, len(layers), size):",
        "range(0, len(layers) - size + 1, size):",
        ("checkpoint_memory",),
    ),
    Variant(
        "a layer runs three times",
        "        backward(fn(again), g)\n",
        "        fn(again)\n        backward(fn(again), g)\n",
        ("checkpoint", "checkpoint_memory"),
    ),
]

MUTANTS = [*SCALAR, *WALK, *ARRAYS, *SHAPES, *LOSS, *TRAINING, *CHECKPOINTING]

LOSS_NODE = 'return node(-log_p[rows, labels].mean(), "cross_entropy", (logits, vjp))'
MISHAPS = [
    Variant(
        "unfinished",
        LOSS_NODE,
        'raise NotImplementedError("still to do")',
        ("cross_entropy",),
        says="not written yet",
    ),
    Variant(
        "a wrong shape",
        "-log_p[rows, labels].mean()",
        "-log_p[rows, labels]",
        ("cross_entropy",),
        says="`loss` has the wrong shape | (6,) | ()",
    ),
    Variant(
        "a wrong dtype",
        "-log_p[rows, labels].mean()",
        "-log_p[rows, labels].double().mean()",
        ("cross_entropy",),
        says="`loss` has the wrong dtype | float64 | float32",
    ),
    Variant(
        "NaN",
        "logits.data - logits.data.amax(dim=1, keepdim=True)",
        "logits.data - math.inf",
        ("cross_entropy",),
        says="`loss` has 1 NaN in 1 entry",
    ),
    Variant(
        "an exception",
        LOSS_NODE,
        "return rows[len(labels)]",
        ("cross_entropy",),
        says="your code stopped with an exception | IndexError: index 6 is out of bounds",
    ),
    Variant(
        "an endless loop",
        LOSS_NODE,
        "while True:\n        pass",
        ("cross_entropy",),
        hangs=True,
        says="it did not come to an end | no answer after 1 s",
    ),
    Variant("nothing comes back", LOSS_NODE, "return None", ("cross_entropy",), says="loss is None"),
    Variant(
        "a plain number comes back",
        LOSS_NODE,
        "return 1.0",
        ("cross_entropy",),
        says="float",
    ),
    Variant("no gradient arrives", "(logits, vjp))", ")", ("cross_entropy",), says="logits.grad is None"),
    Variant(
        "a tensor where a number was asked for",
        "    return loss.item()\n",
        "    return loss\n",
        ("train_step",),
        says="the loss is not a number | Tensor | float",
    ),
    Variant(
        "labels without losses",
        "data.argmax(dim=1), losses",
        "data.argmax(dim=1)",
        ("train_digits",),
        says="train_classifier gives no pair",
    ),
    Variant(
        "probabilities instead of labels",
        "data.argmax(dim=1), losses",
        "data, losses",
        ("train_digits",),
        says="the predicted labels have the wrong form | float32 of shape (360, 10) | integers of shape (360,)",
    ),
    Variant(
        "a float where a whole number was asked for",
        "return 3 * sum(forward) - forward[0]",
        "return 3.0 * sum(forward) - forward[0]",
        ("step_flops",),
        says="FLOPs is not a whole number | float",
    ),
    Variant(
        "too much memory",
        "checkpoint(lambda h, part=part: run_layers(part, h), x)",
        "run_layers(part, x)",
        ("checkpoint_memory",),
        says="it holds too much memory",
    ),
    Variant(
        "a set instead of a list",
        "    return order\n",
        "    return set(order)\n",
        ("topological_order",),
        says="topological_order gives no list | set",
    ),
    Variant(
        "a product that gives a plain number",
        'return Value(a * b, ((self, lambda g: g * b), (other, lambda g: g * a)), "*")',
        "return a * b",
        ("value_arithmetic",),
        says="x * y gives no Value | float | Value",
    ),
]
