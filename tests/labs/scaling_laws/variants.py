"""Mistakes that learners make in the scaling-laws lab, as changes of the reference."""

from mlsys_grader.proving.variants import Variant

ISOFLOP = [
    Variant(
        "sizes instead of their logarithms",
        "    x, y = np.log(n_params[came_back]), loss[came_back]\n",
        "    x, y = n_params[came_back], loss[came_back]\n    math = __import__('types').SimpleNamespace(exp=float)\n",
        ("isoflop_minimum",),
    ),
    Variant(
        "the minimum with its sign turned",
        "lowest = middle - c1 / (2 * c2)",
        "lowest = middle + c1 / (2 * c2)",
        ("isoflop_minimum", "isoflop_minima"),
    ),
    Variant(
        "half of the way to the minimum",
        "lowest = middle - c1 / (2 * c2)",
        "lowest = middle - c1 / (4 * c2)",
        ("isoflop_minimum",),
    ),
    Variant(
        "coefficients in the other order",
        "    c2, c1, c0 = np.polyfit(x - middle, y, 2)\n",
        "    c0, c1, c2 = np.polyfit(x - middle, y, 2)\n",
        ("isoflop_minimum",),
    ),
    Variant(
        "failed runs are kept",
        "    came_back = np.isfinite(loss)\n    x, y = np.log(n_params",
        "    came_back = slice(None)\n    x, y = np.log(n_params",
        ("isoflop_minimum",),
    ),
    Variant(
        "failed runs count as a loss of zero",
        "    x, y = np.log(n_params[came_back]), loss[came_back]\n",
        "    x, y = np.log(n_params), np.nan_to_num(loss)\n",
        ("isoflop_minimum",),
    ),
    Variant(
        "the best run instead of the parabola's minimum",
        "    return math.exp(lowest), c0 - c1**2 / (4 * c2)\n",
        "    return float(n_params[np.nanargmin(loss)]), float(np.nanmin(loss))\n",
        ("isoflop_minimum", "isoflop_minima"),
    ),
    Variant(
        "the loss at the middle instead of the lowest one",
        "math.exp(lowest), c0 - c1**2 / (4 * c2)",
        "math.exp(lowest), c0",
        ("isoflop_minimum",),
    ),
    Variant(
        "the mean is not put back",
        "lowest = middle - c1 / (2 * c2)",
        "lowest = -c1 / (2 * c2)",
        ("isoflop_minimum",),
    ),
    Variant(
        "hills are taken for valleys",
        '    if c2 <= 0:\n        raise ValueError("the parabola opens downward")\n',
        "",
        ("isoflop_refuses",),
    ),
    Variant(
        "minima beyond the sizes are believed",
        "    if not x.min() <= lowest <= x.max():\n",
        "    if False:\n",
        ("isoflop_refuses", "isoflop_minima"),
    ),
    Variant(
        "minima below the smallest size are believed",
        "    if not x.min() <= lowest <= x.max():\n",
        "    if lowest > x.max():\n",
        ("isoflop_refuses",),
    ),
    Variant(
        "a size that failed counts as tried",
        "    if not x.min() <= lowest <= x.max():\n",
        "    if not np.log(n_params.min()) <= lowest <= np.log(n_params.max()):\n",
        ("isoflop_refuses",),
    ),
    Variant("runs are counted, not sizes", "len(np.unique(x)) < 3", "len(x) < 3", ("isoflop_refuses",)),
    Variant("every sweep is refused", "if c2 <= 0:", "if c2 >= 0:", ("isoflop_refuses", "isoflop_minimum")),
    Variant(
        "a line through numbers instead of logarithms",
        "np.polyfit(np.log(x), np.log(y), 1)",
        "np.polyfit(x, y, 1)",
        ("power_law", "isoflop_optimum"),
    ),
    Variant("x on y", "np.polyfit(np.log(x), np.log(y), 1)", "np.polyfit(np.log(y), np.log(x), 1)", ("power_law",)),
    Variant(
        "the intercept is the coefficient",
        "    return math.exp(intercept), exponent\n",
        "    return intercept, exponent\n",
        ("power_law", "isoflop_optimum"),
    ),
    Variant(
        "coefficient and exponent exchanged",
        "    return math.exp(intercept), exponent\n",
        "    return exponent, math.exp(intercept)\n",
        ("power_law",),
    ),
    Variant(
        "ten to the power of a natural logarithm",
        "    return math.exp(intercept), exponent\n",
        "    return 10**intercept, exponent\n",
        ("power_law",),
    ),
    Variant(
        "a budget without a minimum ends the fit",
        "        except ValueError:\n            continue\n    return tuple(np.array(found).T)\n",
        "        except ValueError:\n            break\n    return tuple(np.array(found).T)\n",
        ("isoflop_minima",),
    ),
    Variant(
        "budgets are not told apart",
        "        runs = flops == budget\n",
        "        runs = flops <= budget\n",
        ("isoflop_minima",),
    ),
    Variant(
        "tokens without the six",
        "return best, target_flops / (6 * best)",
        "return best, target_flops / best",
        ("isoflop_optimum",),
    ),
    Variant(
        "the largest budget's size, not the target's",
        "best = coefficient * target_flops**exponent",
        "best = n_opt[-1]",
        ("isoflop_optimum",),
    ),
    Variant(
        "model and tokens share the growth evenly",
        "best = coefficient * target_flops**exponent",
        "best = n_opt[-1] * (target_flops / budgets[-1]) ** 0.5",
        ("isoflop_optimum",),
    ),
]

LAW = [
    Variant(
        "the largest exponent is not taken out",
        "    highest = z.max(axis=0)\n",
        "    highest = np.zeros(len(loss))\n",
        ("huber_objective",),
    ),
    Variant(
        "a mean instead of a sum",
        "    value = (slope * (residual - slope / 2)).sum()\n",
        "    value = (slope * (residual - slope / 2)).mean()\n",
        ("huber_objective",),
    ),
    Variant(
        "squares throughout",
        "    slope = np.clip(residual, -delta, delta)\n",
        "    slope = residual\n",
        ("huber_objective", "parametric_fit"),
    ),
    Variant(
        "absolute values throughout",
        "    slope = np.clip(residual, -delta, delta)\n",
        "    slope = delta * np.sign(residual)\n",
        ("huber_objective",),
    ),
    Variant(
        "losses instead of their logarithms",
        "np.log(powers.sum(axis=0)) - np.log(loss)",
        "np.log(powers.sum(axis=0)) - loss",
        ("huber_objective", "parametric_fit"),
    ),
    Variant(
        "the floor is left out",
        "z = np.stack([a - alpha * log_n, b - beta * log_d, np.full(len(loss), e)])",
        "z = np.stack([a - alpha * log_n, b - beta * log_d, np.full(len(loss), -99.0)])",
        ("huber_objective", "parametric_fit"),
    ),
    Variant(
        "a softmax that is not divided by its sum",
        "by_z = slope * powers / powers.sum(axis=0)",
        "by_z = slope * powers",
        ("huber_objective",),
    ),
    Variant(
        "the usual delta, whatever is given",
        "slope = np.clip(residual, -delta, delta)",
        "delta = 1e-3\n    slope = np.clip(residual, -delta, delta)",
        ("huber_objective",),
    ),
    Variant(
        "exponents' slopes with the wrong sign",
        "-(by_z[0] @ log_n), -(by_z[1] @ log_d)",
        "by_z[0] @ log_n, by_z[1] @ log_d",
        ("huber_objective", "parametric_fit"),
    ),
    Variant(
        "sizes and tokens exchanged in the slopes",
        "-(by_z[0] @ log_n), -(by_z[1] @ log_d)",
        "-(by_z[0] @ log_d), -(by_z[1] @ log_n)",
        ("huber_objective",),
    ),
    Variant(
        "a mean, whose slopes the optimiser takes for none",
        "        return value / delta**2, gradient / delta**2\n",
        "        return value / len(n), gradient / len(n)\n",
        ("parametric_fit",),
    ),
    Variant(
        "plain units, in which nothing seems to be gained",
        "        value, gradient = objective(theta, n / n_mid, d / d_mid, measured, delta)\n"
        "        return value / delta**2, gradient / delta**2\n\n"
        '    options = {"maxiter": 1000, "ftol": 1e-10}\n',
        "        return objective(theta, n, d, measured, delta)\n\n    n_mid, d_mid, options = 1.0, 1.0, {}\n",
        ("parametric_fit",),
    ),
    Variant(
        "constants stay in units of the middle run",
        "math.exp(a) * n_mid**alpha, math.exp(b) * d_mid**beta",
        "math.exp(a), math.exp(b)",
        ("parametric_fit", "decide"),
    ),
    Variant(
        "units put back the wrong way round",
        "math.exp(a) * n_mid**alpha, math.exp(b) * d_mid**beta",
        "math.exp(a) / n_mid**alpha, math.exp(b) / d_mid**beta",
        ("parametric_fit",),
    ),
    Variant(
        "logarithms instead of constants", "    return Law(math.exp(e), ", "    return Law(e, ", ("parametric_fit",)
    ),
    Variant(
        "failed runs go into the fit",
        "    came_back, delta = np.isfinite(loss), 1e-3\n",
        "    came_back, delta = slice(None), 1e-3\n",
        ("parametric_fit",),
    ),
    Variant(
        "the worst start wins",
        "min(found, key=lambda result: result.fun).x",
        "np.array(starts[0])",
        ("parametric_fit", "decide"),
    ),
    Variant(
        "exponents exchanged",
        "d_mid**beta, alpha, beta)",
        "d_mid**beta, beta, alpha)",
        ("parametric_fit",),
    ),
]

INTERVAL = [
    Variant(
        "without replacement",
        "rows = rng.integers(count, size=count)",
        "rows = rng.permutation(count)",
        ("bootstrap",),
    ),
    Variant(
        "half as many rows",
        "rows = rng.integers(count, size=count)",
        "rows = rng.integers(count, size=count // 2)",
        ("bootstrap",),
    ),
    Variant(
        "rows are torn apart",
        "statistic(*(column[rows] for column in columns))",
        "statistic(*(column[rng.integers(count, size=count)] for column in columns))",
        ("bootstrap",),
    ),
    Variant(
        "the last row is never drawn",
        "rows = rng.integers(count, size=count)",
        "rows = rng.integers(count - 1, size=count)",
        ("bootstrap",),
    ),
    Variant(
        "the level at each end",
        "[(1 - level) / 2, (1 + level) / 2]",
        "[1 - level, level]",
        ("bootstrap",),
    ),
    Variant(
        "a statistic that is missing ends it all",
        "        except ValueError:\n            continue\n    low, high",
        "        except KeyError:\n            continue\n    low, high",
        ("bootstrap",),
    ),
    Variant(
        "the spread of a normal law of errors, once",
        "    low, high = np.quantile(answers, [(1 - level) / 2, (1 + level) / 2])\n",
        "    low, high = np.mean(answers) - np.std(answers), np.mean(answers) + np.std(answers)\n",
        ("bootstrap",),
    ),
    Variant("ends exchanged", "    return low, high\n", "    return high, low\n", ("bootstrap",)),
]

ALLOCATION = [
    Variant(
        "the exponent of the other term",
        "n_params = ratio * (flops / 6) ** (law.beta / both)",
        "n_params = ratio * (flops / 6) ** (law.alpha / both)",
        ("compute_optimal", "decide"),
    ),
    Variant(
        "terms that are equal instead of their slopes",
        "ratio = (law.alpha * law.A / (law.beta * law.B)) ** (1 / both)",
        "ratio = (law.A / law.B) ** (1 / both)",
        ("compute_optimal",),
    ),
    Variant(
        "the ratio upside down",
        "ratio = (law.alpha * law.A / (law.beta * law.B)) ** (1 / both)",
        "ratio = (law.beta * law.B / (law.alpha * law.A)) ** (1 / both)",
        ("compute_optimal", "decide"),
    ),
    Variant(
        "compute without the six in the size",
        "n_params = ratio * (flops / 6) **",
        "n_params = ratio * flops **",
        ("compute_optimal",),
    ),
    Variant(
        "twice the compute",
        "    return n_params, flops / (6 * n_params)\n",
        "    return n_params, flops / (3 * n_params)\n    ### END",
        ("compute_optimal", "decide"),
    ),
    Variant(
        "twenty tokens a parameter, come what may",
        "    ratio = (law.alpha * law.A / (law.beta * law.B)) ** (1 / both)\n",
        "    return math.sqrt(flops / 120), 20 * math.sqrt(flops / 120)\n    ratio = 1.0\n",
        ("compute_optimal",),
    ),
    Variant(
        "serving costs nothing",
        "math.log(6 * tokens(math.exp(log_n)) + 2 * served_tokens)",
        "math.log(6 * tokens(math.exp(log_n)))",
        ("serving_optimal",),
    ),
    Variant(
        "a served token costs as much as one trained on",
        "+ 2 * served_tokens)",
        "+ 6 * served_tokens)",
        ("serving_optimal",),
    ),
    Variant(
        "the size does not enter the cost",
        "        return log_n + math.log(6",
        "        return math.log(6",
        ("serving_optimal",),
    ),
    Variant(
        "the compute-optimal model serves too",
        'options={"xatol": 1e-12}).x)',
        'options={"xatol": 1e-12}).x * 0 + math.log(largest))',
        ("serving_optimal",),
    ),
    Variant(
        "the floor is forgotten",
        "    above = loss - law.E\n",
        "    above = loss\n",
        ("serving_optimal",),
    ),
    Variant(
        "tokens with the other exponent",
        "(law.B / (above - law.A / n_params**law.alpha)) ** (1 / law.beta)",
        "(law.B / (above - law.A / n_params**law.alpha)) ** (1 / law.alpha)",
        ("serving_optimal",),
    ),
]

CAMPAIGN = [
    Variant(
        "one rate for all sizes: their mean",
        "    return coefficient * n_params**exponent\n",
        "    return np.exp(np.mean(np.log(rates))) + 0 * n_params\n",
        ("best_learning_rate", "sweep"),
    ),
    Variant(
        "a line instead of a power law",
        "    return coefficient * n_params**exponent\n",
        "    return np.polyval(np.polyfit(sizes, rates, 1), n_params)\n",
        ("best_learning_rate",),
    ),
    Variant(
        "scouting spends it all",
        "flops = 0.14 * budget_flops",
        "flops = 0.9 * budget_flops",
        ("scout",),
    ),
    Variant(
        "one size is scouted",
        "np.array([1, 3, 9, 27]) / 40",
        "np.array([1, 1, 1, 1]) / 4",
        ("scout",),
    ),
    Variant(
        "two learning rates are scouted",
        "np.geomspace(1e-4, 1e-2, 8)",
        "np.tile([5e-4, 2e-3], 4)",
        ("scout",),
    ),
    Variant(
        "rates that are all too high",
        "np.geomspace(1e-4, 1e-2, 8)",
        "np.geomspace(3e-2, 1.0, 8)",
        ("scout",),
    ),
    Variant(
        "tokens in place of sizes",
        "    return sizes.ravel(), 20 * sizes.ravel(), rates.ravel()\n",
        "    return 20 * sizes.ravel(), sizes.ravel(), rates.ravel() * 0 + 1\n",
        ("scout",),
    ),
    Variant(
        "the sweep spends more than is left",
        "flops *= 0.999 * left_flops / flops.sum()",
        "flops *= left_flops / flops.max()",
        ("sweep",),
    ),
    Variant(
        "the sweep counts multiply-adds",
        "flops *= 0.999 * left_flops / flops.sum()",
        "flops *= 2 * left_flops / flops.sum()",
        ("sweep",),
    ),
    Variant(
        "a tenth of what is left is spent",
        "flops *= 0.999 * left_flops / flops.sum()",
        "flops *= 1e-3 * left_flops / flops.sum()",
        ("sweep",),
    ),
    Variant(
        "one budget only",
        "flops = np.repeat(3.0 ** np.arange(5), 8)",
        "flops = np.repeat(1.0 ** np.arange(5), 8)",
        ("sweep",),
    ),
    Variant(
        "twenty tokens a parameter throughout",
        "np.tile(np.geomspace(1.5, 400, 8), 5)",
        "np.full(40, 20.0)",
        ("sweep",),
    ),
    Variant(
        "sizes that hardly differ",
        "np.tile(np.geomspace(1.5, 400, 8), 5)",
        "np.tile(np.geomspace(15, 25, 8), 5)",
        ("sweep",),
    ),
    Variant(
        "four large runs",
        "flops = np.repeat(3.0 ** np.arange(5), 8)",
        "flops = np.repeat([1e-9, 1e-9, 1e-9, 1e-9, 1.0], 8) * np.tile([1, 1e-9], 20)",
        ("sweep",),
    ),
    Variant(
        "the sweep goes at one learning rate",
        "best_learning_rate(trials, n_params)\n    ### END",
        "1e-3 + 0 * n_params\n    ### END",
        ("sweep",),
    ),
    Variant(
        "runs at any learning rate go into the law",
        "good = np.isfinite(trials.loss) & (off < 0.4)",
        "good = np.isfinite(trials.loss)",
        ("decide",),
    ),
    Variant(
        "only the scouting runs go into the law",
        "good = np.isfinite(trials.loss) & (off < 0.4)",
        "good = np.isfinite(trials.loss) & (off > 0.4)",
        ("decide",),
    ),
    Variant(
        "the best loss so far is the prediction",
        "    return n_params, tokens, law.loss(n_params, tokens)\n",
        "    return n_params, tokens, np.nanmin(trials.loss)\n",
        ("decide",),
    ),
    Variant(
        "the floor is the prediction",
        "    return n_params, tokens, law.loss(n_params, tokens)\n",
        "    return n_params, tokens, law.E\n",
        ("decide",),
    ),
    Variant(
        "the best run's shape, larger",
        "    n_params, tokens = compute_optimal(law, target_flops)\n",
        "    best = np.nanargmin(trials.loss)\n"
        "    n_params = math.sqrt(target_flops / 6 * trials.n_params[best] / trials.tokens[best]) / 3\n"
        "    tokens = target_flops / (6 * n_params)\n",
        ("decide",),
    ),
    Variant(
        "no power law for the loss's floor",
        "    law = fit_law(trials.n_params[good], trials.tokens[good], trials.loss[good])\n",
        "    law = fit_law(trials.n_params[good], trials.tokens[good], trials.loss[good])\n"
        "    law = Law(0.5 * law.E, law.A, law.B, law.alpha, law.beta)\n",
        ("decide",),
    ),
]

REAL = [
    Variant(
        "the law has seen what it predicts",
        "    law = fit_law(n_params[known], tokens[known], loss[known])\n",
        "    law = fit_law(n_params, tokens, loss)\n",
        ("backtest",),
    ),
    Variant(
        "the largest models are put aside, not the costliest runs",
        "order = np.argsort(n_params * tokens)",
        "order = np.argsort(n_params)",
        ("backtest",),
    ),
    Variant(
        "the last rows are put aside",
        "order = np.argsort(n_params * tokens)",
        "order = np.arange(len(loss))",
        ("backtest",),
    ),
    Variant(
        "the cheapest runs are put aside",
        "order = np.argsort(n_params * tokens)",
        "order = np.argsort(-n_params * tokens)",
        ("backtest",),
    ),
    Variant(
        "runs without a loss are put aside too",
        "    order = order[np.isfinite(loss[order])]\n",
        "",
        ("backtest",),
    ),
    Variant(
        "the order of the costs is turned round",
        "return law.loss(n_params[unknown], tokens[unknown]), loss[unknown]",
        "return law.loss(n_params[unknown], tokens[unknown])[::-1], loss[unknown][::-1]",
        ("backtest",),
    ),
    Variant(
        "sizes and tokens exchanged",
        "return law.loss(n_params[unknown], tokens[unknown]), loss[unknown]",
        "return law.loss(tokens[unknown], n_params[unknown]), loss[unknown]",
        ("backtest",),
    ),
]

MUTANTS = [*ISOFLOP, *LAW, *INTERVAL, *ALLOCATION, *CAMPAIGN, *REAL]

BEST = "    return best, target_flops / (6 * best)\n"
MISHAPS = [
    Variant(
        "unfinished",
        BEST,
        '    raise NotImplementedError("still to do")\n',
        ("isoflop_optimum",),
        says="not written yet",
    ),
    Variant(
        "an endless loop",
        BEST,
        "    while True:\n        pass\n",
        ("isoflop_optimum",),
        hangs=True,
        says="it did not come to an end | no answer after 1 s",
    ),
    Variant(
        "an exception",
        BEST,
        "    return n_opt[len(n_opt)]\n",
        ("isoflop_optimum",),
        says="your code stopped with an exception | IndexError: index 4 is out of bounds",
    ),
    Variant(
        "NaN",
        BEST,
        "    return math.nan, target_flops\n",
        ("isoflop_optimum",),
        says="`n_params` has 1 NaN in 1 entry",
    ),
    Variant(
        "one number instead of two",
        BEST,
        "    return best\n",
        ("isoflop_optimum",),
        says="isoflop_optimum gives something else | float64 | a tuple (n_params, tokens)",
    ),
    Variant(
        "three numbers instead of two",
        BEST,
        "    return best, best, best\n",
        ("isoflop_optimum",),
        says="isoflop_optimum gives something else | tuple of 3 | a tuple (n_params, tokens)",
    ),
    Variant(
        "an array where a number was asked for",
        BEST,
        "    return n_opt, n_opt\n",
        ("isoflop_optimum",),
        says="n_params is not a number | ndarray | float",
    ),
    Variant(
        "columns of different length",
        "    return tuple(np.array(found).T)\n",
        "    one, two, three = np.array(found).T\n    return one, two[1:], three\n",
        ("isoflop_minima",),
        says="the columns of isoflop_minima differ in length",
    ),
    Variant(
        "a list of lists",
        "    return tuple(np.array(found).T)\n",
        "    return [[budget] for budget in found], found, found\n",
        ("isoflop_minima",),
        says="flops is not a column of numbers",
    ),
    Variant(
        "a value without a gradient",
        "    return value, np.array([by_a, by_b, by_e, -(by_z[0] @ log_n), -(by_z[1] @ log_d)])\n",
        "    return value\n",
        ("huber_objective",),
        says="objective gives no pair | float64 | a tuple (value, gradient)",
    ),
    Variant(
        "a gradient of the wrong shape",
        "    return value, np.array([by_a, by_b, by_e, -(by_z[0] @ log_n), -(by_z[1] @ log_d)])\n",
        "    return value, np.array([by_a, by_b, by_e])\n",
        ("huber_objective",),
        says="`gradient` has the wrong shape | (3,) | (5,)",
    ),
    Variant(
        "numbers instead of a law",
        "    return Law(math.exp(e), math.exp(a) * n_mid**alpha, math.exp(b) * d_mid**beta, alpha, beta)\n",
        "    return theta_of_the_best if False else [e, a, b, alpha, beta]\n",
        ("parametric_fit",),
        says="fit_law gives no Law | list | Law(E, A, B, alpha, beta)",
    ),
    Variant(
        "no runs are asked for",
        "    return sizes.ravel(), 20 * sizes.ravel(), rates.ravel()\n",
        "    return np.zeros(0), np.zeros(0), np.zeros(0)\n",
        ("scout",),
        says="no runs are asked for",
    ),
    Variant(
        "learning rates below zero",
        "    return sizes.ravel(), 20 * sizes.ravel(), rates.ravel()\n",
        "    return sizes.ravel(), 20 * sizes.ravel(), np.log(rates.ravel())\n",
        ("scout",),
        says="a request is impossible",
    ),
    Variant(
        "a decision of nothing",
        "    return n_params, tokens, law.loss(n_params, tokens)\n",
        "    return 0.0, tokens, law.loss(n_params, tokens)\n",
        ("decide",),
        says="the decision is not positive",
    ),
]
