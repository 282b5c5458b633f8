"""What calls the learner's kernels of lab 04: grids, blocks and launches as the tasks fix them."""
