"""Shards of one length, padded with zeros; layers that autograd knows, whose saved weights are gathered when needed."""


def padded_chunk(rank, flat):
    """This rank's row of as many equal rows as there are ranks."""
    rows = torch.nn.functional.pad(flat, (0, -len(flat) % rank.size)).reshape(rank.size, -1)
    return rows[rank.rank].clone()


def padded_mean(rank, flat):
    return collectives.reduce_scatter(rank, torch.nn.functional.pad(flat, (0, -len(flat) % rank.size))) / rank.size


class ShardedOptimizer(ShardedOptimizer):
    """Every shard has as many elements; the last ones of the last ranks are zeros, and stay so."""

    def __init__(self, parameters, optimizer_class, rank, **options):
        broadcast_tensors(parameters, rank)
        self.group, self.params = rank, list(parameters)
        flat = torch.nn.utils.parameters_to_vector([one.contiguous() for one in parameters])
        self.shard = padded_chunk(rank, flat.detach())
        self.optimizer = optimizer_class([self.shard], **options)

    def reduce_gradients(self):
        grads = [torch.zeros_like(one) if one.grad is None else one.grad for one in self.params]
        self.shard.grad = padded_mean(self.group, torch.cat([grad.reshape(-1) for grad in grads]))

    def gather_weights(self):
        flat = torch.cat(collectives.all_gather(self.group, self.shard))
        for one in self.params:
            part, flat = flat[: one.numel()], flat[one.numel() :]
            one.data.copy_(part.reshape(one.shape))


class FSDPUnit(FSDPUnit):
    def __init__(self, layer, weights, rank):
        self.group, self.layer, self.shapes = rank, layer, [one.shape for one in weights]
        whole = [collectives.broadcast(rank, one.detach()).reshape(-1) for one in weights]
        self.shard = padded_chunk(rank, torch.cat(whole)).requires_grad_()

    def unshard(self):
        flat, whole = torch.cat(collectives.all_gather(self.group, self.shard.detach())), []
        for shape in self.shapes:
            whole.append(flat[: shape.numel()].clone().reshape(shape))
            flat = flat[shape.numel() :]
        return tuple(whole)

    def __call__(self, x):
        weights = FSDPFunction.apply(self.shard, self)
        places = {one.untyped_storage().data_ptr(): i for i, one in enumerate(weights) if one.numel()}

        def pack(tensor):
            place = places.get(tensor.untyped_storage().data_ptr())
            return tensor if place is None else (place, tensor.shape, tensor.stride(), tensor.storage_offset())

        def unpack(packed):
            if isinstance(packed, torch.Tensor):
                return packed
            place, *form = packed
            return self.unshard()[place].as_strided(*form)

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            return self.layer(x, *weights)


class FSDPFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, shard, layer):
        ctx.layer = layer
        return layer.unshard()

    @staticmethod
    def backward(ctx, *grads):
        return padded_mean(ctx.layer.group, torch.cat([grad.reshape(-1) for grad in grads])), None


def save_state(optimizer, position):
    part = {"weights": optimizer.shard, "position": torch.tensor(position), "random": torch.get_rng_state()}
    part.update(optimizer.optimizer.state[optimizer.shard])
    return {name: torch.tensor(one.tolist(), dtype=one.dtype) for name, one in part.items()}


def load_state(optimizer, part):
    left = {name: one.clone() for name, one in part.items()}
    with torch.no_grad():
        optimizer.shard[:] = left.pop("weights")
    position = left.pop("position").item()
    torch.random.set_rng_state(left.pop("random"))
    optimizer.optimizer.state[optimizer.shard] = left
    optimizer.gather_weights()
    return position
