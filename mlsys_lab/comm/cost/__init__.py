"""Cost of communication: the α-β model, topologies with shared links, NCCL's own estimates, algorithm selection."""
