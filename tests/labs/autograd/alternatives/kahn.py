"""Counts the results that still wait for each node (Kahn 1962), instead of searching depth first."""

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


def backward(root, seed):
    arrived = {}
    arrived.setdefault(root, []).append(seed)
    for node in topological_order(root)[::-1]:
        total = arrived[node][0]
        for more in arrived.pop(node)[1:]:
            total = total + more
        for operand, vjp in node.edges:
            arrived.setdefault(operand, []).append(vjp(total))
        node.accumulate(total)


def unbroadcast(grad, shape):
    padded = (1,) * (grad.ndim - len(shape)) + tuple(shape)
    axes = [i for i, (have, want) in enumerate(zip(grad.shape, padded, strict=True)) if want == 1 and have != 1]
    return (grad.sum(axes, keepdim=True) if axes else grad).reshape(shape)
