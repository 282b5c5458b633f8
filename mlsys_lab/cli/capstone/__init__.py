"""Train and serve one model on the code of your labs, with every cost predicted first.

Each command runs on the layers of your stack: your accepted labs, or the solved lab where there is none of yours. What
they write is in one folder, `capstone-run` by default.

a run of the standard model takes about ten minutes:
  mlsys-lab capstone plan      predict every cost, and fix the settings
  mlsys-lab capstone train     continues where it was stopped
  mlsys-lab capstone serve     the trained model over HTTP
  mlsys-lab capstone report    predicted, counted and timed
  mlsys-lab capstone check     where the layers meet, one line each

all of it in a minute, with a model that learns little:
  mlsys-lab capstone plan --run try --model tiny --steps 20
  mlsys-lab capstone train --run try
"""

COMMANDS = {
    "Commands": {name: f"{__name__}.{name}" for name in ("plan", "train", "serve", "report", "check")},
}
"""Modules of the commands, in the order in which a run takes them."""
