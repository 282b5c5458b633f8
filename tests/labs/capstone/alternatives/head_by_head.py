def causal_softmax(engine, scores, scale):
    """Exponentials of what is below the largest visible score; the past is an additive mask."""
    T = scores.data.shape[-1]
    mask = torch.zeros(T, T, dtype=scores.data.dtype)
    mask[~torch.tril(torch.ones(T, T)).bool()] = float("-inf")
    visible = scores.data * scale + mask
    powers = (visible - visible.max(dim=-1, keepdim=True)[0]).exp()
    weights = powers / powers.sum(-1, keepdim=True)

    def vjp(g):
        return (g - (weights * g).sum(-1, keepdim=True)) * weights * scale

    return engine.record(weights, (scores, vjp), op="softmax")


def rms_norm(engine, x, weight, eps):
    """Rows divided by their root mean square."""
    D = x.data.shape[1]
    size = ((x.data**2).sum(dim=1, keepdim=True) / D + eps) ** 0.5

    def to_x(g):
        h = g * weight.data
        return h / size - x.data * (h * x.data).sum(1, keepdim=True) / (D * size**3)

    return engine.record(weight.data * (x.data / size), (x, to_x), (weight, lambda g: ((x.data / size) * g).sum(dim=0)))


def silu_mul(engine, gate, up):
    """The sigmoid as a hyperbolic tangent."""

    def sigmoid():
        return (torch.tanh(gate.data / 2) + 1) / 2

    def to_gate(g):
        s = sigmoid()
        return g * up.data * (s + gate.data * s - gate.data * s**2)

    return engine.record(
        torch.nn.functional.silu(gate.data) * up.data, (up, lambda g: g * gate.data * sigmoid()), (gate, to_gate)
    )


class GPT:
    """Each query head by itself, from its own rows of the weights."""

    def __init__(self, engine, config, weights):
        self.engine, self.config, self.parameters = engine, config, {}
        for name in weights:
            self.parameters[name] = engine.Tensor(weights[name].detach(), requires_grad=True)

    def rows(self, name, head):
        H = self.config.head_dim
        return self.parameters[f"{name}.weight"][torch.arange(head * H, (head + 1) * H)]

    def attention(self, block, x, B, angles):
        c, T, total = self.config, x.data.shape[0] // B, None
        project = lambda which, head: (  # noqa: E731
            x @ self.rows(f"{block}.attention.{which}", head).T
        ).reshape(B, T, c.head_dim)
        for shared in range(c.n_kv_heads):
            key, value = rotary(self.engine, project("key", shared), angles), project("value", shared)
            for head in range(shared * c.n_heads // c.n_kv_heads, (shared + 1) * c.n_heads // c.n_kv_heads):
                scores = rotary(self.engine, project("query", head), angles) @ key.T
                out = causal_softmax(self.engine, scores, 1 / math.sqrt(c.head_dim)) @ value
                columns = torch.arange(head * c.head_dim, (head + 1) * c.head_dim)
                part = out.reshape(B * T, c.head_dim) @ self.parameters[f"{block}.attention.out.weight"].T[columns]
                total = part if total is None else total + part
        return total

    def __call__(self, tokens):
        B, T = tokens.shape
        weights, config, engine = self.parameters, self.config, self.engine
        normed = lambda name, x: rms_norm(engine, x, weights[f"{name}.weight"], config.norm_eps)  # noqa: E731
        angles = rotary_angles(torch.arange(T), config.head_dim, config.rope_theta, weights["embedding.weight"].data)
        x = weights["embedding.weight"][tokens.flatten()]
        for block in (f"blocks.{layer}" for layer in range(config.n_layers)):
            x = self.attention(block, normed(f"{block}.attention_norm", x), B, angles) + x
            h = normed(f"{block}.mlp_norm", x)
            up, gate = h @ weights[f"{block}.mlp.up.weight"].T, h @ weights[f"{block}.mlp.gate.weight"].T
            x = silu_mul(engine, gate, up) @ weights[f"{block}.mlp.down.weight"].T + x
        head = weights["embedding.weight"] if config.tied else weights["head.weight"]
        return normed("norm", x) @ head.T

    def loss(self, sequences):
        return self.engine.cross_entropy(self(sequences[:, :-1]), sequences[:, 1:].flatten())
