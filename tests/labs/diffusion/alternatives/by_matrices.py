"""Work from a list of matrices, the batch by dividing; gradients by torch.autograd.grad; guidance without indices."""


def matrices_of(c):
    """Rows, columns and how many rows of an image each matrix multiplies."""
    tokens, pixels = (c.size // c.patch) ** 2, c.patch**2
    block = [(c.d_model, 12 * c.d_model, tokens), (c.d_model, 6 * c.d_model, 1)]
    ends = [(pixels * c.channels, c.d_model, tokens), (pixels * c.out_channels, c.d_model, tokens)]
    return tokens, c.n_layers * block + ends + [(256 + 3 * c.d_model, c.d_model, 1)]


def dit_work(config, images, element_bytes=2):
    tokens, matrices = matrices_of(config)
    products = sum(a * b * times for a, b, times in matrices) + 2 * config.n_layers * tokens**2 * config.d_model
    return 2 * images * products, element_bytes * sum(a * b for a, b, _ in matrices)


def predict_step(config, images, machine, element_bytes=2):
    flops, moved = dit_work(config, images, element_bytes)
    if flops / moved > machine.flops_per_s / machine.bytes_per_s:
        return flops / machine.flops_per_s, "compute"
    return moved / machine.bytes_per_s, "memory"


def least_batch(config, machine, element_bytes=2):
    flops, moved = dit_work(config, 1, element_bytes)
    return math.floor(moved * machine.flops_per_s / (flops * machine.bytes_per_s)) + 1


def predict_image_s(config, machine, steps, solver="ddim", guided=False, requests=1, element_bytes=2):
    call_s, _ = predict_step(config, requests * (1 + guided), machine, element_bytes)
    return sum(2 if solver == "heun" and step < steps - 1 else 1 for step in range(steps)) * call_s


def train_step(network, optimizer, average, prediction, x0, sigma, noise, label, decay):
    losses = p_losses(network, prediction, x0, sigma, noise, label)
    weights = list(network.parameters())
    for weight, gradient in zip(weights, torch.autograd.grad(losses.sum() / len(losses), weights), strict=True):
        weight.grad = gradient
    optimizer.step()
    with torch.no_grad():
        for mean, weight in zip(average, weights, strict=True):
            mean.lerp_(weight, 1 - decay)
    return float(losses.detach().mean())


def posterior(x0, x, sigma, sigma_next, eta):
    share = sigma_next / sigma
    deviation = eta * sigma_next * math.sqrt((1 - share) * (1 + share))
    return x0.lerp(x, math.sqrt((sigma_next - deviation) * (sigma_next + deviation)) / sigma), deviation


def ddim_step(denoiser, x, sigma, sigma_next, noise, eta=0.0, label=None):
    denoised = denoiser(x, level_of(sigma, x), label)
    if sigma_next == 0:
        return denoised
    mean, deviation = posterior(denoised, x, sigma, sigma_next, eta)
    return torch.add(mean, noise, alpha=deviation)


def guide(denoiser, x, sigma, label, scale, null, low=0.0, high=math.inf):
    acts = torch.ge(sigma, low) & torch.le(sigma, high) & torch.ne(scale, 1)
    nulls = torch.full((int(acts.sum()),), null)
    asked = [torch.cat([values, values[acts]]) for values in (x, sigma)]
    answers = denoiser(*asked, torch.cat([label, nulls]))
    first, without = answers.split([len(x), len(nulls)])
    denoised = first.clone()
    denoised[acts] = torch.lerp(without, first[acts], per_image(scale[acts], without))
    return denoised
