"""Closed forms in place of lists, and exact division in place of loops."""


def per_token(c):
    """Entries of all matrices that a token meets, the head's included."""
    matrices = 3 if c.activation == "swiglu" else 2
    layer = 2 * c.d_model * c.head_dim * (c.n_heads + c.n_kv_heads) + matrices * c.d_model * c.d_ff
    return c.n_layers * layer + c.vocab_size * c.d_model


def pairs(c):
    return 4 * c.n_layers * c.n_heads * c.head_dim


def training_flops(config, total_tokens):
    return 3 * total_tokens * (2 * per_token(config) + pairs(config) * config.context)


def attention_share(config, tokens):
    quadratic = pairs(config) * tokens
    return quadratic / (quadratic + 2 * per_token(config))


def attention_crossover(config):
    return 2 * per_token(config) / pairs(config)


def states(n_parameters, *, data=1, zero_stage=0, tensor=1):
    held = {}
    for kind, size, from_stage in (("master", 4, 1), ("moments", 8, 1), ("gradients", 2, 2), ("weights", 2, 3)):
        ways = tensor * data if zero_stage >= from_stage else tensor
        held[kind] = size * ((n_parameters + ways - 1) // ways)
    return States(**held)


def activation_bytes(config, tokens, batch=1, *, tensor=1, recomputation="none"):
    c = config
    width = {"swiglu": 8, "gelu": 4, "relu": 2}[c.activation]
    rest = 6 * c.d_model + 4 * (c.n_heads + c.n_kv_heads) * c.head_dim + width * c.d_ff
    scores = 2 * c.n_heads * tokens
    layers = {
        "none": c.n_layers * (2 * c.d_model + rest + scores),
        "selective": c.n_layers * (2 * c.d_model + rest) + scores,
        "full": c.n_layers * 2 * c.d_model + rest + scores,
    }
    return (layers[recomputation] + 4 * c.d_model + 4 * c.vocab_size) * batch * tokens // tensor


def elementwise_units(config, tokens, batch=1):
    c = config
    each = 8 * c.d_model + c.n_heads * (4 * c.head_dim + 5 * tokens) + c.d_ff
    return count_parameters(c) + batch * tokens * (c.n_layers * each + 6 * c.d_model + 4 * c.vocab_size)


def decode_work(config, tokens, batch=1):
    c = config
    looked_up = (c.position == "learned") * c.context * c.d_model + (not c.tied) * c.vocab_size * c.d_model
    flops = batch * (2 * per_token(c) + pairs(c) * tokens)
    return flops, 2 * (count_parameters(c) - looked_up) + kv_cache_bytes(c, tokens, batch)
