"""Least squares by `lstsq` in log10, a Gauss–Newton fit with Huber's weights, bisection on the slope of the loss."""


def isoflop_minimum(n_params, loss):
    rows = [(math.log10(n), one) for n, one in zip(n_params, loss, strict=True) if not math.isnan(one)]
    sizes = {x for x, _ in rows}
    if len(sizes) < 3:
        raise ValueError(f"only {len(sizes)} sizes")
    low, high = min(sizes), max(sizes)
    t = np.array([2 * (x - low) / (high - low) - 1 for x, _ in rows])  # -1 to 1
    y = np.array([one for _, one in rows])
    (level, slope, bend), *_ = np.linalg.lstsq(np.stack([t**0, t, t * t], axis=1), y, rcond=None)
    if not bend > 0 or abs(slope) > 2 * bend:
        raise ValueError("no minimum among the sizes")
    best = -slope / bend / 2
    return 10 ** (low + (best + 1) / 2 * (high - low)), level + slope * best / 2


def fit_parametric(n_params, tokens, loss, starts=STARTS[:3]):
    keep = ~np.isnan(loss)
    log_n, log_d, log_l = (np.log(column[keep]) for column in (n_params, tokens, loss))
    mid_n, mid_d = log_n.mean(), log_d.mean()

    def terms(theta):
        a, b, e, alpha, beta = theta
        return np.exp(np.stack([a - alpha * (log_n - mid_n), b - beta * (log_d - mid_d), e + 0 * log_n]))

    def total(r):
        return sum(one * one / 2 if abs(one) <= 1e-3 else 1e-3 * (abs(one) - 5e-4) for one in r)

    def descend(theta):
        damping = 1e-2
        for _ in range(300):
            parts = terms(theta)
            r = np.log(parts.sum(axis=0)) - log_l
            fraction = parts / parts.sum(axis=0)
            jacobian = np.stack([*fraction, -fraction[0] * (log_n - mid_n), -fraction[1] * (log_d - mid_d)], axis=1)
            weight = 1e-3 / np.maximum(np.abs(r), 1e-3)
            normal = jacobian.T @ (weight[:, None] * jacobian)
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -jacobian.T @ (weight * r))
            step = np.clip(step, -0.5, 0.5)
            after = np.log(terms(theta + step).sum(axis=0)) - log_l
            if total(after) < total(r):
                theta, damping = theta + step, damping / 3
                if total(r) - total(after) < 1e-8 * total(r):
                    break
            else:
                damping *= 4
            if damping > 1e10:
                break
        return total(np.log(terms(theta).sum(axis=0)) - log_l), theta

    _, (a, b, e, alpha, beta) = min((descend(np.array(start)) for start in starts), key=lambda pair: pair[0])
    return ChinchillaLaw(np.exp(e), np.exp(a + alpha * mid_n), np.exp(b + beta * mid_d), alpha, beta)


def compute_optimal(law, flops):
    low, high = 0.0, math.log(flops / 6)
    for _ in range(200):
        middle = (low + high) / 2
        n = math.exp(middle)
        falls = law.alpha * law.A / n**law.alpha > law.beta * law.B / (flops / 6 / n) ** law.beta
        low, high = (middle, high) if falls else (low, middle)
    return n, flops / 6 / n
