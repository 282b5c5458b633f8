"""Training of a transformer in any layout, from the command line too: `python -m mlsys_lab.parallel.train --help`."""

from mlsys_lab.parallel.train.trainer import Trainer

__all__ = ["TrainConfig", "Trainer"]
