"""Simulated clusters: ranks whose computation and communication are tasks on streams, with given durations."""

from mlsys_lab.comm.simulate.cluster import Cluster, Task
from mlsys_lab.comm.simulate.timeline import Timeline

__all__ = ["Cluster", "Task", "Timeline"]
