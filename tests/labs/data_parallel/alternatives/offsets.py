"""Views and offsets counted by hand; a flat gradient into which torch writes; states that are copied piece by piece."""

import copy
from itertools import pairwise


def borders(n, p):
    return [(n // p) * i + min(i, n % p) for i in range(p + 1)]


def copy_from_first(rank, parameters):
    flat = collectives.broadcast(rank, torch.cat([one.data.flatten() for one in parameters]))
    offset = 0
    for one in parameters:
        size = one.data.numel()
        one.data[...] = flat[offset : offset + size].view_as(one.data)
        offset += size


def loss_weights(rank, tokens):
    """Everybody's list of counts goes round, whatever its length."""
    everybody = collectives.all_gather(rank, torch.tensor(list(tokens), dtype=torch.int64))
    total = torch.cat(everybody).sum()
    return [float(torch.tensor(count, dtype=torch.float64) * rank.size / total) for count in tokens]


def assign_buckets(sizes, bucket_bytes):
    cuts, room = [len(sizes)], bucket_bytes
    for number in range(len(sizes) - 1, -1, -1):
        room -= sizes[number]
        if room < 0 and number + 1 < cuts[-1]:
            cuts.append(number + 1)
            room = bucket_bytes - sizes[number]
    if sizes:
        cuts.append(0)
    return [list(range(a - 1, b - 1, -1)) for a, b in pairwise(cuts)]


class DDP:
    """Every parameter's gradient is a view of its bucket's flat one from the first finish on."""

    def __init__(self, rank, parameters, bucket_bytes=25 << 20):
        self.rank, self.sync, self.step, self.left = rank, True, 0, 0
        copy_from_first(rank, parameters)
        self.when = [-1] * len(parameters)
        self.parameters = list(parameters)
        self.buckets = assign_buckets([one.nbytes for one in parameters], bucket_bytes)
        for number, one in enumerate(parameters):
            one.register_post_accumulate_grad_hook(lambda _, number=number: self.note(number))

    def note(self, number):
        if self.sync:
            self.when[number] = self.step
            while self.left < len(self.buckets) and all(self.when[i] == self.step for i in self.buckets[self.left]):
                self.send()

    def send(self):
        ones = [self.parameters[i] for i in self.buckets[self.left]]
        flat = torch.zeros(sum(one.numel() for one in ones), dtype=ones[0].dtype)
        offset = 0
        for one in ones:
            if one.grad is not None:
                flat[offset : offset + one.numel()] = one.grad.reshape(-1)
            offset += one.numel()
        flat = collectives.all_reduce(self.rank, flat / self.rank.size)
        offset = 0
        for one in ones:
            one.grad = flat[offset : offset + one.numel()].view_as(one)
            offset += one.numel()
        self.left += 1

    def finish(self):
        for _ in self.buckets[self.left :]:
            self.send()
        self.step, self.left = self.step + 1, 0


def accumulate(ddp, rank, losses, tokens):
    """From the last micro-batch to the first, with weights that torch is given as gradients."""
    weights = loss_weights(rank, tokens)
    numbers = [number for number, count in enumerate(tokens) if count]
    for number in reversed(numbers):
        ddp.sync = number == numbers[0]
        loss = losses[number]()
        loss.backward(torch.full_like(loss, float(weights[number])))
    ddp.sync = True
    ddp.finish()


class ShardedOptimizer:
    def __init__(self, rank, parameters, optimizer_class, **options):
        copy_from_first(rank, parameters)
        self.rank, self.parameters = rank, parameters
        n = sum(one.numel() for one in parameters)
        first, last = borders(n, rank.size)[rank.rank : rank.rank + 2]
        self.shard = torch.cat([one.data.flatten() for one in parameters])[first:last].clone()
        self.shard.requires_grad = True
        self.optimizer = optimizer_class(params=[self.shard], **options)

    def reduce_gradients(self):
        flat = []
        for one in self.parameters:
            flat += [torch.zeros(one.numel(), dtype=one.dtype) if one.grad is None else one.grad.flatten()]
        self.shard.grad = collectives.reduce_scatter(self.rank, torch.cat(flat) / self.rank.size)

    def step(self):
        self.optimizer.step()
        self.gather_weights()

    def gather_weights(self):
        """Each rank's shard from that rank, one after the other."""
        n = sum(one.numel() for one in self.parameters)
        cuts, flat = borders(n, self.rank.size), torch.empty(n, dtype=self.shard.dtype)
        for owner in range(self.rank.size):
            piece = flat[cuts[owner] : cuts[owner + 1]]
            if owner == self.rank.rank:
                piece.copy_(self.shard.data)
            piece.copy_(collectives.broadcast(self.rank, piece, owner))
        offset = 0
        for one in self.parameters:
            one.data[...] = flat[offset : offset + one.numel()].view_as(one)
            offset += one.numel()


class Gathered(torch.autograd.Function):
    """Forward without a record; backward by torch's own, on leaves that are gathered anew."""

    @staticmethod
    def forward(ctx, x, shard, layer):
        ctx.x, ctx.layer, ctx.wants = x.detach(), layer, x.requires_grad
        with torch.no_grad():
            return layer.layer(ctx.x, *layer.gather())

    @staticmethod
    def backward(ctx, grad):
        x = ctx.x.clone().requires_grad_(ctx.wants)
        weights = [one.clone().requires_grad_() for one in ctx.layer.gather()]
        with torch.enable_grad():
            (ctx.layer.layer(x, *weights) * grad).sum().backward()
        flat = torch.cat([one.grad.flatten() for one in weights])
        return x.grad, collectives.reduce_scatter(ctx.layer.rank, flat / ctx.layer.rank.size), None


def reshard(parts, size):
    n = sum(len(part["weights"]) for part in parts)
    cuts, new = borders(n, size), []
    for r in range(size):
        part = copy.deepcopy(parts[r % len(parts)])
        for name, one in part.items():
            if one.ndim and name != "random":
                whole = torch.empty(n, dtype=one.dtype)
                torch.cat([old[name] for old in parts], out=whole)
                part[name] = whole.narrow(0, cuts[r], cuts[r + 1] - cuts[r]).clone()
        new.append(part)
    return tuple(new)
