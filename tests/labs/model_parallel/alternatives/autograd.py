"""What torch can differentiate it differentiates: hooks, divided sums that lead back, greedy schedules, all at once."""

import itertools
import math


def take_part(rank, x, dim):
    length, rest = divmod(x.shape[dim], rank.size)
    first = rank.rank * length + min(rank.rank, rest)
    own = x.data.narrow(dim, first, length + (rank.rank < rest))
    return torch.empty_like(own).copy_(own)


def column_parallel_linear(rank, x, weight, bias):
    entered = x.view_as(x)
    if entered.requires_grad:
        entered.register_hook(lambda grad: collectives.all_reduce(rank, grad))
    return torch.addmm(bias, entered, weight)


def row_parallel_linear(rank, x, weight, bias):
    product = x @ weight
    return product + (collectives.all_reduce(rank, product.detach()) - product.detach()) + bias


def vocab_parallel_cross_entropy(rank, logits, start, targets):
    largest = torch.cat([one[None] for one in collectives.all_gather(rank, logits.detach().amax(1))]).amax(0)
    shifted = logits - largest[:, None]
    inside = torch.arange(start, start + logits.shape[1]) == targets[:, None]
    total = ReduceFromTensorParallelRegion.apply(shifted.exp().sum(1), rank)
    of_target = ReduceFromTensorParallelRegion.apply(shifted.masked_fill(~inside, 0).sum(1), rank)
    return (total.log() - of_target).sum() / len(targets)


def one_forward_one_backward(p, m):
    schedule = []
    for r in range(p):
        forward, backward, actions = 0, 0, []
        while backward < m:
            if forward < m and forward - backward < p - r:
                actions.append(("forward", forward))
                forward += 1
            else:
                actions.append(("backward", backward))
                backward += 1
        schedule.append(tuple(actions))
    return tuple(schedule)


def run_stage(rank, actions, stage, inputs, loss):
    """Forward sends wait for the other side; the stages' stored outputs are what the last rank's losses are made of."""
    graphs, starts, going, losses = {}, {}, [], []
    for kind, i in actions:
        if kind == "forward":
            starts[i] = inputs[i].clone() if rank.rank == 0 else rank.recv(rank.rank - 1)
            graphs[i] = stage(starts[i].requires_grad_())
            if rank.rank + 1 < rank.size:
                rank.send(graphs[i], rank.rank + 1)
        elif rank.rank + 1 < rank.size:
            graphs.pop(i).backward(rank.recv(rank.rank + 1))
        else:
            losses.append(loss(graphs.pop(i), i))
            (losses[-1] * 2 / len(actions)).backward()
        if kind == "backward" and rank.rank:
            going.append(rank.isend(starts.pop(i).grad, rank.rank - 1))
    [one.wait() for one in going]
    return torch.stack(losses).mean() if losses else None


def ring_attention(rank, q, k, v, positions):
    """As flash attention is put together: results and their log-sum-exp; blocks that nobody here sees are passed on."""
    p, own = rank.size, positions[rank.rank]
    out, log_sum = q.new_zeros(*q.shape[:2], v.shape[2]), q.new_full(q.shape[:2], -math.inf)
    for step in range(p):
        if step + 1 < p:
            going = [rank.isend(one, (rank.rank - 1) % p) for one in (k, v)]
            coming = [rank.irecv((rank.rank + 1) % p) for _ in range(2)]
        seen = positions[(rank.rank + step) % p]
        if seen.min() <= own.max():
            scores = torch.einsum("nth,nsh->nts", q, k) * k.shape[2] ** -0.5
            scores = torch.where(seen <= own[:, None], scores, -math.inf)
            both = torch.logaddexp(log_sum, scores.logsumexp(2))
            out = out * (log_sum - both).exp()[..., None] + (scores - both[..., None]).exp() @ v
            log_sum = both
        if step + 1 < p:
            k, v = (one.wait() for one in coming)
            [one.wait() for one in going]
    return out


def all_to_all(rank, parts):
    others = [r for r in range(rank.size) if r != rank.rank]
    going = [rank.isend(parts[r], r) for r in others]
    coming = {r: rank.irecv(r) for r in others}
    received = [parts[r].clone() if r == rank.rank else coming[r].wait() for r in range(rank.size)]
    for one in going:
        one.wait()
    return received


def route(logits, k, capacity):
    best = logits.sort(dim=1, descending=True, stable=True)
    experts, weights = best.indices[:, :k], torch.softmax(best.values[:, :k], 1)
    kept, room = torch.zeros_like(experts, dtype=torch.bool), [capacity] * logits.shape[1]
    for choice, token in itertools.product(range(k), range(len(logits))):
        e = int(experts[token, choice])
        kept[token, choice] = room[e] > 0
        room[e] -= 1
    return [experts, weights, kept]


def dispatch(rank, x, experts, weights, kept, owners, work):
    """Rows leave expert by expert, and how many of each travel first."""
    slots = [(experts == e).logical_and(kept).nonzero() for e in range(len(owners))]
    mine = [[e for e in range(len(owners)) if owners[e] == r] for r in range(rank.size)]
    counts = all_to_all(rank, [torch.tensor([len(slots[e]) for e in ones], dtype=torch.int64) for ones in mine])
    nothing = x[:0]
    rows = all_to_all(rank, [torch.cat([nothing, *(x[slots[e][:, 0]] for e in ones)]) for ones in mine])
    results = []
    for block, of_expert in zip(rows, counts, strict=True):
        pieces = zip(mine[rank.rank], block.split(of_expert.tolist()), strict=True) if len(block) else ()
        results.append(torch.cat([nothing, *(work(e, piece) for e, piece in pieces)]))
    out = torch.zeros_like(x)
    for ones, block in zip(mine, all_to_all(rank, results), strict=True):
        places = torch.cat([torch.empty(0, 2, dtype=torch.int64), *(slots[e] for e in ones)])
        out.index_put_((places[:, 0],), block * weights[places[:, 0], places[:, 1]][:, None], accumulate=True)
    return out


def choose_layout(model, machine, devices, batch):
    def fits(one):
        states = model.parameters * (4 * one.data + 12) / devices
        text = model.tokens * model.width * (10 + 24 / one.tensor) * model.layers
        return states + text * min(one.pipeline, batch / one.data) / one.pipeline <= machine.memory_bytes

    def divides(one):
        rests = (machine.node % one.tensor, model.width % one.tensor, model.layers % one.pipeline, batch % one.data)
        return not any(rests)

    ways = [Layout(d, t, devices // (d * t)) for d in range(1, devices + 1) for t in range(1, devices + 1)
            if devices % (d * t) == 0]  # fmt: skip
    good = [one for one in ways if divides(one) and fits(one)]
    return min(good, key=lambda one: sum(step_parts(model, machine, one, batch).values()), default=None)
