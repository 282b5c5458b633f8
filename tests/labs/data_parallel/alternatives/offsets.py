"""Views and offsets counted by hand; a flat gradient into which torch writes; states that are copied piece by piece."""

import copy


def borders(n, p):
    return [(n // p) * i + min(i, n % p) for i in range(p + 1)]


def views(flat, ones):
    """Views of a flat tensor, with the shapes of these."""
    ends = torch.tensor([0, *(one.numel() for one in ones)]).cumsum(0).tolist()
    return [flat[start:end].view(one.shape) for one, start, end in zip(ones, ends[:-1], ends[1:], strict=True)]


class DDP(DDP):
    """Hooks note the step in which they ran; every gradient is a view of its bucket's flat one once it is averaged."""

    step = 0

    def mark_ready(self, parameter):
        if self.require_backward_grad_sync:
            parameter.ready_in = self.step
            left = self.buckets[self.num_averaged :]
            while left and all(getattr(one, "ready_in", None) == self.step for one in left[0]):
                self.average_bucket(left.pop(0))

    def average_bucket(self, bucket):
        flat = torch.zeros(sum(one.numel() for one in bucket), dtype=bucket[0].dtype)
        for one, view in zip(bucket, views(flat, bucket), strict=True):
            view.copy_(0 * one.data if one.grad is None else one.grad)
        flat = collectives.all_reduce(self.group, flat / self.group.size)
        for one, view in zip(bucket, views(flat, bucket), strict=True):
            one.grad = view
        self.num_averaged += 1

    def finish_gradient_synchronization(self):
        super().finish_gradient_synchronization()
        self.step += 1


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


class ShardedOptimizer(ShardedOptimizer):
    """Weights come from each rank in turn."""

    def reduce_gradients(self):
        grads = [one.data * 0 if one.grad is None else one.grad for one in self.params]
        flat = torch.cat([grad.flatten() for grad in grads])
        self.shard.grad = collectives.reduce_scatter(self.group, flat / self.group.size)

    def gather_weights(self):
        n = sum(one.numel() for one in self.params)
        cuts, flat = borders(n, self.group.size), torch.empty(n, dtype=self.shard.dtype)
        for owner in range(self.group.size):
            piece = flat[cuts[owner] : cuts[owner + 1]]
            if owner == self.group.rank:
                piece.copy_(self.shard.data)
            piece.copy_(collectives.broadcast(self.group, piece, owner))
        for one, view in zip(self.params, views(flat, self.params), strict=True):
            one.data[...] = view


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
                whole = torch.cat([old[name] for old in parts])
                part[name] = whole.narrow(0, cuts[r], cuts[r + 1] - cuts[r]).clone()
        new.append(part)
    return tuple(new)
