def counts(config):
    """Matrices of all layers, head, and all parameters."""
    inner, keys = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    matrices = config.n_layers * config.d_model * (2 * inner + 2 * keys + 3 * config.d_ff)
    head = config.vocab_size * config.d_model
    return matrices, head, matrices + head * (2 - config.tied) + config.d_model * (2 * config.n_layers + 1)


def predict_training(stack, config, train, world_size):
    """Sums over the model's sizes, without lists of products."""
    matrices, head, n = counts(config)
    B, T, heads = train.batch_size, train.seq_len, config.n_heads * config.head_dim
    forward = B * T * (2 * (matrices + head) + 4 * config.n_layers * heads * T)
    shard, own = (n + world_size - 1) // world_size, (B + world_size - 1) // world_size
    layer = 4 * config.d_model + 2 * (config.n_heads + config.n_kv_heads) * config.head_dim + 4 * config.d_ff
    layer += config.n_heads * T
    kept = own * T * (4 * (config.n_layers * layer + 2 * config.d_model) + 4 * config.vocab_size)
    return {
        "peak_bytes": 8 * n + 12 * shard + kept,
        "training_flops": float(3 * forward),
        "parameters": n,
        "weight_bytes": 4.0 * n,
        "gradient_bytes": 4.0 * n,
        "master_bytes": 4.0 * shard,
        "optimizer_bytes": 8.0 * shard,
        "activation_bytes": kept,
    }


def predict_messages(stack, parameters, world_size):
    """Each of p - 1 ranks passes on every element."""
    others = world_size - 1
    once = {
        "elements_sent": others * parameters,
        "bytes_sent": 4 * others * parameters,
        "messages": world_size * others,
    }
    both = {f"{array}_{key}": number for key, number in once.items() for array in ("weight", "gradient")}
    return {**both, "scalar_elements_sent": 4 * others, "loss_elements_sent": 2 * others}


def predict_serving(stack, config, serving):
    """Sums of arithmetic series."""
    matrices, head, n = counts(config)
    heads, P, steps = config.n_heads * config.head_dim, serving.prompt_tokens, serving.new_tokens - 1
    token_bytes = 8 * config.n_layers * config.n_kv_heads * config.head_dim
    cached = steps * P + steps * (steps - 1) // 2
    return {
        "prefill_flops": 2 * P * matrices + 4 * config.n_layers * heads * P * P,
        "decode_flops": 2 * steps * (matrices + head) + 4 * config.n_layers * heads * (cached + steps),
        "decode_weight_bytes": 4 * steps * (n if config.tied else n - head),
        "decode_cache_read_bytes": cached * token_bytes,
        "decode_cache_written_bytes": steps * token_bytes,
    }


def predict_swap(stack, config, world_size, algorithm, calibration):
    """By hand, from latency and bandwidth."""
    n, others = counts(config)[2], world_size - 1
    steps = others if algorithm == "ring" else len(bin(world_size)) - 3
    seconds = world_size * 2 * steps * calibration.latency_s + 8 * others * n / calibration.bytes_per_s
    keys = ("gradient_elements_sent", "gradient_messages", "master_bytes", "optimizer_bytes", "communication_s")
    return dict(zip(keys, (2 * others * n, 2 * world_size * steps, 4 * n, 8 * n, seconds), strict=True))


class BlockCache:
    """Token by token and in lists, without a vector of slots in `update`."""

    def __init__(self, kv_cache, block_size):
        self.kv_cache, self.block_size, self.sequences = kv_cache, block_size, {}

    def length(self, sequence):
        return self.sequences[sequence].num_computed_tokens

    def advance(self, sequence, num_tokens):
        pass

    def slots(self, sequence, end):
        table = self.sequences[sequence].block_table
        every = [block * self.block_size + i for block in table for i in range(self.block_size)]
        return torch.tensor(every[:end])

    def update(self, layer, sequence, k, v):
        start, slots = self.length(sequence), self.slots(sequence, self.length(sequence) + k.size(1)).tolist()
        for i, slot in enumerate(slots[start:]):
            self.kv_cache.store(layer, torch.tensor([slot]), k[:, i][None], v[:, i][None])
        pairs = [self.kv_cache.load(layer, torch.tensor([slot])) for slot in slots]
        keys, values = (torch.cat(parts).permute(1, 0, 2) for parts in zip(*pairs, strict=True))
        return keys, values, torch.tensor(range(len(slots)))


def waterfall(predicted, measured, peak_flops_per_s):
    """Tuples from the end to the start."""
    step_s = predicted["training_step_s"]
    ends = [measured["training_step_s"], step_s, step_s - predicted["communication_s"], predicted["products_s"]]
    ends += [predicted["training_flops"] / peak_flops_per_s, 0.0]
    names = ("not predicted", "communication", "elementwise work", "products at their rates", "products at peak")
    return [Bar(name, ends[i + 1], ends[i]) for i, name in enumerate(names)][::-1]
