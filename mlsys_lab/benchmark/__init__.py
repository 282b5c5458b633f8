"""Timing, and records of measurements; `track_memory` is in `mlsys_lab.benchmark.memory`, which imports torch."""

from mlsys_lab.benchmark.records import Bound, Record, load, load_all, new_record
from mlsys_lab.benchmark.timing import Comparison, Ratio, Timing, compare, measure

__all__ = ["Bound", "Comparison", "Ratio", "Record", "Timing", "compare", "load", "load_all", "measure", "new_record"]
