"""Derivatives by hand, in one function for the whole MLP; each rank's own maximum; stages that compute again."""

from itertools import pairwise


class WholeMLP(torch.autograd.Function):
    """Forward and backward of an MLP's part, with the two sums where they belong."""

    @staticmethod
    def forward(ctx, x, up, up_bias, down, down_bias, rank):
        hidden = (x @ up + up_bias).clamp(min=0)
        ctx.save_for_backward(x, up, down, hidden)
        ctx.rank = rank
        return collectives.all_reduce(rank, hidden @ down) + down_bias

    @staticmethod
    def backward(ctx, grad):
        x, up, down, hidden = ctx.saved_tensors
        back = (grad @ down.T) * (hidden > 0)
        x_grad = collectives.all_reduce(ctx.rank, back @ up.T)
        return x_grad, x.T @ back, back.sum(0), hidden.T @ grad, grad.sum(0), None


class ParallelMLP:
    def __init__(self, rank, up, up_bias, down, down_bias):
        self.rank = rank
        parts = {"up": (up, 1), "up_bias": (up_bias, 0), "down": (down, 0)}
        for name, (one, dim) in parts.items():
            setattr(self, name, torch.nn.Parameter(take_part(rank, one, dim)))
        self.down_bias = torch.nn.Parameter(down_bias.clone())

    def __call__(self, x):
        return WholeMLP.apply(x, self.up, self.up_bias, self.down, self.down_bias, self.rank)


class CrossEntropy(torch.autograd.Function):
    """One gather of three numbers a token, relative to each rank's own maximum."""

    @staticmethod
    def forward(ctx, logits, rank, start, targets):
        log_sum = torch.logsumexp(logits, 1)
        columns = targets - start
        inside = (columns >= 0) & (columns < logits.shape[1])
        columns = columns.clamp(0, logits.shape[1] - 1)
        of_target = torch.where(inside, logits[torch.arange(len(targets)), columns], 0.0)
        everybody = torch.stack(collectives.all_gather(rank, torch.stack([log_sum, of_target])))
        log_total = torch.logsumexp(everybody[:, 0], 0)
        ctx.save_for_backward(logits, log_total, columns, inside)
        return (log_total - everybody[:, 1].sum(0)).mean()

    @staticmethod
    def backward(ctx, grad):
        logits, log_total, columns, inside = ctx.saved_tensors
        d = torch.exp(logits - log_total.unsqueeze(1))
        d.scatter_add_(1, columns.unsqueeze(1), -inside.double().unsqueeze(1))
        return d * (grad / len(logits)), None, None, None


def one_forward_one_backward(p, m):
    """From the tick at which each action is due: forward i at r + i or, once full, in turn with backward passes."""
    schedule = []
    for r in range(p):
        room = min(p - r, m)
        due = [(2 * i + 1, "backward", i) for i in range(m)]
        due += [(2 * (i - room), "forward", i) if i >= room else (i - m, "forward", i) for i in range(m)]
        due = [(at if kind == "backward" or i < room else at + 1.5, kind, i) for at, kind, i in due]
        schedule.append([(kind, i) for _, kind, i in sorted(due)])
    return schedule


def run_stage(rank, actions, stage, inputs, loss):
    """A stage keeps what went in, and computes once more in the backward pass."""
    r, p, m = rank.rank, rank.size, len(actions) // 2
    xs, requests, mean = {}, [], 0.0
    for kind, i in actions:
        if kind == "forward":
            xs[i] = inputs[i].detach().clone() if r == 0 else rank.recv(r - 1)
            with torch.no_grad():
                y = stage(xs[i])
            if r < p - 1:
                requests += [rank.isend(y, r + 1)]
        else:
            x = xs.pop(i).requires_grad_()
            y = stage(x)
            if r == p - 1:
                one = loss(y, i)
                mean += one.item() / m
                torch.autograd.backward(one / m)
            else:
                torch.autograd.backward([y], [rank.recv(r + 1)])
            if r > 0:
                requests += [rank.isend(x.grad.clone(), r - 1)]
    while requests:
        requests.pop().wait()
    return mean if r == p - 1 else None


def zigzag_positions(tokens, p):
    length, rest = divmod(tokens, 2 * p)
    starts = [i * length + min(i, rest) for i in range(2 * p + 1)]
    stretches = [list(range(first, end)) for first, end in pairwise(starts)]
    return [torch.tensor(stretches[r] + stretches[-1 - r]) for r in range(p)]


def ring_attention(rank, q, k, v, positions):
    """Even ranks send first and odd ones receive first; keys and values as one flat message."""
    p, r = rank.size, rank.rank
    own, state = positions[r][:, None], None
    flat = torch.cat([k.reshape(-1), v.reshape(-1)])
    for step in range(p):
        seen = positions[(r - step) % p]
        n = len(seen)
        keys = flat[: q.shape[0] * n * k.shape[2]].view(q.shape[0], n, k.shape[2])
        values = flat[q.shape[0] * n * k.shape[2] :].view(q.shape[0], n, v.shape[2])
        scores = (q @ keys.transpose(1, 2)) / k.shape[2] ** 0.5 + torch.zeros(()).where(seen <= own, -torch.inf)
        top = scores.amax(2, keepdim=True).clamp(min=-1e300)
        weights = (scores - top).exp()
        sums, parts = weights.sum(2, keepdim=True), weights @ values
        if state is None:
            state = top, sums, parts
        else:
            most = torch.maximum(state[0], top)
            a, b = (state[0] - most).exp(), (top - most).exp()
            state = most, state[1] * a + sums * b, state[2] * a + parts * b
        if step < p - 1:
            request = rank.irecv((r - 1) % p)
            rank.send(flat, (r + 1) % p)
            flat = request.wait()
    return state[2] / state[1]


def all_to_all(rank, parts):
    """Pair by pair: of two ranks the lower one sends first."""
    received = []
    for other in range(rank.size):
        if other == rank.rank:
            received.append(parts[other].clone())
        elif rank.rank < other:
            rank.send(parts[other], other)
            received.append(rank.recv(other))
        else:
            got = rank.recv(other)
            rank.send(parts[other], other)
            received.append(got)
    return received


def step_parts(model, machine, layout, batch):
    d, t, p = layout.data, layout.tensor, layout.pipeline
    m, in_node = batch / d, min(d, machine.node / t)
    work = 6.0 * model.parameters * (m * model.tokens) / (t * p) / machine.flops_per_s
    row = model.tokens * model.width * 2.0
    tensor = m * (model.layers / p) * 8 * row * (1 - 1 / t)
    held = 2.0 * model.parameters / t / p
    network = 2 * held * (1 - in_node / d) / in_node + (2 * m * row / t if p > 1 else 0)
    return {
        "network": network / machine.network_bytes_per_s,
        "link": (tensor + 2 * held * (1 - 1 / in_node)) / machine.link_bytes_per_s,
        "compute": work,
        "bubble": work / m * (p - 1),
    }
