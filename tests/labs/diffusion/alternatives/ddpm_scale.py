"""DDPM's own scale: ᾱ, β̃ and rotations; densities in logarithms; the loss by the network itself."""


def kept_of(sigma):
    return 1 / (1 + sigma**2)


def sigmas(alphas_cumprod):
    return torch.sqrt(torch.expm1(-alphas_cumprod.log()))


@dataclass(frozen=True, eq=False)
class Mixture:
    means: torch.Tensor
    weights: torch.Tensor
    deviation: float

    @property
    def null(self):
        return len(self.means)

    def responsibilities(self, x, sigma):
        variance = (self.deviation**2 + sigma**2)[:, None].to(x)
        logs = torch.stack([-(x - mean).pow(2).sum(1) for mean in self.means], 1) / variance / 2 + self.weights.log()
        return (logs - logs.logsumexp(1, keepdim=True)).exp()

    def __call__(self, x, sigma, label=None):
        shares = self.responsibilities(x, sigma)
        if label is not None:
            chosen = torch.eye(self.null + 1, dtype=x.dtype)[label]
            shares = chosen[:, :-1] + chosen[:, -1:] * shares
        variance = (self.deviation**2 + sigma**2)[:, None].to(x)
        towards = torch.einsum("bk,bkn->bn", shares, self.means - x[:, None])
        return x + per_image(sigma**2, x) / variance * towards


def coefficients(prediction, sigma, sigma_data=0.5):
    kept, t, noise = kept_of(sigma), sigma / (1 + sigma), 0.25 * sigma.log()
    ones = torch.ones_like(sigma)
    if prediction == "edm":
        total = sigma**2 + sigma_data**2
        return Coefficients(sigma_data**2 / total, sigma * sigma_data / total.sqrt(), 1 / total.sqrt(), noise)
    return {
        "epsilon": (ones, -sigma, kept.sqrt(), noise),
        "x0": (0 * ones, ones, kept.sqrt(), noise),
        "v": (kept, -sigma * kept.sqrt(), kept.sqrt(), noise),
        "flow": (1 - t, -t, 1 - t, noise),
    }[prediction]


class Preconditioned(nn.Module):
    def __init__(self, network, prediction="edm", sigma_data=0.5):
        super().__init__()
        self.network, self.prediction, self.sigma_data = network, prediction, sigma_data

    def at(self, sigma):
        return Coefficients(*coefficients(self.prediction, sigma, self.sigma_data))

    def forward(self, x, sigma, label=None):
        skip, out, into, noise = self.at(sigma)
        scaled = x * per_image(into, x)
        return torch.addcmul(per_image(skip, x) * x, per_image(out, x), self.network(scaled, noise.to(x.dtype), label))


def p_losses(denoiser, x0, sigma, noise, label):
    skip, out, into, level = denoiser.at(sigma)
    x = q_sample(x0, sigma, noise)
    wanted = (x0 - per_image(skip, x) * x) / per_image(out, x)
    output = denoiser.network(per_image(into, x) * x, level.to(x), label)
    return (output - wanted).pow(2).reshape(len(x0), -1).mean(1)


def posterior(x0, x, sigma, sigma_next, eta=1.0):
    now, then = kept_of(sigma), kept_of(sigma_next)
    drawn = eta**2 * (1 - then) / (1 - now) * (1 - now / then)
    left = max(1 - then - drawn, 0.0)
    return x0 + (left / then) ** 0.5 * (x - x0) / sigma, (drawn / then) ** 0.5


def heun_step(denoiser, x, sigma, sigma_next, label=None):
    first = denoiser(x, full_level(sigma, x), label)
    ahead = first.lerp(x, sigma_next / sigma)
    if not sigma_next:
        return ahead
    second = denoiser(ahead, full_level(sigma_next, x), label)
    return x + (sigma_next - sigma) * ((x - first) / (2 * sigma) + (ahead - second) / (2 * sigma_next))
