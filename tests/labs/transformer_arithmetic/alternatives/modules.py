"""Lists arrays and products one by one, layer by layer, and adds nothing up before the end."""

import torch


def weights(c):
    """(kind, shape) of every parameter array."""
    biased = {"attention": [c.qkv_bias, c.qkv_bias, c.qkv_bias, c.out_bias], "mlp": [c.mlp_bias] * 3}
    q, kv, hidden = c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim, c.d_ff
    gates = [(hidden, c.d_model)] if c.activation == "swiglu" else []
    yield "embedding", (c.vocab_size, c.d_model)
    if c.position == "learned":
        yield "position", (c.context, c.d_model)
    for _ in range(c.n_layers):
        matrices = {
            "attention": [(q, c.d_model), (kv, c.d_model), (kv, c.d_model), (c.d_model, q)],
            "mlp": [*gates, (hidden, c.d_model), (c.d_model, hidden)],
        }
        for kind, shapes in matrices.items():
            for shape, bias in zip(shapes, biased[kind], strict=False):
                yield kind, shape
                if bias:
                    yield kind, shape[:1]
        for _ in range(2):
            yield from norm(c)
    yield from norm(c)
    if not c.tied:
        yield "head", (c.vocab_size, c.d_model)


def norm(c):
    yield "norm", (c.d_model,)
    if c.norm == "layer" and c.norm_bias:
        yield "norm", (c.d_model,)


def parameters(config):
    table = {kind: 0 for kind in ("embedding", "position", "attention", "mlp", "norm", "head")}
    for kind, shape in weights(config):
        table[kind] += torch.empty(shape, device="meta").numel()
    return Parameters(**table)


def forward_products(config, tokens, batch=1):
    c, found, rows = config, [], batch * tokens
    for _ in range(c.n_layers):
        found.append(("query", 1, rows, c.d_model, c.n_heads * c.head_dim))
        found += [(name, 1, rows, c.d_model, c.n_kv_heads * c.head_dim) for name in ("key", "value")]
        for _ in range(batch * c.n_heads):
            found.append(("scores", 1, tokens, c.head_dim, tokens))
            found.append(("weighted_sum", 1, tokens, tokens, c.head_dim))
        found.append(("output", 1, rows, c.n_heads * c.head_dim, c.d_model))
        for name in ("gate", "up") if c.activation == "swiglu" else ("up",):
            found.append((name, 1, rows, c.d_model, c.d_ff))
        found.append(("down", 1, rows, c.d_ff, c.d_model))
    found.append(("head", 1, rows, c.d_model, c.vocab_size))
    return found


def step_products(config, tokens, batch=1):
    """The gradient of a weight as its transpose, as torch has it."""
    found = []
    for product in forward_products(config, tokens, batch):
        name, times, m, k, n = product
        found += [product, (name, times, m, n, k), (name, times, n, m, k)]
    return found


def kv_cache_bytes(config, tokens, batch=1):
    one = torch.empty(batch, tokens, config.n_kv_heads, config.head_dim, dtype=torch.bfloat16, device="meta")
    return sum(one.nbytes for _ in range(config.n_layers) for _ in ("key", "value"))
