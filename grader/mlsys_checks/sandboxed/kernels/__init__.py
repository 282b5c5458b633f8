"""The kernel language: what a submission's kernels may use, and how to load them without running its other code."""
