"""Grading: take a batch of submissions through all stages, regrade, or judge in shards and merge."""
