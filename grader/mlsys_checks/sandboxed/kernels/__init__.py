"""The kernel language: what a submission's kernels may use, and loading them without running any of its other code."""
