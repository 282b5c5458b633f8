"""A cluster on a desk: ranks whose compute and communication take made-up time on streams, as tasks on a timeline."""

from mlsys_lab.comm.simulate.cluster import Cluster, Task
from mlsys_lab.comm.simulate.timeline import Timeline

__all__ = ["Cluster", "Task", "Timeline"]
