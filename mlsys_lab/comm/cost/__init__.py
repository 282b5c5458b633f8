"""What communication costs: the α-β model, topologies with shared links, NCCL's own estimates, and the best choice."""
