"""Interactive figures: the same JavaScript for the static site and for live notebooks.

On the site: `write_modules(folder)` writes the ES modules, a page loads `load.js`, and cells print
`element(name, **data)`, `show(figure, alt=…)` or `Table(head, rows)`. In a notebook: `Roofline` and `BackwardGraph`
(anywidget) run the same modules, and `show` leaves the drawing to Plotly's own renderer; a build of the site draws what
it shows as SVG.
"""

from typing import TYPE_CHECKING

from mlsys_lab.lazy import lazily
from mlsys_lab.widgets.graph import graph_data
from mlsys_lab.widgets.modules import esm, write_modules
from mlsys_lab.widgets.page import Table, element
from mlsys_lab.widgets.roofline import device_data

if TYPE_CHECKING:
    from mlsys_lab.widgets.notebook import BackwardGraph, Roofline
    from mlsys_lab.widgets.plots import show
else:
    # Tables and elements need neither anywidget nor Plotly: readers of the site run cells in their browser.
    __getattr__ = lazily(__name__, {"BackwardGraph": "notebook", "Roofline": "notebook", "show": "plots"})

__all__ = [
    "BackwardGraph",
    "Roofline",
    "Table",
    "device_data",
    "element",
    "esm",
    "graph_data",
    "show",
    "write_modules",
]
