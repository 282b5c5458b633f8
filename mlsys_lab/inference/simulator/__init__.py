"""Discrete-event simulator of a serving engine: the same scheduler, a load, and a clock in place of a model. No torch.

load      Arrival; Poisson arrivals, bursts, traces; lengths of prompts and answers
clock     BoundClock, by FLOPs and bytes of a model on a machine; LineClock, fitted to measured steps
calibration  a LineClock fitted to the steps of a server's trace
simulate  simulate(arrivals, clock, num_blocks) -> Simulation; take_turns: several models on the same devices
pools     Pool of equal replicas; disaggregate: one pool for prefill, another for decode
metrics   Served, Objective, report: TTFT, TPOT, ITL, throughput, goodput; of real runs too
steady    measure_steady_state: runs that are long enough, without warm-up and drain; overload
planner   plan_serving: replicas, layout and cost that a load needs under an objective
measured  plan_measured: batch limit, blocks and replicas, by a LineClock
"""

from mlsys_lab.inference.simulator.clock import BoundClock, Clock, LineClock
from mlsys_lab.inference.simulator.load import Arrival, bursts, log_normal, poisson, read_trace, write_trace
from mlsys_lab.inference.simulator.measured import plan_measured
from mlsys_lab.inference.simulator.metrics import Objective, Report, Served, percentile, report
from mlsys_lab.inference.simulator.planner import Service, ServingPlan, plan_serving
from mlsys_lab.inference.simulator.pools import Disaggregated, KVTransferLink, Pool, disaggregate
from mlsys_lab.inference.simulator.simulate import Replica, Simulation, simulate, take_turns

__all__ = [
    "Arrival",
    "BoundClock",
    "Clock",
    "Disaggregated",
    "KVTransferLink",
    "LineClock",
    "Objective",
    "Pool",
    "Replica",
    "Report",
    "Served",
    "Service",
    "ServingPlan",
    "Simulation",
    "bursts",
    "disaggregate",
    "log_normal",
    "percentile",
    "plan_measured",
    "plan_serving",
    "poisson",
    "read_trace",
    "report",
    "simulate",
    "take_turns",
    "write_trace",
]
