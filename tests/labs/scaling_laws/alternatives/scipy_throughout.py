"""Others' tools where there is one: Chebyshev fits, least_squares with its own Huber loss, bounded searches."""

import contextlib

from scipy.optimize import least_squares
from scipy.special import logsumexp, softmax


def objective(theta, n_params, tokens, loss, delta=1e-3):
    a, b, e, alpha, beta = theta
    z = np.array([a - alpha * np.log(n_params), b - beta * np.log(tokens), np.broadcast_to(e, np.shape(loss))]).T
    r = logsumexp(z, axis=1) - np.log(loss)
    inside = np.abs(r) <= delta
    value = 0.5 * np.sum(r[inside] ** 2) + np.sum(delta * (np.abs(r[~inside]) - 0.5 * delta))
    outer = np.where(inside, r, delta * np.sign(r))
    jacobian = softmax(z, axis=1)
    jacobian = np.column_stack([jacobian, -jacobian[:, 0] * np.log(n_params), -jacobian[:, 1] * np.log(tokens)])
    return float(value), jacobian.T @ outer


def fit_parametric(n_params, tokens, loss, starts=STARTS[:2]):
    keep = np.isfinite(loss)
    n, d, y = n_params[keep], tokens[keep], loss[keep]
    n_mid, d_mid = np.median(n), np.median(d)

    def residuals(theta):
        a, b, e, alpha, beta = theta
        z = np.stack([a - alpha * np.log(n / n_mid), b - beta * np.log(d / d_mid), e + 0 * n])
        return logsumexp(z, axis=0) - np.log(y)

    found = [
        least_squares(residuals, start, loss="huber", f_scale=1e-3, x_scale="jac", ftol=1e-13, xtol=1e-13, gtol=1e-15)
        for start in starts
    ]
    a, b, e, alpha, beta = min(found, key=lambda result: result.cost).x
    return ChinchillaLaw(float(np.exp(e)), float(np.exp(a) * n_mid**alpha), float(np.exp(b) * d_mid**beta), alpha, beta)


def bootstrap(fit, data, resamples, level, rng):
    count = len(data[0])
    draws = rng.choice(count, size=(resamples, count), replace=True)
    answers = np.full(resamples, np.nan)
    for i, rows in enumerate(draws):
        with contextlib.suppress(ValueError):
            answers[i] = fit(*[np.take(column, rows) for column in data])
    return np.nanpercentile(answers, 50 - 50 * level), np.nanpercentile(answers, 50 + 50 * level)


def inference_optimal(law, loss, inference_tokens):
    """In the fraction of the loss above the floor that the size is to blame for, 0 to 1."""
    above = loss - law.E

    def split(fraction):
        return (law.A / (above * fraction)) ** (1 / law.alpha), (law.B / (above * (1 - fraction))) ** (1 / law.beta)

    def cost(odds):
        n, d = split(1 / (1 + math.exp(-odds)))
        return math.log(n) + math.log(3 * d + inference_tokens)

    found = minimize_scalar(cost, bounds=(-20, 30), method="bounded", options={"xatol": 1e-13, "maxiter": 1000})
    return split(1 / (1 + math.exp(-found.x)))
