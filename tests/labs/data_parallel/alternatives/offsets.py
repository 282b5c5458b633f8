"""Views and offsets counted by hand; a flat gradient into which torch writes; states that are copied piece by piece."""

import copy


def borders(n, p):
    return [(n // p) * i + min(i, n % p) for i in range(p + 1)]


def loss_weights(tokens, rank):
    """All ranks' lists of counts are gathered, whatever their lengths."""
    counts_of_all = collectives.all_gather(rank, torch.tensor(list(tokens), dtype=torch.int64))
    total = torch.cat(counts_of_all).sum()
    return [float(torch.tensor(count, dtype=torch.float64) * rank.size / total) for count in tokens]


class DDP:
    """Every parameter's gradient is a view of its bucket's flat one from the first finish on."""

    def __init__(self, parameters, rank, bucket_bytes=25 << 20):
        self.rank, self.require_backward_grad_sync, self.step, self.left = rank, True, 0, 0
        broadcast_tensors(parameters, rank)
        self.when = dict.fromkeys(map(id, parameters), -1)
        self.buckets = assign_buckets(parameters, bucket_bytes)
        for one in parameters:
            one.register_post_accumulate_grad_hook(lambda one: self.note(id(one)))

    def note(self, number):
        if self.require_backward_grad_sync:
            self.when[number] = self.step
            while self.left < len(self.buckets) and all(
                self.when[id(one)] == self.step for one in self.buckets[self.left]
            ):
                self.send()

    def send(self):
        ones = self.buckets[self.left]
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

    def finish_gradient_synchronization(self):
        for _ in self.buckets[self.left :]:
            self.send()
        self.step, self.left = self.step + 1, 0


def accumulate_gradients(ddp, losses, tokens, rank):
    """From the last micro-batch to the first, with weights that torch is given as gradients."""
    weights = loss_weights(tokens, rank)
    numbers = [number for number, count in enumerate(tokens) if count]
    for number in reversed(numbers):
        ddp.require_backward_grad_sync = number == numbers[0]
        loss = losses[number]()
        loss.backward(torch.full_like(loss, float(weights[number])))
    ddp.require_backward_grad_sync = True
    ddp.finish_gradient_synchronization()


class ShardedOptimizer:
    def __init__(self, parameters, optimizer_class, rank, **options):
        broadcast_tensors(parameters, rank)
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


class FSDPFunction(torch.autograd.Function):
    """Forward without a record; backward by torch's own, on leaves that are gathered again."""

    @staticmethod
    def forward(ctx, x, shard, layer):
        ctx.x, ctx.layer, ctx.wants = x.detach(), layer, x.requires_grad
        with torch.no_grad():
            return layer.layer(ctx.x, *layer.unshard())

    @staticmethod
    def backward(ctx, grad):
        x = ctx.x.clone().requires_grad_(ctx.wants)
        weights = [one.clone().requires_grad_() for one in ctx.layer.unshard()]
        with torch.enable_grad():
            (ctx.layer.layer(x, *weights) * grad).sum().backward()
        flat = torch.cat([one.grad.flatten() for one in weights])
        group = ctx.layer.group
        return x.grad, collectives.reduce_scatter(group, flat / group.size), None


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
