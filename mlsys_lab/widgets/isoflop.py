"""Interactive IsoFLOP figure: published loss laws, and the best split of a budget between parameters and tokens.

The figure reimplements `mlsys_lab.scaling.laws` in JavaScript; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import anywidget
import traitlets

from mlsys_lab.errors import InputError, did_you_mean
from mlsys_lab.scaling.allocation import compute_optimal
from mlsys_lab.scaling.laws import BESIROGLU_2024, GOPHER_FLOPS, HOFFMANN_2022, KAPLAN_2020, KaplanLaw, Law
from mlsys_lab.widgets.modules import esm
from mlsys_lab.widgets.page import table

LAWS: Mapping[str, Law] = {
    "Chinchilla": HOFFMANN_2022,
    "Chinchilla, refitted": BESIROGLU_2024,
    "Kaplan": KAPLAN_2020,
}
_ABOUT = {
    "Chinchilla": "Hoffmann et al., 2022, equation 10: constants as printed, which are rounded.",
    "Chinchilla, refitted": "Besiroglu et al., 2024: the same experiments, fitted again.",
    "Kaplan": (
        "Kaplan et al., 2020, equation 1.5: N without embeddings, and D a data set trained on to convergence, so its "
        "minimum is not the paper's own advice."
    ),
}
_TABLE_FLOPS = (1e18, 1e20, 1e22, GOPHER_FLOPS, 1e25)


def law_constants(law: Law) -> dict[str, float]:
    """Constants of a law in the form L = E + (A/N^alpha + B/D^beta)^gamma, which covers all laws of the figure."""
    A, B, alpha, beta = law.coefficients
    gamma = law.alpha_D if isinstance(law, KaplanLaw) else 1.0
    return {"E": law.floor, "A": A, "alpha": alpha, "B": B, "beta": beta, "gamma": gamma}


def isoflop_data(law: str = "Chinchilla", *, budget_flops: float = GOPHER_FLOPS, runs: bool = False) -> dict[str, Any]:
    """Data of the figure, which initially shows one of `LAWS` at a budget; `runs` shows noisy runs and their parabola.

    InputError for an unknown law, and a budget outside 10¹⁷ to 10²⁶ FLOPs.
    """
    if law not in LAWS:
        raise InputError(
            "no such law", got=repr(law), expected=f"one of {', '.join(LAWS)}", help=did_you_mean(law, LAWS)
        )
    if not 1e17 <= budget_flops <= 1e26:
        raise InputError("budget out of range", got=f"{budget_flops:g} FLOPs", expected="1e17 to 1e26")
    return {
        "laws": [{"name": name, "about": _ABOUT[name]} | law_constants(one) for name, one in LAWS.items()],
        "law": law,
        "own": law_constants(LAWS[law]),
        "budget": budget_flops,
        "runs": runs,
        "noise": 0.005,
        "seed": 1,
    }


def isoflop_table(data: Mapping[str, Any]) -> str:
    """Each law's optimum on a few budgets as an HTML table for pages without JavaScript."""
    rows = []
    for one in data["laws"]:
        for flops in _TABLE_FLOPS:
            best = compute_optimal(LAWS[one["name"]], flops)
            numbers = (flops, best.n_params, best.tokens, best.tokens_per_param)
            rows.append((one["name"], *(f"{x:.3g}" for x in numbers), f"{best.loss:.4g}"))
    return table(("law", "FLOPs", "parameters", "tokens", "tokens per parameter", "loss, nats per token"), rows)


class IsoFlop(anywidget.AnyWidget):
    """Notebook figure of published laws' IsoFLOP curves: `IsoFlop.of("Chinchilla", budget_flops=1e21)`.

    law: a name of `laws`; any other shows the constants in `own`. budget: FLOPs. noise: standard deviation of the loss
    of the runs drawn by `runs`, in nats per token; seed: which runs.
    """

    _esm = esm("isoflop")
    laws: traitlets.List[Any] = traitlets.List(traitlets.Dict()).tag(sync=True)
    law = traitlets.Unicode().tag(sync=True)
    own: traitlets.Dict[str, Any] = traitlets.Dict().tag(sync=True)
    budget = traitlets.Float(GOPHER_FLOPS).tag(sync=True)
    runs = traitlets.Bool(False).tag(sync=True)
    noise = traitlets.Float(0.005).tag(sync=True)
    seed = traitlets.Int(1).tag(sync=True)

    @classmethod
    def of(cls, law: str = "Chinchilla", **options: Any) -> Self:
        """Figure that initially shows a law; `options` are keyword arguments of `isoflop_data`."""
        return cls(**isoflop_data(law, **options))
