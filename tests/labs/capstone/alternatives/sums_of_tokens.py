from itertools import islice


def train_rank(rank, job):
    """Gradients, not losses, are weighted; the loss is a sum over tokens that is divided in the end."""
    zero, train, engine = job.stack.data_parallel, job.train, job.stack.engine
    model = GPT(engine, job.config, {name: one.clone() for name, one in job.weights.items()})
    names = list(model.parameters)
    parameters = [torch.nn.Parameter(model.parameters[name].data.clone()) for name in names]
    optimizer = zero.ShardedOptimizer(
        parameters, torch.optim.AdamW, rank, lr=0.0, weight_decay=WEIGHT_DECAY, betas=BETAS
    )
    step = zero.load_state(optimizer, job.state) if job.state is not None else 0
    losses = []
    batches = Batches(len(job.ids), train.batch_size, train.seq_len, train.seed)
    sizes = [len(part) for part in torch.arange(train.batch_size).tensor_split(rank.size)]
    first = sum(sizes[: rank.rank])
    for starts in islice(batches, step, job.until):
        step += 1
        for name, parameter in zip(names, parameters, strict=True):
            model.parameters[name].data = parameter.detach().clone()
            model.parameters[name].grad = None
        own = windows(job.ids, starts[first : first + sizes[rank.rank]], train.seq_len)
        loss = model.loss(own)
        loss.backward()
        (weight,) = zero.loss_weights([own.shape[0] * train.seq_len], rank)
        for name, parameter in zip(names, parameters, strict=True):
            parameter.grad = model.parameters[name].grad * weight
        optimizer.reduce_gradients()
        (group,) = optimizer.optimizer.param_groups
        (shard,) = group["params"]
        squares = job.stack.collectives.all_reduce(rank, (shard.grad**2).sum().reshape(1))
        shard.grad *= min(1.0, GRADIENT_NORM / float(squares.sqrt()))
        group["lr"] = learning_rate(step, train.steps, train.lr)
        optimizer.step()
        total = job.stack.collectives.all_reduce(rank, loss.data.reshape(1) * len(own))
        losses.append(float(total) / train.batch_size)
    return (
        losses,
        {name: parameter.detach() for name, parameter in zip(names, parameters, strict=True)},
        zero.save_state(optimizer, step),
    )
